//! IQ1_S: 256 elements in 8 groups of 32, each with a 3-bit scale and the sign of a shift.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | `d`, f16 |
//! | 2..34 | low 8 bits of the number of a point of the codebook, a byte for each 8 elements |
//! | 34..50 | a 16-bit word a group: high 3 bits of its 4 points' numbers, the scale, and in the top bit whether the shift is negative |
//!
//! The value is `d * (2 * scale + 1) * (level + shift)`; a level is -1, 0 or 1, a shift 1/8 or -1/8.

use super::{half_at, level1, short_at};
use crate::grids::IQ1;

/// The value of element `i` of 256.
#[inline(always)]
pub fn element(block: &[u8], i: usize) -> f32 {
    let word = short_at(block, 34 + i / 32 * 2);
    let high = word >> (i / 8 % 4 * 3) & 7;
    let point = usize::from(block[2 + i / 8]) | usize::from(high) << 8;
    let scale = half_at(block, 0) * f32::from(2 * (word >> 12 & 7) + 1);
    scale * level1(IQ1[point], i % 8, word >> 15 != 0)
}
