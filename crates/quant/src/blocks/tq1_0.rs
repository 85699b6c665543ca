//! TQ1_0: 256 values of -1, 0 or 1, and a scale.
//!
//! | bytes | field |
//! |---|---|
//! | 0..32 | byte `l` holds elements `l`, `l + 32` .. `l + 128` |
//! | 32..48 | byte `l` holds elements `160 + l`, `160 + l + 16` .. `160 + l + 64` |
//! | 48..52 | byte `l` holds elements `240 + l`, `240 + l + 4` .. `240 + l + 12` |
//! | 52..54 | `d`, f16 |
//!
//! Five base-3 digits (each value plus 1, the first the highest) are a number below 243, stored as the fraction
//! of 256 that begins with it: multiplied by a power of 3 modulo 256, the next digit is the integer part of
//! three times the fraction. The value is `(digit - 1) * d`.

use super::{half_at, largest_magnitude, put_half, reciprocal};

/// Where the scale lies in the block.
const D: usize = 52;

const POWERS: [u8; 5] = [1, 3, 9, 27, 81];

/// Byte and digit in which element `i` lies.
#[inline(always)]
fn position(i: usize) -> (usize, usize) {
    match i {
        0..160 => (i % 32, i / 32),
        160..240 => (32 + i % 16, (i - 160) / 16),
        _ => (48 + i % 4, (i - 240) / 4),
    }
}

/// The value of element `i` of 256.
#[inline(always)]
pub fn element(block: &[u8], i: usize) -> f32 {
    let (byte, digit) = position(i);
    let fraction = block[byte].wrapping_mul(POWERS[digit]);
    let q = (u16::from(fraction) * 3) >> 8;
    f32::from(q as i8 - 1) * half_at(block, D)
}

/// Scales 256 values so that the largest magnitude becomes 1, and rounds half away from zero.
pub fn quantize(values: &[f32], block: &mut [u8]) {
    let d = largest_magnitude(values);
    let inverse = reciprocal(d);
    let mut numbers = [0u16; D];
    for (i, v) in values.iter().enumerate() {
        let (byte, digit) = position(i);
        // Clamped for what is not finite, which has no good digit.
        let q = (v * inverse).round().clamp(-1.0, 1.0) as i8 + 1;
        numbers[byte] += q as u16 * u16::from(POWERS[4 - digit]);
    }
    for (byte, number) in block.iter_mut().zip(numbers) {
        // Rounded up: a fraction just below the number's would begin with another digit.
        *byte = (number * 256).div_ceil(243) as u8;
    }
    put_half(block, D, d);
}
