//! How far predictions are from what they should be, as a scalar.

use crate::error::{Error, Result};
use crate::masks::positions;
use crate::nn::ops::log_softmax;
use crate::tensor::Tensor;

/// The mean of `-x[i, target[i]]`: `x` has a row of logarithms of probabilities for each class in `target`.
///
/// # Errors
/// When `x` is no matrix, or `target` no vector of integers of as many elements as `x` has rows.
pub fn nll(x: &Tensor, target: &Tensor) -> Result<Tensor> {
    match (x.const_dims()?, target.const_dims()?) {
        ([rows, _], [count]) if rows == count => {
            let picked = match x.origin() {
                None => x.gather(&target.unsqueeze(1)?, 1)?,
                Some(_) => of_targets(x, target)?,
            };
            picked.sum_all()?.affine(-1.0 / *rows as f64, 0.0)
        }
        _ => {
            let (lhs, rhs) = (x.sym_shape().clone(), target.sym_shape().clone());
            Err(Error::ShapeMismatchBinaryOp { op: "nll", lhs, rhs })
        }
    }
}

/// The element of each row that `target` names; like a lookup, but as a sum of a row of which all others are left out. So the
/// rows need not be written, and the gradient is that of a choice, not a matrix of zeros into which one element a row is
/// added.
fn of_targets(x: &Tensor, target: &Tensor) -> Result<Tensor> {
    let classes = x.const_dim(1)?;
    let class = positions(&classes.into(), x.device())?.reshape((1, classes))?;
    // As a lookup does, clamp to the last class.
    let target = target.as_indices("nll")?.minimum(classes.saturating_sub(1) as u32)?;
    let is_it = class.broadcast_eq(&target.unsqueeze(1)?)?;
    is_it.where_cond(x, &x.zeros_like()?)?.sum(1)
}

/// [`nll`] of the logarithm of the softmax of each row of `x`.
///
/// # Errors
/// As there, and when the elements are no floats.
pub fn cross_entropy(x: &Tensor, target: &Tensor) -> Result<Tensor> {
    if x.rank() != 2 {
        let (got, shape) = (x.rank(), x.sym_shape().clone());
        return Err(Error::UnexpectedNumberOfDims { op: "cross_entropy", expected: 2, got, shape });
    }
    nll(&log_softmax(x, 1)?, target)
}

/// The mean of the squared differences.
///
/// # Errors
/// When shapes or element types differ, or the elements are no floats.
pub fn mse(x: &Tensor, target: &Tensor) -> Result<Tensor> {
    x.sub(target)?.sqr()?.mean_all()
}

/// The mean of `-(t log s + (1 - t) log(1 - s))`, where `s` is the sigmoid of `x`.
///
/// # Errors
/// When shapes or element types differ, or the elements are no floats.
pub fn binary_cross_entropy_with_logit(x: &Tensor, target: &Tensor) -> Result<Tensor> {
    // -log s = log(1 + e^-x) and -log(1 - s) = x + log(1 + e^-x), so the sum is (1 - t) x + log(1 + e^-x),
    // which is max(x, 0) - t x + log(1 + e^-|x|): finite for every finite x.
    let tail = x.abs()?.neg()?.exp()?.affine(1.0, 1.0)?.log()?;
    // Not `relu`: at 0 the halves of the gradients of the maximum and of the tail add up.
    x.maximum(0.0)?.sub(&x.mul(target)?)?.add(&tail)?.mean_all()
}

/// The mean of half the squared difference where that is at most `delta`, of `delta * (|d| - delta / 2)`
/// beyond (Huber, 1964).
///
/// # Errors
/// When shapes or element types differ, or the elements are no floats.
pub fn huber(x: &Tensor, target: &Tensor, delta: f64) -> Result<Tensor> {
    let distance = x.sub(target)?.abs()?;
    let near = distance.sqr()?.affine(0.5, 0.0)?;
    let far = distance.affine(delta, -0.5 * delta * delta)?;
    distance.le(delta)?.where_cond(&near, &far)?.mean_all()
}
