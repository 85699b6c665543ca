//! BF16: the upper half of an f32, little endian, rounded to nearest even; NaN stays NaN, quiet.

/// The value of the block's only element.
#[inline(always)]
pub fn element(block: &[u8], _: usize) -> f32 {
    half::bf16::from_le_bytes([block[0], block[1]]).to_f32()
}

/// Rounds one value.
pub fn quantize(values: &[f32], block: &mut [u8]) {
    block.copy_from_slice(&half::bf16::from_f32(values[0]).to_le_bytes());
}
