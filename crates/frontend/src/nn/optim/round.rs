//! Rounding to bf16 by chance.

use tallow_ir::DType;

use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// A factor that moves a bf16 number by more than half the distance to the next one, whatever its 8 bits are (128 to 255 of
/// its last place), and by less than one and a half: 128 / 256 of it is a half, 255 / 256 of it nearly one.
const STEP: f64 = 1.01 / 256.0;

/// f32 numbers as bf16, each rounded up or down by chance, so that the mean of many roundings is the number itself. Small
/// steps of large parameters then count on average, where rounding to nearest loses each of them. Draws are from the
/// sequence that [`crate::Device::set_seed`] starts. Numbers below 2^-126 and beyond the range of bf16 round to nearest.
///
/// # Errors
/// When the elements are not f32, or as [`Tensor::rand`].
pub fn round_stochastically(x: &Tensor) -> Result<Tensor> {
    if x.dtype() != DType::F32 {
        let expected = DType::F32.to_string();
        return Err(Error::UnexpectedDType { op: "round_stochastically", expected, got: x.dtype() });
    }
    let to_bf16 = |x: &Tensor| x.to_dtype(DType::BF16)?.to_dtype(DType::F32);
    let near = to_bf16(x)?;
    // Exact: both have the same exponent, or neighbouring ones.
    let rest = x.sub(&near)?;
    // The bf16 number on the other side of x.
    let is_farther = x.abs()?.gt(&near.abs()?)?;
    let away = is_farther.where_cond(&near.affine(1.0 + STEP, 0.0)?, &near.affine(1.0 - STEP, 0.0)?)?;
    let other = to_bf16(&away)?;
    // E[result] = near + p (other - near) = x. Draws are multiples of 2^-24, and p one of 2^-16 at least.
    let p = rest.div(&other.sub(&near)?)?;
    let drawn = Tensor::rand(0f32, 1.0, x.sym_shape(), x.device())?;
    // False where p is NaN: for a number that bf16 has, the numbers may be one, and for NaN and infinity.
    drawn.lt(&p)?.where_cond(&other, &near)?.to_dtype(DType::BF16)
}
