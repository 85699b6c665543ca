//! Q5_0: `d` (f16), 4 bytes whose bit `i` is the upper bit of element `i`, then 16 bytes of nibbles; byte `j`
//! holds elements `j` (low) and `j + 16` (high). The value is `(q - 16) * d`.

use super::weighted::{Levels, Uniform, scale};
use super::{clamped_half, half_at, largest, nibble, pack_five_bits, put_half, reciprocal};

/// Where the upper bits start in the block.
const HIGH: usize = 2;
/// Where the nibbles start in the block.
const QUANTS: usize = 6;

/// The value of element `i` of 32.
#[inline(always)]
pub fn element(block: &[u8], i: usize) -> f32 {
    let high = block[HIGH + i / 8] >> (i % 8) & 1;
    f32::from((nibble(&block[QUANTS..], i) | high << 4) as i8 - 16) * half_at(block, 0)
}

/// Scales 32 values so that the first of the largest magnitude becomes -16, the end of the range.
pub fn quantize(values: &[f32], block: &mut [u8]) {
    let d = largest(values) / -16.0;
    put_half(block, 0, d);
    let inverse = reciprocal(d);
    let levels = std::array::from_fn(|i| ((values[i] * inverse + 16.5) as u8).min(31));
    let (head, nibbles) = block.split_at_mut(QUANTS);
    pack_five_bits(&levels, &mut head[HIGH..], nibbles);
}

/// Fits the scale.
pub fn fit(values: &[f32], weights: &[f32], block: &mut [u8]) {
    let grid = Uniform { half: 16 };
    let d = put_half(block, 0, clamped_half(scale(values, weights, grid)));
    let inverse = reciprocal(d);
    let levels: [u8; 32] = std::array::from_fn(|i| grid.nearest(values[i] * inverse));
    let (head, nibbles) = block.split_at_mut(QUANTS);
    pack_five_bits(&levels, &mut head[HIGH..], nibbles);
}
