//! Q2_K: 256 elements in 16 groups of 16, each with a 4-bit scale and a 4-bit minimum.
//!
//! | bytes | field |
//! |---|---|
//! | 0..16 | a byte a group: scale (low nibble) and minimum (high) |
//! | 16..80 | 2-bit values; of each half of 128 elements, byte `l` of 32 holds elements `l`, `l + 32`, `l + 64`, `l + 96` from low to high |
//! | 80..82 | `d`, f16: scale of the scales |
//! | 82..84 | `dmin`, f16: scale of the minima |
//!
//! The value is `d * scale * q - dmin * minimum`.

use super::weighted::lined;
use super::{half_at, pack_two_bits, put_half, two_bits};

/// Where the levels start in the block.
const QUANTS: usize = 16;
/// Where the scale of the scales lies in the block.
const D: usize = 80;
/// Where the scale of the minima lies in the block.
const D_MIN: usize = 82;

/// The value of element `i` of 256.
#[inline(always)]
pub fn element(block: &[u8], i: usize) -> f32 {
    let group = block[i / 16];
    let q = two_bits(&block[QUANTS..], i);
    half_at(block, D) * f32::from(group & 0xf) * f32::from(q) - half_at(block, D_MIN) * f32::from(group >> 4)
}

/// Fits scales and minima of the groups.
pub fn fit(values: &[f32], weights: &[f32], block: &mut [u8]) {
    let made = lined::<16>(values, weights, 3, 15);
    for (group, byte) in block[..QUANTS].iter_mut().enumerate() {
        *byte = made.scales[group] | made.minima[group] << 4;
    }
    pack_two_bits(&made.levels, &mut block[QUANTS..D]);
    put_half(block, D, made.d);
    put_half(block, D_MIN, made.dmin);
}
