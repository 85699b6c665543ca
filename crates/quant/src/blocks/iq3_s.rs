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

use super::{half_at, signed};
use crate::grids::IQ3_S;

/// The value of element `i` of 256.
#[inline(always)]
pub fn element(block: &[u8], i: usize) -> f32 {
    let high = block[66 + i / 32] >> (i / 4 % 8) & 1;
    let point = usize::from(block[2 + i / 4]) | usize::from(high) << 8;
    let scale = block[106 + i / 64] >> (i / 32 % 2 * 4) & 0xf;
    let scale = half_at(block, 0) * f32::from(1 + 2 * scale);
    let level = f32::from((IQ3_S[point] >> (i % 4 * 3) & 7) * 2 + 1);
    signed(scale * level, block[74 + i / 8], i % 8)
}
