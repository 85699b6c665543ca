//! The block arithmetic of each format: what a block's bytes mean, and how values become one.
//!
//! A module a format. `element(block, i)` is the definition of the format: the value of element `i`
//! as a function of the block's bytes, in the order of operations of ggml's reference, in f32 with
//! no fused multiply-add. `quantize(values, block)` is ggml's reference quantizer without
//! importance weights (`quantize_row_*_ref` in `ggml-quants.c`).

pub mod bf16;
pub mod f16;
pub mod f32;
pub mod fit;
pub mod q4_0;
pub mod q4_k;
pub mod q6_k;
pub mod q8_0;

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

/// `1 / d`, and 0 for a block of zeros.
fn reciprocal(d: f32) -> f32 {
    if d == 0.0 { 0.0 } else { 1.0 / d }
}
