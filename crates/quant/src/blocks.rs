//! The block arithmetic of each format: what a block's bytes mean, and how values become one.
//!
//! A module a format. `element(block, i)` is the definition of the format: the value of element `i`
//! as a function of the block's bytes, in the order of operations of ggml's reference, in f32 with
//! no fused multiply-add. `quantize(values, block)` is ggml's reference quantizer without
//! importance weights (`quantize_row_*_ref` in `ggml-quants.c`), of the formats where files are to be
//! equal to ggml's byte for byte. `fit(values, weights, block)` minimizes the weighted squared error,
//! by searches of this crate.

pub mod bf16;
pub mod codebook;
pub mod f16;
pub mod f32;
pub mod f64;
pub mod fit;
pub mod i16;
pub mod i32;
pub mod i64;
pub mod i8;
pub mod iq1_m;
pub mod iq1_s;
pub mod iq2_s;
pub mod iq2_xs;
pub mod iq2_xxs;
pub mod iq3_s;
pub mod iq3_xxs;
pub mod iq4_nl;
pub mod iq4_xs;
pub mod mxfp4;
pub mod nvfp4;
pub mod q2_k;
pub mod q3_k;
pub mod q4_0;
pub mod q4_1;
pub mod q4_k;
pub mod q5_0;
pub mod q5_1;
pub mod q5_k;
pub mod q6_k;
pub mod q8_0;
pub mod q8_1;
pub mod q8_k;
pub mod tq1_0;
pub mod tq2_0;
pub mod weighted;

/// The f16 at byte `at` of a block, as f32.
#[inline(always)]
fn half_at(block: &[u8], at: usize) -> f32 {
    half::f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// Rounds a scale to f16, writes it at byte `at`, and returns what was written.
fn put_half(block: &mut [u8], at: usize, value: f32) -> f32 {
    let rounded = half::f16::from_f32(value);
    block[at..at + 2].copy_from_slice(&rounded.to_le_bytes());
    rounded.to_f32()
}

/// A scale as f16 holds it; those beyond its range become the largest.
fn clamped_half(value: f32) -> f32 {
    let largest = half::f16::MAX.to_f32();
    half::f16::from_f32(value.clamp(-largest, largest)).to_f32()
}

/// `1 / d`, and 0 for a block of zeros.
fn reciprocal(d: f32) -> f32 {
    if d == 0.0 { 0.0 } else { 1.0 / d }
}

/// The nibble of element `i` of 32 in 16 bytes: byte `j` holds elements `j` (low) and `j + 16` (high).
#[inline(always)]
fn nibble(bytes: &[u8], i: usize) -> u8 {
    (bytes[i % 16] >> (i / 16 * 4)) & 0xf
}

/// Of 2-bit fields, that of element `i` of 256: each half of 128 elements has 32 bytes, and byte `l` of them
/// holds elements `l`, `l + 32`, `l + 64`, `l + 96` from low to high.
#[inline(always)]
fn two_bits(bytes: &[u8], i: usize) -> u8 {
    (bytes[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2)) & 3
}

/// Packs 2-bit fields into 64 bytes, in the order of [`two_bits`].
fn pack_two_bits(levels: &[u8; 256], bytes: &mut [u8]) {
    for (levels, bytes) in levels.as_chunks::<128>().0.iter().zip(bytes.as_chunks_mut::<32>().0) {
        for (l, byte) in bytes.iter_mut().enumerate() {
            let field = |at: usize| levels[l + at] & 3;
            *byte = field(0) | field(32) << 2 | field(64) << 4 | field(96) << 6;
        }
    }
}

/// Packs 32 nibbles into 16 bytes, in the order of [`nibble`].
fn pack_nibbles(levels: &[u8], bytes: &mut [u8]) {
    for (j, byte) in bytes.iter_mut().enumerate() {
        *byte = levels[j] & 0xf | levels[j + 16] << 4;
    }
}

/// Smallest and largest of `values`.
fn range(values: &[f32]) -> (f32, f32) {
    values.iter().fold((values[0], values[0]), |(min, max), &v| (min.min(v), max.max(v)))
}

/// The first value of the largest magnitude.
fn largest(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |largest: f32, &v| if v.abs() > largest.abs() { v } else { largest })
}

/// Largest magnitude.
fn largest_magnitude(values: &[f32]) -> f32 {
    values.iter().fold(0.0f32, |max, v| max.max(v.abs()))
}

/// Packs 32 levels of 5 bits: the upper bits, bit `i` that of element `i`, and the nibbles.
fn pack_five_bits(levels: &[u8; 32], high: &mut [u8], nibbles: &mut [u8]) {
    high.fill(0);
    for (i, level) in levels.iter().enumerate() {
        high[i / 8] |= (level >> 4) << (i % 8);
    }
    for (j, byte) in nibbles.iter_mut().enumerate() {
        *byte = levels[j] & 0xf | levels[j + 16] << 4;
    }
}

/// The 16-bit word at byte `at` of a block.
#[inline(always)]
fn short_at(block: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([block[at], block[at + 1]])
}

/// The 32-bit word at byte `at` of a block.
#[inline(always)]
fn word_at(block: &[u8], at: usize) -> u32 {
    u32::from(short_at(block, at)) | u32::from(short_at(block, at + 2)) << 16
}

/// Eight signs of which the low 7 bits of `seven` are given: the last makes the number of minus signs even.
#[inline(always)]
fn all_signs(seven: u8) -> u8 {
    let seven = seven & 0x7f;
    seven | (seven.count_ones() as u8) << 7
}

/// `-value` if bit `i` of `signs` is set, else `value`.
#[inline(always)]
fn signed(value: f32, signs: u8, i: usize) -> f32 {
    if signs >> i & 1 == 0 { value } else { -value }
}

/// The level of digit `i` of a point of the IQ2 codebooks: 8, 25 or 43.
#[inline(always)]
fn level2(point: u16, i: usize) -> f32 {
    let digit = point >> (2 * i) & 3;
    f32::from(8 + 17 * digit + digit / 2)
}

/// The level of digit `i` of a point of the IQ1 codebook, and its shift.
#[inline(always)]
fn level1(point: u16, i: usize, negative: bool) -> f32 {
    f32::from(point >> (2 * i) & 3) - 1.0 + if negative { -0.125 } else { 0.125 }
}
