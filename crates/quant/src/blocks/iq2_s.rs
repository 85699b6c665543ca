//! IQ2_S: 256 elements in 16 groups of 16, each with a 4-bit scale.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | `d`, f16 |
//! | 2..34 | low 8 bits of the number of a point of the codebook, a byte for each 8 elements |
//! | 34..66 | signs, a bit an element |
//! | 66..74 | high 2 bits of the points' numbers, four a byte, the first lowest |
//! | 74..82 | scales, two groups a byte, the first low |
//!
//! The value is `d * (0.5 + scale) / 4 * level`, with its sign.

use std::sync::LazyLock;

use super::codebook::{Coded, Points, coded, magnitudes};
use super::{half_at, level2, put_half, signed};
use crate::grids::IQ2_S;

/// The codebook as levels.
static POINTS: LazyLock<Points> =
    LazyLock::new(|| Points::new(IQ2_S.len(), 8, |point, digit| level2(IQ2_S[point], digit)));

/// The value of element `i` of 256.
#[inline(always)]
pub fn element(block: &[u8], i: usize) -> f32 {
    let high = block[66 + i / 32] >> (i / 8 % 4 * 2) & 3;
    let point = usize::from(block[2 + i / 8]) | usize::from(high) << 8;
    let scale = block[74 + i / 32] >> (i / 16 % 2 * 4) & 0xf;
    let scale = half_at(block, 0) * (0.5 + f32::from(scale)) * 0.25;
    signed(scale * level2(IQ2_S[point], i % 8), block[34 + i / 8], i % 8)
}

/// Fits points and scales.
pub fn fit(values: &[f32], weights: &[f32], block: &mut [u8]) {
    let (magnitudes, signs) = magnitudes(values, weights, false);
    let made: Coded<16> = coded(&magnitudes, weights, &[&POINTS], 15, 1.0 / 8.0);
    put_half(block, 0, made.d * 8.0);
    block[34..66].copy_from_slice(&signs);
    block[66..74].fill(0);
    for (piece, point) in made.points[..32].iter().enumerate() {
        block[2 + piece] = *point as u8;
        block[66 + piece / 4] |= ((point >> 8) as u8) << (piece % 4 * 2);
    }
    for (byte, pair) in block[74..].iter_mut().zip(made.scales.as_chunks::<2>().0) {
        *byte = pair[0] | pair[1] << 4;
    }
}
