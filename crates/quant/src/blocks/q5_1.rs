//! Q5_1: `d`, `m` (f16), 4 bytes whose bit `i` is the upper bit of element `i`, then 16 bytes of nibbles; byte
//! `j` holds elements `j` (low) and `j + 16` (high). The value is `d * q + m`.

use super::weighted::{Line, line};
use super::{clamped_half, half_at, nibble, pack_five_bits, put_half, range, reciprocal};

/// Where the upper bits start in the block.
const HIGH: usize = 4;
/// Where the nibbles start in the block.
const QUANTS: usize = 8;

/// The value of element `i` of 32.
#[inline(always)]
pub fn element(block: &[u8], i: usize) -> f32 {
    let high = block[HIGH + i / 8] >> (i % 8) & 1;
    half_at(block, 0) * f32::from(nibble(&block[QUANTS..], i) | high << 4) + half_at(block, 2)
}

/// Spreads 32 levels from the smallest of 32 values to the largest.
pub fn quantize(values: &[f32], block: &mut [u8]) {
    let (min, max) = range(values);
    let d = (max - min) / 31.0;
    put_half(block, 0, d);
    put_half(block, 2, min);
    let inverse = reciprocal(d);
    let levels = std::array::from_fn(|i| (((values[i] - min) * inverse + 0.5) as u8).min(31));
    let (head, nibbles) = block.split_at_mut(QUANTS);
    pack_five_bits(&levels, &mut head[HIGH..], nibbles);
}

/// Fits the scale and the offset.
pub fn fit(values: &[f32], weights: &[f32], block: &mut [u8]) {
    let fitted = line(values, weights, 31, f32::INFINITY);
    let scale = put_half(block, 0, clamped_half(fitted.scale));
    let rounded = Line { scale, offset: put_half(block, 2, clamped_half(fitted.offset)) };
    let levels: [u8; 32] = std::array::from_fn(|i| rounded.level(values[i], 31));
    let (head, nibbles) = block.split_at_mut(QUANTS);
    pack_five_bits(&levels, &mut head[HIGH..], nibbles);
}
