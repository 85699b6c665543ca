//! Q4_K: 256 elements in 8 groups of 32, each with a 6-bit scale and a 6-bit minimum.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | `d`, f16: scale of the scales |
//! | 2..4 | `dmin`, f16: scale of the minima |
//! | 4..16 | scales and minima: groups 0-3 in the low 6 bits of bytes 0-3 (scales) and 4-7 (minima), groups 4-7 with their low 4 bits in bytes 8-11 (scale low, minimum high nibble) and their high 2 bits on top of bytes 0-3 and 4-7 |
//! | 16..144 | nibbles: 32 bytes hold group `2p` (low) and `2p + 1` (high) |
//!
//! The value is `d * scale * q - dmin * minimum`.

use super::fit::{nearest_int, scale_and_minimum};
use super::weighted::{Lined, lined};
use super::{half_at, put_half};

/// Where the packed scales start in the block.
const SCALES: usize = 4;
/// Where the nibbles start in the block.
const QUANTS: usize = 16;

/// The value of element `i` of 256.
#[inline(always)]
pub fn element(block: &[u8], i: usize) -> f32 {
    let group = i / 32;
    let (scale, minimum) = scale_and_min(block, group);
    let q = (block[QUANTS + group / 2 * 32 + i % 32] >> (group % 2 * 4)) & 0xf;
    half_at(block, 0) * f32::from(scale) * f32::from(q) - half_at(block, 2) * f32::from(minimum)
}

/// The 6-bit scale and minimum of a group, here and in Q5_K.
#[inline(always)]
pub fn scale_and_min(block: &[u8], group: usize) -> (u8, u8) {
    let packed = &block[SCALES..QUANTS];
    if group < 4 {
        (packed[group] & 63, packed[group + 4] & 63)
    } else {
        let low = packed[group + 4];
        (low & 0xf | packed[group - 4] >> 6 << 4, low >> 4 | packed[group] >> 6 << 4)
    }
}

/// Fits scale and minimum of each group, rounds them to 6 bits, then rounds the values to the grid
/// that the rounded scales span.
pub fn quantize(values: &[f32], block: &mut [u8]) {
    let mut levels = [0u8; 256];
    let mut scales = [0.0f32; 8];
    let mut minima = [0.0f32; 8];
    for (group, x) in values.as_chunks::<32>().0.iter().enumerate() {
        let sum_squares = x.iter().fold(0.0f32, |sum, v| sum + v * v);
        let rms = (sum_squares / 32.0).sqrt();
        let mut weights = [0.0f32; 32];
        for (w, v) in weights.iter_mut().zip(x) {
            *w = rms + v.abs();
        }
        (scales[group], minima[group]) = scale_and_minimum(x, &weights, &mut levels[group * 32..][..32]);
    }
    let max_scale = scales.iter().fold(0.0f32, |max, &s| if s > max { s } else { max });
    let max_minimum = minima.iter().fold(0.0f32, |max, &m| if m > max { m } else { max });

    block.fill(0);
    let (whole_scales, whole_minima) = (to_six_bits(&scales, max_scale), to_six_bits(&minima, max_minimum));
    pack_scales(&mut block[SCALES..QUANTS], &whole_scales, &whole_minima);
    let d = put_half(block, 0, max_scale / 63.0);
    let dmin = put_half(block, 2, max_minimum / 63.0);

    for (group, x) in values.as_chunks::<32>().0.iter().enumerate() {
        let (scale, minimum) = scale_and_min(block, group);
        let scale = d * f32::from(scale);
        // With no scale to divide by, the levels of the fit stay; they are multiplied by 0 anyway.
        if scale == 0.0 {
            continue;
        }
        let minimum = dmin * f32::from(minimum);
        for (level, v) in levels[group * 32..].iter_mut().zip(x) {
            *level = nearest_int((v + minimum) / scale).clamp(0, 15) as u8;
        }
    }
    pack_levels(&levels, &mut block[QUANTS..]);
}

/// Fits scales and minima of the groups.
pub fn fit(values: &[f32], weights: &[f32], block: &mut [u8]) {
    let made = lined::<8>(values, weights, 15, 63);
    put_head(&made, block);
    pack_levels(&made.levels, &mut block[QUANTS..]);
}

/// Writes the scales and minima, here and in Q5_K.
pub fn put_head(made: &Lined<8>, block: &mut [u8]) {
    block[SCALES..QUANTS].fill(0);
    pack_scales(&mut block[SCALES..QUANTS], &made.scales, &made.minima);
    put_half(block, 0, made.d);
    put_half(block, 2, made.dmin);
}

/// Packs the low 4 bits of the levels, here and in Q5_K.
pub fn pack_levels(levels: &[u8; 256], quants: &mut [u8]) {
    for (pair, quants) in levels.as_chunks::<64>().0.iter().zip(quants.as_chunks_mut::<32>().0) {
        for (l, q) in quants.iter_mut().enumerate() {
            *q = pair[l] & 0xf | pair[l + 32] << 4;
        }
    }
}

/// Rounds scales or minima to 6 bits of their largest.
fn to_six_bits(all: &[f32; 8], max: f32) -> [u8; 8] {
    let inverse = if max > 0.0 { 63.0 / max } else { 0.0 };
    all.map(|one| (nearest_int(inverse * one) as u8).min(63))
}

/// Packs scales and minima of 6 bits into the 12 zeroed bytes.
fn pack_scales(packed: &mut [u8], scales: &[u8; 8], minima: &[u8; 8]) {
    for (group, (&scale, &minimum)) in scales.iter().zip(minima).enumerate() {
        if group < 4 {
            packed[group] = scale;
            packed[group + 4] = minimum;
        } else {
            packed[group + 4] = scale & 0xf | minimum << 4;
            packed[group - 4] |= scale >> 4 << 6;
            packed[group] |= minimum >> 4 << 6;
        }
    }
}
