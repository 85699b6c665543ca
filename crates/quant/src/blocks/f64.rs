//! F64: IEEE 754 double precision, little endian. Its value here is rounded to f32.

/// The value of the block's only element.
#[inline(always)]
pub fn element(block: &[u8], _: usize) -> f32 {
    f64::from_le_bytes(std::array::from_fn(|i| block[i])) as f32
}

/// Stores one value.
pub fn quantize(values: &[f32], block: &mut [u8]) {
    block.copy_from_slice(&f64::from(values[0]).to_le_bytes());
}
