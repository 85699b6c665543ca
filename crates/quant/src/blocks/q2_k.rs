//! Q2_K: 256 elements in 16 groups of 16, each with a 4-bit scale and a 4-bit minimum.
//!
//! | bytes | field |
//! |---|---|
//! | 0..16 | a byte a group: scale (low nibble) and minimum (high) |
//! | 16..80 | 2-bit values; of each half of 128 elements, byte `l` of 32 holds elements `l`, `l + 32`, `l + 64`, `l + 96` from low to high |
//! | 80..82 | `d`, f16: scale of the scales |
//! | 82..84 | `dmin`, f16: scale of the minima |
//!
//! The value is `d * scale * q - dmin * minimum`.

use super::{half_at, two_bits};

/// The value of element `i` of 256.
#[inline(always)]
pub fn element(block: &[u8], i: usize) -> f32 {
    let group = block[i / 16];
    let q = two_bits(&block[16..], i);
    half_at(block, 80) * f32::from(group & 0xf) * f32::from(q) - half_at(block, 82) * f32::from(group >> 4)
}
