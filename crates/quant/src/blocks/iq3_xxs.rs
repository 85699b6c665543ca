//! IQ3_XXS: 256 elements in 8 groups of 32, each with a 4-bit scale.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | `d`, f16 |
//! | 2..66 | bytes that each choose a point of the codebook for 4 elements |
//! | 66..98 | a word a group: 7 sign bits for each 8 elements, and the scale in the upper 4 bits |
//!
//! The eighth sign of each 8 elements makes the number of minus signs even.
//! The value is `d * (0.5 + scale) / 2 * level`, with its sign.

use std::sync::LazyLock;

use super::codebook::{Coded, Points, coded, magnitudes};
use super::{all_signs, half_at, put_half, signed, word_at};
use crate::grids::IQ3_XXS;

/// The codebook as levels.
static POINTS: LazyLock<Points> =
    LazyLock::new(|| Points::new(IQ3_XXS.len(), 4, |point, digit| level(IQ3_XXS[point], digit)));

/// The level of digit `i` of a point.
#[inline(always)]
fn level(point: u16, i: usize) -> f32 {
    let digit = point >> (i * 3) & 7;
    // The levels are 8 apart, but the last one, 62.
    f32::from(4 + 8 * digit + (digit + 1) / 8 * 2)
}

/// The value of element `i` of 256.
#[inline(always)]
pub fn element(block: &[u8], i: usize) -> f32 {
    let word = word_at(block, 66 + i / 32 * 4);
    let scale = half_at(block, 0) * (0.5 + (word >> 28) as f32) * 0.5;
    let level = level(IQ3_XXS[usize::from(block[2 + i / 4])], i % 4);
    signed(scale * level, all_signs((word >> (i / 8 % 4 * 7)) as u8), i % 8)
}

/// Fits points and scales.
pub fn fit(values: &[f32], weights: &[f32], block: &mut [u8]) {
    let (magnitudes, signs) = magnitudes(values, weights, true);
    let made: Coded<8> = coded(&magnitudes, weights, &[&POINTS], 15, 1.0 / 4.0);
    put_half(block, 0, made.d * 4.0);
    for (byte, point) in block[2..66].iter_mut().zip(&made.points) {
        *byte = *point as u8;
    }
    for (group, bytes) in block[66..].as_chunks_mut::<4>().0.iter_mut().enumerate() {
        let signs = (0..4).map(|l| u32::from(signs[group * 4 + l] & 0x7f) << (7 * l)).sum::<u32>();
        bytes.copy_from_slice(&(signs | u32::from(made.scales[group]) << 28).to_le_bytes());
    }
}
