//! Layers of neural networks as compositions of primitive operations. No pass knows their names: what makes
//! each of them one kernel is that its reductions run over the same rows.

use tallow_ir::DType;

pub use crate::activation::{hard_sigmoid, leaky_relu, mish, selu, sigmoid, silu};
use crate::error::Result;
use crate::shape::Axis;
use crate::tensor::Tensor;

/// `e^x / sum(e^x)` along an axis.
///
/// # Errors
/// When the axis does not exist or the elements are no floats.
pub fn softmax(x: &Tensor, axis: impl Axis) -> Result<Tensor> {
    let axis = axis.of(x.shape(), "softmax")?;
    // The largest element is subtracted so that no exponential overflows.
    let exp = x.broadcast_sub(&x.max_keepdim(axis)?)?.exp()?;
    exp.broadcast_div(&exp.sum_keepdim(axis)?)
}

/// `log(softmax(x))` along an axis, exact also where the softmax rounds to 0.
///
/// # Errors
/// When the axis does not exist or the elements are no floats.
pub fn log_softmax(x: &Tensor, axis: impl Axis) -> Result<Tensor> {
    let axis = axis.of(x.shape(), "log_softmax")?;
    let shifted = x.broadcast_sub(&x.max_keepdim(axis)?)?;
    let sum = shifted.exp()?.sum_keepdim(axis)?;
    shifted.broadcast_sub(&sum.log()?)
}

/// `(x - mean) / sqrt(variance + epsilon) * alpha + beta` over the last axis (Ba et al., arXiv 1607.06450).
/// 16-bit floats are computed in f32.
///
/// # Errors
/// When shapes or element types do not fit.
pub fn layer_norm(x: &Tensor, alpha: &Tensor, beta: &Tensor, epsilon: f64) -> Result<Tensor> {
    let wide = widen(x)?;
    let axis = crate::shape::D::Minus1;
    let centered = wide.broadcast_sub(&wide.mean_keepdim(axis)?)?;
    let variance = centered.sqr()?.mean_keepdim(axis)?;
    let normal = centered.broadcast_mul(&variance.affine(1.0, epsilon)?.sqrt()?.recip()?)?;
    normal.to_dtype(x.dtype())?.broadcast_mul(alpha)?.broadcast_add(beta)
}

/// `x / sqrt(mean(x^2) + epsilon) * alpha` over the last axis (Zhang & Sennrich, arXiv 1910.07467).
/// 16-bit floats are computed in f32.
///
/// # Errors
/// When shapes or element types do not fit.
pub fn rms_norm(x: &Tensor, alpha: &Tensor, epsilon: f64) -> Result<Tensor> {
    let wide = widen(x)?;
    let mean = wide.sqr()?.mean_keepdim(crate::shape::D::Minus1)?;
    let normal = wide.broadcast_mul(&mean.affine(1.0, epsilon)?.sqrt()?.recip()?)?;
    normal.to_dtype(x.dtype())?.broadcast_mul(alpha)
}

fn widen(x: &Tensor) -> Result<Tensor> {
    match x.dtype() {
        DType::F8E4M3 | DType::F16 | DType::BF16 => x.to_dtype(DType::F32),
        DType::U8
        | DType::U32
        | DType::I16
        | DType::I32
        | DType::I64
        | DType::F32
        | DType::F64
        | DType::Block(_) => Ok(x.clone()),
    }
}
