//! I16: a signed integer of 16 bits, little endian, no weight but a table.

/// The value of the block's only element.
#[inline(always)]
pub fn element(block: &[u8], _: usize) -> f32 {
    f32::from(i16::from_le_bytes([block[0], block[1]]))
}
