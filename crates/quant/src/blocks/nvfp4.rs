//! NVFP4: 64 elements in 4 groups of 16; a byte of scale a group, then 8 bytes a group of 4-bit floats (e2m1):
//! byte `j` holds elements `j` (low) and `j + 8` (high) of the group.
//!
//! A scale is a float of 4 exponent and 3 mantissa bits (e4m3, its sign bit ignored, 0x7f for zero). The value is
//! `LEVELS[q] * scale / 2`, with the levels of MXFP4, which are twice the floats.

use super::mxfp4::LEVELS;

/// The value of element `i` of 64.
#[inline(always)]
pub fn element(block: &[u8], i: usize) -> f32 {
    let group = i / 16;
    let q = block[4 + group * 8 + i % 8] >> (i % 16 / 8 * 4) & 0xf;
    f32::from(LEVELS[usize::from(q)]) * half_scale(block[group])
}

/// Half of what a scale's byte stands for.
#[inline(always)]
fn half_scale(byte: u8) -> f32 {
    let (exponent, mantissa) = (u32::from(byte >> 3 & 0xf), u32::from(byte & 7));
    match (byte, exponent) {
        (0x7f, _) => 0.0,
        // Subnormal: units of 2^-9, halved.
        (_, 0) => mantissa as f32 / 1024.0,
        // 7 is the bias of the exponent, 127 that of f32's; one less is the half.
        _ => f32::from_bits((exponent + 127 - 7 - 1) << 23 | mantissa << 20),
    }
}
