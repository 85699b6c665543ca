//! Lazy tensors of random numbers, and whether two are close.

use tallow::{DType, Device, Result, Tensor};

/// Numbers from -1 to 1 that do not repeat, f32.
///
/// # Errors
///
/// When the device fails.
pub fn random(seed: u32, shape: &[usize], device: &Device) -> Result<Tensor> {
    let n = shape.iter().product::<usize>() as u32;
    let value = |i: u32| {
        let mixed = (i ^ seed.wrapping_mul(0x9e37_79b9)).wrapping_mul(0x85eb_ca6b);
        let mixed = (mixed ^ (mixed >> 13)).wrapping_mul(0xc2b2_ae35);
        ((mixed ^ (mixed >> 16)) >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    Tensor::from_vec((0..n).map(value).collect::<Vec<f32>>(), shape, device)
}

/// Asserts that each element of `got` is within `tolerance` of that of `want`, or of that part of it where it is over 1.
///
/// # Panics
///
/// It is not, or computing fails.
pub fn assert_close(got: &Tensor, want: &Tensor, tolerance: f32) {
    let values = |x: &Tensor| {
        let values = x.to_dtype(DType::F32).and_then(|x| x.to_flat_vec::<f32>());
        values.unwrap_or_else(|why| panic!("{why}"))
    };
    let (got, want) = (values(got), values(want));
    assert_eq!(got.len(), want.len());
    for (i, (got, want)) in got.iter().zip(&want).enumerate() {
        assert!((got - want).abs() <= tolerance * want.abs().max(1.0), "element {i}: {got}, not {want}");
    }
}
