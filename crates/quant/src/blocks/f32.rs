//! F32: the value itself, little endian.

/// The value of the block's only element.
#[inline(always)]
pub fn element(block: &[u8], _: usize) -> f32 {
    f32::from_le_bytes([block[0], block[1], block[2], block[3]])
}

/// Stores one value.
pub fn quantize(values: &[f32], block: &mut [u8]) {
    block.copy_from_slice(&values[0].to_le_bytes());
}
