//! NVFP4: 64 elements in 4 groups of 16; a byte of scale a group, then 8 bytes a group of 4-bit floats (e2m1):
//! byte `j` holds elements `j` (low) and `j + 8` (high) of the group.
//!
//! A scale is a float of 4 exponent and 3 mantissa bits (e4m3, its sign bit ignored, 0x7f for zero). The value is
//! `LEVELS[q] * scale / 2`, with the levels of MXFP4, which are twice the floats.

use super::largest_magnitude;
use super::mxfp4::LEVELS;

/// The value of element `i` of 64.
#[inline(always)]
pub fn element(block: &[u8], i: usize) -> f32 {
    let group = i / 16;
    let q = block[4 + group * 8 + i % 8] >> (i % 16 / 8 * 4) & 0xf;
    f32::from(LEVELS[usize::from(q)]) * half_scale(block[group])
}

/// Half of what a scale's byte stands for.
#[inline(always)]
fn half_scale(byte: u8) -> f32 {
    let (exponent, mantissa) = (u32::from(byte >> 3 & 0xf), u32::from(byte & 7));
    match (byte, exponent) {
        (0x7f, _) => 0.0,
        // Subnormal: units of 2^-9, halved.
        (_, 0) => mantissa as f32 / 1024.0,
        // 7 is the bias of the exponent, 127 that of f32's; one less is the half.
        _ => f32::from_bits((exponent + 127 - 7 - 1) << 23 | mantissa << 20),
    }
}

/// Takes the scale of each group, of the few around that which makes its largest magnitude the largest level, that
/// leaves the least error.
pub fn fit(values: &[f32], weights: &[f32], block: &mut [u8]) {
    let (scales, quants) = block.split_at_mut(4);
    let groups = values.as_chunks::<16>().0.iter().zip(weights.as_chunks::<16>().0);
    for ((scale, quants), (x, w)) in scales.iter_mut().zip(quants.as_chunks_mut::<8>().0).zip(groups) {
        // Scales rise with their bytes up to 0x7e.
        let reach = largest_magnitude(x) / f32::from(LEVELS[7]);
        let first = (0..0x7e).find(|&byte| half_scale(byte) >= reach).unwrap_or(0x7e);
        // Three steps below cut the largest values off, eight steps above make them half the largest level.
        let mut least = f32::INFINITY;
        for byte in first.saturating_sub(3)..=(first + 8).min(0x7e) {
            let d = half_scale(byte);
            let levels: [u8; 16] = std::array::from_fn(|i| level(x[i], d));
            let error = (0..16).fold(0.0, |sum, i| {
                let difference = x[i] - d * f32::from(LEVELS[usize::from(levels[i])]);
                sum + w[i] * difference * difference
            });
            if error < least {
                least = error;
                *scale = byte;
                for (j, quant) in quants.iter_mut().enumerate() {
                    *quant = levels[j] | levels[j + 8] << 4;
                }
            }
        }
    }
}

/// The number of the level nearest to a value on the scale `d`; the fourth bit is the sign.
fn level(value: f32, d: f32) -> u8 {
    let magnitude = value.abs();
    let above = |pair: &[i8]| u8::from(magnitude > d * f32::from(pair[0] + pair[1]) / 2.0);
    let number = LEVELS[..8].windows(2).map(above).sum::<u8>();
    number | u8::from(value < 0.0 && number > 0) << 3
}
