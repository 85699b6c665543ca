//! F16: IEEE 754 half precision, little endian, rounded to nearest even.

/// The value of the block's only element.
#[inline(always)]
pub fn element(block: &[u8], _: usize) -> f32 {
    super::half_at(block, 0)
}

/// Rounds one value.
pub fn quantize(values: &[f32], block: &mut [u8]) {
    super::put_half(block, 0, values[0]);
}
