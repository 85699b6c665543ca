//! IQ4_NL: `d` (f16), then 16 bytes of nibbles; byte `j` holds elements `j` (low) and `j + 16` (high).
//! The value is `LEVELS[q] * d`.

use super::weighted::{LEVELS, Levels, Uneven, scale};
use super::{clamped_half, half_at, nibble, pack_nibbles, put_half, reciprocal};

/// The value of element `i` of 32.
#[inline(always)]
pub fn element(block: &[u8], i: usize) -> f32 {
    f32::from(LEVELS[usize::from(nibble(&block[2..], i))]) * half_at(block, 0)
}

/// Fits the scale.
pub fn fit(values: &[f32], weights: &[f32], block: &mut [u8]) {
    let d = clamped_half(scale(values, weights, Uneven));
    let inverse = reciprocal(d);
    let levels: [u8; 32] = std::array::from_fn(|i| Uneven.nearest(values[i] * inverse));
    put_half(block, 0, d);
    pack_nibbles(&levels, &mut block[2..]);
}
