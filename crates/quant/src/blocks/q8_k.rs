//! Q8_K: `d` (f32), 256 signed bytes, then the sum of each 16 of them (16 bits). The value is `q * d`.
//!
//! Activations are rounded to this format for products with the K formats on the CPU; no file holds it.

use super::fit::nearest_int;
use super::largest;

/// Where the sums start in the block.
const SUMS: usize = 260;

/// The value of element `i` of 256.
#[inline(always)]
pub fn element(block: &[u8], i: usize) -> f32 {
    let d = f32::from_le_bytes([block[0], block[1], block[2], block[3]]);
    f32::from(block[4 + i] as i8) * d
}

/// Scales 256 values so that the first of the largest magnitude becomes -127; rounds half to even.
pub fn quantize(values: &[f32], block: &mut [u8]) {
    let largest = largest(values);
    block.fill(0);
    if largest == 0.0 {
        return;
    }
    let inverse = -127.0 / largest;
    let d: f32 = 1.0 / inverse;
    block[..4].copy_from_slice(&d.to_le_bytes());
    for (group, x) in values.as_chunks::<16>().0.iter().enumerate() {
        let mut sum = 0i16;
        for (i, v) in x.iter().enumerate() {
            let level = nearest_int(inverse * v).clamp(-128, 127) as i8;
            block[4 + group * 16 + i] = level as u8;
            sum += i16::from(level);
        }
        block[SUMS + group * 2..][..2].copy_from_slice(&sum.to_le_bytes());
    }
}
