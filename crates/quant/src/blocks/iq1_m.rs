//! IQ1_M: 256 elements in 16 groups of 16, each with a 3-bit scale; each 8 elements with the sign of a shift.
//!
//! | bytes | field |
//! |---|---|
//! | 0..32 | low 8 bits of the number of a point of the codebook, a byte for each 8 elements |
//! | 32..48 | a nibble for each 8 elements, the first low: high 3 bits of the number, and whether the shift is negative |
//! | 48..56 | four 16-bit words: in each the scales of 4 groups, the first lowest, and on top a quarter of `d`, an f16, the lowest first |
//!
//! The value is `d * (2 * scale + 1) * (level + shift)`; a level is -1, 0 or 1, a shift 1/8 or -1/8.

use std::sync::LazyLock;

use super::codebook::{Coded, Points, coded};
use super::{level1, short_at};
use crate::grids::IQ1;

/// The codebook as levels: all points with the shift up, then all with the shift down.
static POINTS: LazyLock<Points> = LazyLock::new(|| {
    let count = IQ1.len();
    Points::new(2 * count, 8, |p, i| level1(IQ1[p % count], i, p >= count))
});

/// Where the scales start in the block.
const SCALES: usize = 48;

/// The value of element `i` of 256.
#[inline(always)]
pub fn element(block: &[u8], i: usize) -> f32 {
    let nibble = block[32 + i / 16] >> (i / 8 % 2 * 4);
    let point = usize::from(block[i / 8]) | usize::from(nibble & 7) << 8;
    let scale = short_at(block, SCALES + i / 64 * 2) >> (i / 16 % 4 * 3) & 7;
    let quarter = |j: usize| short_at(block, SCALES + 2 * j) >> 12 << (4 * j);
    let d = half::f16::from_bits(quarter(0) | quarter(1) | quarter(2) | quarter(3)).to_f32();
    d * f32::from(2 * scale + 1) * level1(IQ1[point], i % 8, nibble & 8 != 0)
}

/// Fits points, shifts and scales.
pub fn fit(values: &[f32], weights: &[f32], block: &mut [u8]) {
    let made: Coded<16> = coded(values, weights, &[&POINTS], 7, 1.0);
    block.fill(0);
    for (piece, &point) in made.points[..32].iter().enumerate() {
        let negative = usize::from(point) >= IQ1.len();
        let number = usize::from(point) % IQ1.len();
        block[piece] = number as u8;
        block[32 + piece / 2] |= ((number >> 8) as u8 | u8::from(negative) << 3) << (piece % 2 * 4);
    }
    let d = half::f16::from_f32(made.d).to_bits();
    for (j, bytes) in block[SCALES..].as_chunks_mut::<2>().0.iter_mut().enumerate() {
        let scales = (0..4).map(|l| u16::from(made.scales[4 * j + l]) << (3 * l)).sum::<u16>();
        bytes.copy_from_slice(&(scales | (d >> (4 * j) & 0xf) << 12).to_le_bytes());
    }
}
