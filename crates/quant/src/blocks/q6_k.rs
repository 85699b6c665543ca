//! Q6_K: 256 elements in 16 groups of 16, each with a signed 8-bit scale.
//!
//! | bytes | field |
//! |---|---|
//! | 0..128 | `ql`: low nibbles; of each half of 128 elements, byte `l` of 64 holds elements `l` (low) and `l + 64` (high) |
//! | 128..192 | `qh`: upper 2 bits; of each half, byte `l` of 32 holds elements `l`, `l + 32`, `l + 64`, `l + 96` from low to high |
//! | 192..208 | scales, signed bytes |
//! | 208..210 | `d`, f16 |
//!
//! The value is `d * scale * (q - 32)`.

use super::fit::{GROUP_MAX_EPS, nearest_int, signed_scale};
use super::weighted::{Uniform, scaled};
use super::{half_at, put_half};

/// Where the upper bits start in the block.
const HIGH: usize = 128;
/// Where the scales start in the block.
const SCALES: usize = 192;
/// Where the scale of the scales lies in the block.
const D: usize = 208;

/// The value of element `i` of 256.
#[inline(always)]
pub fn element(block: &[u8], i: usize) -> f32 {
    let (half, l) = (i / 128, i % 128);
    let low = (block[half * 64 + l % 64] >> (l / 64 * 4)) & 0xf;
    let high = (block[HIGH + half * 32 + l % 32] >> (l / 32 * 2)) & 3;
    let q = (low | high << 4) as i8 - 32;
    let scale = block[SCALES + i / 16] as i8;
    half_at(block, D) * f32::from(scale) * f32::from(q)
}

/// Fits a scale to each group, rounds the scales to 8 bits, then rounds the values to the grid that
/// the rounded scales span.
pub fn quantize(values: &[f32], block: &mut [u8]) {
    let mut levels = [0u8; 256];
    let mut scales = [0.0f32; 16];
    let mut largest = 0.0f32;
    for (group, x) in values.as_chunks::<16>().0.iter().enumerate() {
        scales[group] = signed_scale(x, &mut levels[group * 16..][..16]);
        if scales[group].abs() > largest.abs() {
            largest = scales[group];
        }
    }
    block.fill(0);
    if largest.abs() < GROUP_MAX_EPS {
        return;
    }
    let inverse = -128.0 / largest;
    let d = put_half(block, D, 1.0 / inverse);
    for (group, x) in values.as_chunks::<16>().0.iter().enumerate() {
        let scale = nearest_int(inverse * scales[group]).min(127) as i8;
        block[SCALES + group] = scale as u8;
        let scale = d * f32::from(scale);
        // With no scale to divide by, the levels of the fit stay; they are multiplied by 0 anyway.
        if scale == 0.0 {
            continue;
        }
        for (level, v) in levels[group * 16..].iter_mut().zip(x) {
            *level = (nearest_int(v / scale).clamp(-32, 31) + 32) as u8;
        }
    }
    pack_levels(&levels, block);
}

/// Fits scales of the groups.
pub fn fit(values: &[f32], weights: &[f32], block: &mut [u8]) {
    let made = scaled::<_, 16>(values, weights, Uniform { half: 32 }, 128);
    for (byte, &scale) in block[SCALES..D].iter_mut().zip(&made.scales) {
        *byte = scale as i8 as u8;
    }
    put_half(block, D, made.d);
    pack_levels(&made.levels, block);
}

/// Packs levels of 6 bits.
fn pack_levels(levels: &[u8; 256], block: &mut [u8]) {
    for (half, levels) in levels.as_chunks::<128>().0.iter().enumerate() {
        for l in 0..64 {
            block[half * 64 + l] = levels[l] & 0xf | (levels[l + 64] & 0xf) << 4;
        }
        for l in 0..32 {
            let high = |at: usize| levels[l + at] >> 4;
            block[HIGH + half * 32 + l] = high(0) | high(32) << 2 | high(64) << 4 | high(96) << 6;
        }
    }
}
