//! Q4_0: `d` (f16), then 16 bytes of nibbles; byte `j` holds elements `j` (low) and `j + 16` (high).
//! The value is `(q - 8) * d`.

use super::weighted::{Levels, Uniform, scale};
use super::{clamped_half, half_at, pack_nibbles, put_half, reciprocal};

/// The value of element `i` of 32.
#[inline(always)]
pub fn element(block: &[u8], i: usize) -> f32 {
    let nibble = (block[2 + i % 16] >> (i / 16 * 4)) & 0xf;
    f32::from(nibble as i8 - 8) * half_at(block, 0)
}

/// Scales 32 values so that the first of the largest magnitude becomes -8, the end of the range.
pub fn quantize(values: &[f32], block: &mut [u8]) {
    let mut largest = 0.0f32;
    for &v in values {
        if v.abs() > largest.abs() {
            largest = v;
        }
    }
    let d = largest / -8.0;
    put_half(block, 0, d);
    let inverse = reciprocal(d);
    // Adding 8.5 and truncating rounds q + 8 to nearest; +8 itself would give 16, hence the clamp.
    let level = |v: f32| ((v * inverse + 8.5) as u8).min(15);
    for j in 0..16 {
        block[2 + j] = level(values[j]) | level(values[j + 16]) << 4;
    }
}

/// Fits the scale.
pub fn fit(values: &[f32], weights: &[f32], block: &mut [u8]) {
    let grid = Uniform { half: 8 };
    let d = put_half(block, 0, clamped_half(scale(values, weights, grid)));
    let inverse = reciprocal(d);
    let levels: [u8; 32] = std::array::from_fn(|i| grid.nearest(values[i] * inverse));
    pack_nibbles(&levels, &mut block[2..]);
}
