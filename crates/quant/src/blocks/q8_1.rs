//! Q8_1: `d`, `s` (f16), then 32 signed bytes. The value is `q * d`.
//!
//! `s` is `d` times the sum of the bytes, for products with formats that have minima. Activations are rounded to
//! this format; no file holds it.

use super::{half_at, largest_magnitude, put_half, reciprocal};

/// The value of element `i` of 32.
#[inline(always)]
pub fn element(block: &[u8], i: usize) -> f32 {
    f32::from(block[4 + i] as i8) * half_at(block, 0)
}

/// Scales 32 values so that the largest magnitude becomes 127; rounds half away from zero.
pub fn quantize(values: &[f32], block: &mut [u8]) {
    let d = largest_magnitude(values) / 127.0;
    put_half(block, 0, d);
    let inverse = reciprocal(d);
    let mut sum = 0i32;
    for (q, v) in block[4..].iter_mut().zip(values) {
        let level = (v * inverse).round() as i8;
        sum += i32::from(level);
        *q = level as u8;
    }
    // The sum takes the scale before its rounding to f16.
    put_half(block, 2, sum as f32 * d);
}
