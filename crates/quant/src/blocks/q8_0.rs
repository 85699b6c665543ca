//! Q8_0: `d` (f16), then 32 signed bytes. The value is `q * d`.

use super::{half_at, put_half, reciprocal};

/// The value of element `i` of 32.
#[inline(always)]
pub fn element(block: &[u8], i: usize) -> f32 {
    f32::from(block[2 + i] as i8) * half_at(block, 0)
}

/// Scales 32 values so that the largest magnitude becomes 127; rounds half away from zero.
pub fn quantize(values: &[f32], block: &mut [u8]) {
    let mut amax = 0.0f32;
    for &v in values {
        amax = amax.max(v.abs());
    }
    let d = amax / 127.0;
    put_half(block, 0, d);
    // The levels come from the scale before its rounding to f16, as ggml has it.
    let inverse = reciprocal(d);
    for (q, v) in block[2..].iter_mut().zip(values) {
        *q = (v * inverse).round() as i8 as u8;
    }
}
