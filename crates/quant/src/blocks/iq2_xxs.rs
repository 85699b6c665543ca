//! IQ2_XXS: 256 elements in 8 groups of 32, each with a 4-bit scale.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | `d`, f16 |
//! | 2..66 | 8 bytes a group: 4 bytes that each choose a point of the codebook for 8 elements, then a word with 7 sign bits for each of the 4, and the scale in its upper 4 bits |
//!
//! The eighth sign of each 8 elements makes the number of minus signs even.
//! The value is `d * (0.5 + scale) / 4 * level`, with its sign.

use std::sync::LazyLock;

use super::codebook::{Coded, Points, coded, magnitudes};
use super::{all_signs, half_at, level2, put_half, signed, word_at};
use crate::grids::IQ2_XXS;

/// The codebook as levels.
static POINTS: LazyLock<Points> =
    LazyLock::new(|| Points::new(IQ2_XXS.len(), 8, |point, digit| level2(IQ2_XXS[point], digit)));

/// The value of element `i` of 256.
#[inline(always)]
pub fn element(block: &[u8], i: usize) -> f32 {
    let (at, l) = (2 + i / 32 * 8, i / 8 % 4);
    let word = word_at(block, at + 4);
    let scale = half_at(block, 0) * (0.5 + (word >> 28) as f32) * 0.25;
    let level = level2(IQ2_XXS[usize::from(block[at + l])], i % 8);
    signed(scale * level, all_signs((word >> (7 * l)) as u8), i % 8)
}

/// Fits points and scales.
pub fn fit(values: &[f32], weights: &[f32], block: &mut [u8]) {
    let (magnitudes, signs) = magnitudes(values, weights, true);
    let made: Coded<8> = coded(&magnitudes, weights, &[&POINTS], 15, 1.0 / 8.0);
    put_half(block, 0, made.d * 8.0);
    for (group, bytes) in block[2..].as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let mut word = u32::from(made.scales[group]) << 28;
        for l in 0..4 {
            bytes[l] = made.points[group * 4 + l] as u8;
            word |= u32::from(signs[group * 4 + l] & 0x7f) << (7 * l);
        }
        bytes[4..].copy_from_slice(&word.to_le_bytes());
    }
}
