//! Random choices, made on the device from the sequence that [`crate::Device::set_seed`] starts.

use tallow_ir::{DType, Dim};

use crate::error::{Error, Result};
use crate::shape::{Axis, D};
use crate::tensor::Tensor;

/// Positions (u32) along an axis, drawn from `softmax(logits / temperature)` by adding Gumbel noise and taking the
/// largest (Gumbel, 1954; Maddison et al., arXiv 1411.0030); the position of the largest logit itself if the
/// temperature is not above 0.
///
/// Where two noisy logits are closer than the rounding of logarithms, devices may choose differently.
///
/// # Errors
/// When the axis does not exist, the logits are no floats, or as [`Tensor::rand`].
pub fn gumbel_softmax(logits: &Tensor, temperature: f64, axis: impl Axis) -> Result<Tensor> {
    let axis = axis.of(logits.sym_shape(), "gumbel_softmax")?;
    logits.floats("gumbel_softmax")?;
    // What is no number is not above 0 either.
    if temperature <= 0.0 || temperature.is_nan() {
        return logits.argmax(axis);
    }
    let logits = logits.to_dtype(DType::F32)?;
    let drawn = Tensor::rand(0f32, 1.0, logits.sym_shape(), logits.device())?;
    // -ln(1 - u) is exponential. u is a multiple of 2^-24: 1 - u is not 0, and where u is, the middle of what is
    // rounded to it keeps the noise finite.
    let exponential = drawn.maximum(2f32.powi(-25))?.neg()?.log1p()?.neg()?;
    let noise = exponential.log()?.neg()?;
    logits.affine(1.0 / temperature, 0.0)?.add(&noise)?.argmax(axis)
}

/// `count` positions (u32) along the last axis for each row, drawn independently, each with a probability in
/// proportion to its weight: `[.., n]` to `[.., count]`. Weights are not negative, and one of each row is above 0;
/// what other rows give is a position, but which is open.
///
/// Computed from running sums in f32. Where these are exact, as for whole numbers with a sum up to 2^23, every
/// device draws the same.
///
/// # Errors
/// For a scalar, when the last axis is empty or symbolic, the weights are no floats, or as [`Tensor::rand`].
pub fn multinomial(weights: &Tensor, count: usize) -> Result<Tensor> {
    let op = "multinomial";
    let n = weights.const_dim(D::Minus1)?;
    weights.floats(op)?;
    if n == 0 {
        return Err(Error::EmptyTensor { op, shape: weights.sym_shape().clone() });
    }
    let upto = weights.to_dtype(DType::F32)?.cumsum(D::Minus1)?;
    let total = upto.narrow(D::Minus1, n - 1, 1)?;
    let mut shape = weights.sym_dims().to_vec();
    let last = shape.len() - 1;
    shape[last] = count.into();
    // A multiple of 2^-23, so that its product with the total rounds to less than the total: the first running
    // sum above it is then that of a weight above 0.
    let unit = Tensor::rand(0f32, 1.0, &shape, weights.device())?;
    let unit = unit.affine(f64::from(1 << 23), 0.0)?.floor()?.affine(f64::from(1 << 23).recip(), 0.0)?;
    let mark = unit.broadcast_mul(&total)?;
    // How many running sums are not above the mark.
    let mut pairs: Vec<Dim> = shape.clone();
    pairs.push(n.into());
    let below =
        upto.unsqueeze(last)?.broadcast_as(&pairs)?.le(&mark.unsqueeze(last + 1)?.broadcast_as(&pairs)?)?;
    let found = below.to_dtype(DType::U32)?.sum(last + 1)?;
    found.minimum(u32::try_from(n - 1).unwrap_or(u32::MAX))
}
