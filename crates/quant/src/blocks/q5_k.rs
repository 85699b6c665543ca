//! Q5_K: 256 elements in 8 groups of 32, each with a 6-bit scale and a 6-bit minimum.
//!
//! | bytes | field |
//! |---|---|
//! | 0..16 | `d`, `dmin`, scales and minima, as in Q4_K |
//! | 16..48 | upper bits; bit `g` of byte `l` is that of element `32 g + l` |
//! | 48..176 | nibbles: 32 bytes hold group `2p` (low) and `2p + 1` (high) |
//!
//! The value is `d * scale * q - dmin * minimum`.

use super::half_at;
use super::q4_k::{pack_levels, put_head, scale_and_min};
use super::weighted::lined;

/// Where the upper bits start in the block.
const HIGH: usize = 16;
/// Where the nibbles start in the block.
const QUANTS: usize = 48;

/// The value of element `i` of 256.
#[inline(always)]
pub fn element(block: &[u8], i: usize) -> f32 {
    let group = i / 32;
    let (scale, minimum) = scale_and_min(block, group);
    let low = block[QUANTS + group / 2 * 32 + i % 32] >> (group % 2 * 4) & 0xf;
    let high = block[HIGH + i % 32] >> group & 1;
    let q = low | high << 4;
    half_at(block, 0) * f32::from(scale) * f32::from(q) - half_at(block, 2) * f32::from(minimum)
}

/// Fits scales and minima of the groups.
pub fn fit(values: &[f32], weights: &[f32], block: &mut [u8]) {
    let made = lined::<8>(values, weights, 31, 63);
    put_head(&made, block);
    block[HIGH..QUANTS].fill(0);
    for (i, level) in made.levels.iter().enumerate() {
        block[HIGH + i % 32] |= (level >> 4) << (i / 32);
    }
    pack_levels(&made.levels, &mut block[QUANTS..]);
}
