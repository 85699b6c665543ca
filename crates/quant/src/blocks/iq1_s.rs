//! IQ1_S: 256 elements in 8 groups of 32, each with a 3-bit scale and the sign of a shift.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | `d`, f16 |
//! | 2..34 | low 8 bits of the number of a point of the codebook, a byte for each 8 elements |
//! | 34..50 | a 16-bit word a group: high 3 bits of its 4 points' numbers, the scale, and in the top bit whether the shift is negative |
//!
//! The value is `d * (2 * scale + 1) * (level + shift)`; a level is -1, 0 or 1, a shift 1/8 or -1/8.

use std::sync::LazyLock;

use super::codebook::{Coded, Points, coded};
use super::{half_at, level1, put_half, short_at};
use crate::grids::IQ1;

/// The codebook as levels, with the shift up and with the shift down.
static POINTS: LazyLock<[Points; 2]> = LazyLock::new(|| {
    [false, true].map(|negative| Points::new(IQ1.len(), 8, |p, i| level1(IQ1[p], i, negative)))
});

/// The value of element `i` of 256.
#[inline(always)]
pub fn element(block: &[u8], i: usize) -> f32 {
    let word = short_at(block, 34 + i / 32 * 2);
    let high = word >> (i / 8 % 4 * 3) & 7;
    let point = usize::from(block[2 + i / 8]) | usize::from(high) << 8;
    let scale = half_at(block, 0) * f32::from(2 * (word >> 12 & 7) + 1);
    scale * level1(IQ1[point], i % 8, word >> 15 != 0)
}

/// Fits points, shifts and scales.
pub fn fit(values: &[f32], weights: &[f32], block: &mut [u8]) {
    let [up, down] = &*POINTS;
    let made: Coded<8> = coded(values, weights, &[up, down], 7, 1.0);
    put_half(block, 0, made.d);
    for group in 0..8 {
        let mut word = u16::from(made.scales[group]) << 12 | u16::from(made.books[group]) << 15;
        for l in 0..4 {
            let point = made.points[group * 4 + l];
            block[2 + group * 4 + l] = point as u8;
            word |= point >> 8 << (3 * l);
        }
        block[34 + 2 * group..][..2].copy_from_slice(&word.to_le_bytes());
    }
}
