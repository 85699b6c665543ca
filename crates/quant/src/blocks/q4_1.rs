//! Q4_1: `d`, `m` (f16), then 16 bytes of nibbles; byte `j` holds elements `j` (low) and `j + 16` (high).
//! The value is `d * q + m`.

use super::weighted::{Line, line};
use super::{clamped_half, half_at, nibble, pack_nibbles, put_half, range, reciprocal};

/// The value of element `i` of 32.
#[inline(always)]
pub fn element(block: &[u8], i: usize) -> f32 {
    half_at(block, 0) * f32::from(nibble(&block[4..], i)) + half_at(block, 2)
}

/// Spreads 16 levels from the smallest of 32 values to the largest.
pub fn quantize(values: &[f32], block: &mut [u8]) {
    let (min, max) = range(values);
    let d = (max - min) / 15.0;
    put_half(block, 0, d);
    put_half(block, 2, min);
    let inverse = reciprocal(d);
    let level = |v: f32| (((v - min) * inverse + 0.5) as u8).min(15);
    for j in 0..16 {
        block[4 + j] = level(values[j]) | level(values[j + 16]) << 4;
    }
}

/// Fits the scale and the offset.
pub fn fit(values: &[f32], weights: &[f32], block: &mut [u8]) {
    let fitted = line(values, weights, 15, f32::INFINITY);
    let scale = put_half(block, 0, clamped_half(fitted.scale));
    let rounded = Line { scale, offset: put_half(block, 2, clamped_half(fitted.offset)) };
    let levels: [u8; 32] = std::array::from_fn(|i| rounded.level(values[i], 15));
    pack_nibbles(&levels, &mut block[4..]);
}
