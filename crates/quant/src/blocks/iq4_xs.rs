//! IQ4_XS: 256 elements in 8 groups of 32, each with a 6-bit scale.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | `d`, f16 |
//! | 2..4 | high 2 bits of the scales, group 0 lowest |
//! | 4..8 | low 4 bits of the scales, group 0 lowest |
//! | 8..136 | nibbles: 16 bytes a group; byte `j` holds elements `j` (low) and `j + 16` (high) of the group |
//!
//! The value is `d * (scale - 32) * LEVELS[q]`, with the levels of IQ4_NL.

use super::iq4_nl::LEVELS;
use super::{half_at, nibble};

/// The value of element `i` of 256.
#[inline(always)]
pub fn element(block: &[u8], i: usize) -> f32 {
    let group = i / 32;
    let low = block[4 + group / 2] >> (group % 2 * 4) & 0xf;
    let high = block[2 + group / 4] >> (group % 4 * 2) & 3;
    let scale = (low | high << 4) as i8 - 32;
    let q = nibble(&block[8 + group * 16..], i % 32);
    half_at(block, 0) * f32::from(scale) * f32::from(LEVELS[usize::from(q)])
}
