//! TQ2_0: 64 bytes of 2-bit values; of each half of 128 elements, byte `l` of 32 holds elements `l`, `l + 32`,
//! `l + 64`, `l + 96` from low to high. Then `d` (f16). The value is `(q - 1) * d`.

use super::{half_at, largest_magnitude, put_half, reciprocal, two_bits};

/// Where the scale lies in the block.
const D: usize = 64;

/// The value of element `i` of 256.
#[inline(always)]
pub fn element(block: &[u8], i: usize) -> f32 {
    f32::from(two_bits(block, i) as i8 - 1) * half_at(block, D)
}

/// Scales 256 values so that the largest magnitude becomes 1, and rounds half away from zero.
pub fn quantize(values: &[f32], block: &mut [u8]) {
    let d = largest_magnitude(values);
    let inverse = reciprocal(d);
    block.fill(0);
    for (i, v) in values.iter().enumerate() {
        // Clamped for what is not finite, which has no good level.
        let q = (v * inverse).round().clamp(-1.0, 1.0) as i8 + 1;
        block[i / 128 * 32 + i % 32] |= (q as u8) << (i % 128 / 32 * 2);
    }
    put_half(block, D, d);
}
