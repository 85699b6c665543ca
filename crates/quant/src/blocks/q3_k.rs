//! Q3_K: 256 elements in 16 groups of 16, each with a 6-bit scale.
//!
//! | bytes | field |
//! |---|---|
//! | 0..32 | upper bits; bit `g` of byte `l` is that of element `32 g + l` |
//! | 32..96 | lower 2 bits; of each half of 128 elements, byte `l` of 32 holds elements `l`, `l + 32`, `l + 64`, `l + 96` from low to high |
//! | 96..108 | scales: low 4 bits of groups 0-7 (low) and 8-15 (high) in the first 8 bytes; high 2 bits of groups `j`, `j + 4`, `j + 8`, `j + 12` from low to high in byte `j` of the last 4 |
//! | 108..110 | `d`, f16 |
//!
//! The value is `d * (scale - 32) * (q - 4)`.

use super::weighted::{Uniform, scaled};
use super::{half_at, pack_two_bits, put_half, two_bits};

/// Where the lower bits start in the block.
const QUANTS: usize = 32;
/// Where the scales start in the block.
const SCALES: usize = 96;
/// Where the scale of the scales lies in the block.
const D: usize = 108;

/// The value of element `i` of 256.
#[inline(always)]
pub fn element(block: &[u8], i: usize) -> f32 {
    let high = block[i % 32] >> (i / 32) & 1;
    let q = (two_bits(&block[QUANTS..], i) | high << 2) as i8 - 4;
    let group = i / 16;
    let low = block[SCALES + group % 8] >> (group / 8 * 4) & 0xf;
    let high = block[SCALES + 8 + group % 4] >> (group / 4 * 2) & 3;
    let scale = (low | high << 4) as i8 - 32;
    half_at(block, D) * f32::from(scale) * f32::from(q)
}

/// Fits scales of the groups.
pub fn fit(values: &[f32], weights: &[f32], block: &mut [u8]) {
    let made = scaled::<_, 16>(values, weights, Uniform { half: 4 }, 32);
    block.fill(0);
    for (i, level) in made.levels.iter().enumerate() {
        block[i % 32] |= (level >> 2) << (i / 32);
    }
    pack_two_bits(&made.levels, &mut block[QUANTS..SCALES]);
    for (group, scale) in made.scales.iter().enumerate() {
        let scale = (scale + 32) as u8;
        block[SCALES + group % 8] |= (scale & 0xf) << (group / 8 * 4);
        block[SCALES + 8 + group % 4] |= (scale >> 4) << (group / 4 * 2);
    }
    put_half(block, D, made.d);
}
