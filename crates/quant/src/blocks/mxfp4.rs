//! MXFP4: a power of two, then 16 bytes of 4-bit floats; byte `j` holds elements `j` (low) and `j + 16` (high).
//!
//! The first byte `e` is an exponent (e8m0: 2^(e - 127)), each nibble a float of 1 sign, 2 exponent and 1
//! mantissa bits (e2m1). The value is `LEVELS[q] * 2^(e - 128)`: the levels are twice the floats, so that they
//! are integers.

use super::{largest_magnitude, nibble};

/// Twice the floats that a nibble stands for, here and in NVFP4.
pub const LEVELS: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// The value of element `i` of 32.
#[inline(always)]
pub fn element(block: &[u8], i: usize) -> f32 {
    f32::from(LEVELS[usize::from(nibble(&block[1..], i))]) * half_power(block[0])
}

/// `2^(e - 128)`, also where that is subnormal.
#[inline(always)]
fn half_power(e: u8) -> f32 {
    let e = u32::from(e);
    f32::from_bits(if e < 2 { 0x0020_0000 << e } else { (e - 1) << 23 })
}

/// Takes the power of two that brings the largest magnitude between the largest level and half of it, and for
/// each of 32 values the nearest level, of two the first in the table.
pub fn quantize(values: &[f32], block: &mut [u8]) {
    let amax = largest_magnitude(values);
    // The cast saturates: magnitudes below 2^-125 take the smallest power.
    block[0] = if amax > 0.0 { (amax.log2().floor() - 2.0 + 127.0) as u8 } else { 0 };
    let d = half_power(block[0]);
    let level = |v: f32| {
        let (mut best, mut least) = (0, f32::INFINITY);
        for (q, &l) in LEVELS.iter().enumerate() {
            let error = (d * f32::from(l) - v).abs();
            if error < least {
                (best, least) = (q as u8, error);
            }
        }
        best
    };
    for j in 0..16 {
        block[1 + j] = level(values[j]) | level(values[j + 16]) << 4;
    }
}
