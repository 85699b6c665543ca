//! I32: a signed integer of 32 bits, little endian, no weight but a table. Its value here is rounded to f32.

/// The value of the block's only element.
#[inline(always)]
pub fn element(block: &[u8], _: usize) -> f32 {
    i32::from_le_bytes(std::array::from_fn(|i| block[i])) as f32
}
