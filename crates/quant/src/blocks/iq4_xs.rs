//! IQ4_XS: 256 elements in 8 groups of 32, each with a 6-bit scale.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | `d`, f16 |
//! | 2..4 | high 2 bits of the scales, group 0 lowest |
//! | 4..8 | low 4 bits of the scales, group 0 lowest |
//! | 8..136 | nibbles: 16 bytes a group; byte `j` holds elements `j` (low) and `j + 16` (high) of the group |
//!
//! The value is `d * (scale - 32) * LEVELS[q]`, with the levels of IQ4_NL.

use super::weighted::{LEVELS, Uneven, scaled};
use super::{half_at, nibble, pack_nibbles, put_half};

/// Where the levels start in the block.
const QUANTS: usize = 8;

/// The value of element `i` of 256.
#[inline(always)]
pub fn element(block: &[u8], i: usize) -> f32 {
    let group = i / 32;
    let low = block[4 + group / 2] >> (group % 2 * 4) & 0xf;
    let high = block[2 + group / 4] >> (group % 4 * 2) & 3;
    let scale = (low | high << 4) as i8 - 32;
    let q = nibble(&block[QUANTS + group * 16..], i % 32);
    half_at(block, 0) * f32::from(scale) * f32::from(LEVELS[usize::from(q)])
}

/// Fits scales of the groups.
pub fn fit(values: &[f32], weights: &[f32], block: &mut [u8]) {
    let made = scaled::<_, 8>(values, weights, Uneven, 32);
    block[..QUANTS].fill(0);
    put_half(block, 0, made.d);
    for (group, scale) in made.scales.iter().enumerate() {
        let scale = (scale + 32) as u8;
        block[4 + group / 2] |= (scale & 0xf) << (group % 2 * 4);
        block[2 + group / 4] |= (scale >> 4) << (group % 4 * 2);
    }
    for (levels, bytes) in made.levels.as_chunks::<32>().0.iter().zip(block[QUANTS..].as_chunks_mut::<16>().0)
    {
        pack_nibbles(levels, bytes);
    }
}
