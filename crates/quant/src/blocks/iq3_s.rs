//! IQ3_S: 256 elements in 8 groups of 32, each with a 4-bit scale.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | `d`, f16 |
//! | 2..66 | low 8 bits of the number of a point of the codebook, a byte for each 4 elements |
//! | 66..74 | the highest bit of the points' numbers, a bit for each 4 elements |
//! | 74..106 | signs, a bit an element |
//! | 106..110 | scales, two groups a byte, the first low |
//!
//! The value is `d * (1 + 2 * scale) * level`, with its sign.

use std::sync::LazyLock;

use super::codebook::{Coded, Points, coded, magnitudes};
use super::{half_at, put_half, signed};
use crate::grids::IQ3_S;

/// The codebook as levels.
static POINTS: LazyLock<Points> =
    LazyLock::new(|| Points::new(IQ3_S.len(), 4, |point, digit| level(IQ3_S[point], digit)));

/// The level of digit `i` of a point.
#[inline(always)]
fn level(point: u16, i: usize) -> f32 {
    f32::from((point >> (i * 3) & 7) * 2 + 1)
}

/// The value of element `i` of 256.
#[inline(always)]
pub fn element(block: &[u8], i: usize) -> f32 {
    let high = block[66 + i / 32] >> (i / 4 % 8) & 1;
    let point = usize::from(block[2 + i / 4]) | usize::from(high) << 8;
    let scale = block[106 + i / 64] >> (i / 32 % 2 * 4) & 0xf;
    let scale = half_at(block, 0) * f32::from(1 + 2 * scale);
    let level = level(IQ3_S[point], i % 4);
    signed(scale * level, block[74 + i / 8], i % 8)
}

/// Fits points and scales.
pub fn fit(values: &[f32], weights: &[f32], block: &mut [u8]) {
    let (magnitudes, signs) = magnitudes(values, weights, false);
    let made: Coded<8> = coded(&magnitudes, weights, &[&POINTS], 15, 1.0);
    put_half(block, 0, made.d);
    block[66..74].fill(0);
    for (piece, point) in made.points.iter().enumerate() {
        block[2 + piece] = *point as u8;
        block[66 + piece / 8] |= ((point >> 8) as u8) << (piece % 8);
    }
    block[74..106].copy_from_slice(&signs);
    for (byte, pair) in block[106..].iter_mut().zip(made.scales.as_chunks::<2>().0) {
        *byte = pair[0] | pair[1] << 4;
    }
}
