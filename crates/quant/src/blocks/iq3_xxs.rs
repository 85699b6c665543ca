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

use super::{all_signs, half_at, signed, word_at};
use crate::grids::IQ3_XXS;

/// The value of element `i` of 256.
#[inline(always)]
pub fn element(block: &[u8], i: usize) -> f32 {
    let word = word_at(block, 66 + i / 32 * 4);
    let scale = half_at(block, 0) * (0.5 + (word >> 28) as f32) * 0.5;
    let digit = IQ3_XXS[usize::from(block[2 + i / 4])] >> (i % 4 * 3) & 7;
    // The levels are 8 apart, but the last one, 62.
    let level = f32::from(4 + 8 * digit + (digit + 1) / 8 * 2);
    signed(scale * level, all_signs((word >> (i / 8 % 4 * 7)) as u8), i % 8)
}
