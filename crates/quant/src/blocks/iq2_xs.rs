//! IQ2_XS: 256 elements in 16 groups of 16, each with a 4-bit scale.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | `d`, f16 |
//! | 2..66 | a 16-bit word for each 8 elements: the low 9 bits choose a point of the codebook, the upper 7 are signs |
//! | 66..74 | scales, two groups a byte, the first low |
//!
//! The eighth sign of each 8 elements makes the number of minus signs even.
//! The value is `d * (0.5 + scale) / 4 * level`, with its sign.

use std::sync::LazyLock;

use super::codebook::{Coded, Points, coded, magnitudes};
use super::{all_signs, half_at, level2, put_half, short_at, signed};
use crate::grids::IQ2_XS;

/// The codebook as levels.
static POINTS: LazyLock<Points> =
    LazyLock::new(|| Points::new(IQ2_XS.len(), 8, |point, digit| level2(IQ2_XS[point], digit)));

/// The value of element `i` of 256.
#[inline(always)]
pub fn element(block: &[u8], i: usize) -> f32 {
    let word = short_at(block, 2 + i / 8 * 2);
    let scale = block[66 + i / 32] >> (i / 16 % 2 * 4) & 0xf;
    let scale = half_at(block, 0) * (0.5 + f32::from(scale)) * 0.25;
    let level = level2(IQ2_XS[usize::from(word & 511)], i % 8);
    signed(scale * level, all_signs((word >> 9) as u8), i % 8)
}

/// Fits points and scales.
pub fn fit(values: &[f32], weights: &[f32], block: &mut [u8]) {
    let (magnitudes, signs) = magnitudes(values, weights, true);
    let made: Coded<16> = coded(&magnitudes, weights, &[&POINTS], 15, 1.0 / 8.0);
    put_half(block, 0, made.d * 8.0);
    for (piece, bytes) in block[2..66].as_chunks_mut::<2>().0.iter_mut().enumerate() {
        let word = made.points[piece] | u16::from(signs[piece] & 0x7f) << 9;
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    for (byte, pair) in block[66..].iter_mut().zip(made.scales.as_chunks::<2>().0) {
        *byte = pair[0] | pair[1] << 4;
    }
}
