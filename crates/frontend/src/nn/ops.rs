//! Functions of tensors alone.

pub use super::attention::sdpa;
pub use super::dropout::{Dropout, dropout};
pub use crate::activation::{hard_sigmoid, leaky_relu, mish, selu, sigmoid, silu};

use tallow_ir::DType;

use crate::error::{Error, Result};
use crate::shape::{Axis, D};
use crate::tensor::Tensor;

/// `e^x / sum(e^x)` along an axis.
///
/// # Errors
/// When the axis does not exist or the elements are no floats.
pub fn softmax(x: &Tensor, axis: impl Axis) -> Result<Tensor> {
    let axis = axis.of(x.sym_shape(), "softmax")?;
    // The largest element is subtracted so that no exponential overflows.
    let exp = x.broadcast_sub(&x.max_keepdim(axis)?.detach())?.exp()?;
    exp.broadcast_div(&exp.sum_keepdim(axis)?)
}

/// [`softmax`] along the last axis.
///
/// # Errors
/// As there.
pub fn softmax_last_dim(x: &Tensor) -> Result<Tensor> {
    softmax(x, D::Minus1)
}

/// `log(softmax(x))` along an axis, exact also where the softmax rounds to 0.
///
/// # Errors
/// When the axis does not exist or the elements are no floats.
pub fn log_softmax(x: &Tensor, axis: impl Axis) -> Result<Tensor> {
    let axis = axis.of(x.sym_shape(), "log_softmax")?;
    let shifted = x.broadcast_sub(&x.max_keepdim(axis)?.detach())?;
    let sum = shifted.exp()?.sum_keepdim(axis)?;
    shifted.broadcast_sub(&sum.log()?)
}

/// The SiLU of the first half of the last axis, times the second half (Shazeer, arXiv 2002.05202).
///
/// # Errors
/// When the last axis has no two halves, or the elements are no floats.
pub fn swiglu(x: &Tensor) -> Result<Tensor> {
    match x.chunk(2, D::Minus1)?.as_slice() {
        [gate, up] => gate.silu()?.mul(up),
        _ => {
            let why = format!("the last axis of {} has no two halves", x.sym_shape());
            Err(Error::InvalidArgument { op: "swiglu", why })
        }
    }
}

/// `(x - mean) / sqrt(variance + epsilon) * alpha + beta` over the last axis (Ba et al., arXiv 1607.06450).
/// 16-bit floats are computed in f32.
///
/// # Errors
/// When shapes or element types do not fit.
pub fn layer_norm(x: &Tensor, alpha: &Tensor, beta: &Tensor, epsilon: impl Into<f64>) -> Result<Tensor> {
    normalized(x, "layer_norm", true, epsilon.into())?.broadcast_mul(alpha)?.broadcast_add(beta)
}

/// `x / sqrt(mean(x^2) + epsilon) * alpha` over the last axis (Zhang & Sennrich, arXiv 1910.07467).
/// 16-bit floats are computed in f32.
///
/// # Errors
/// When shapes or element types do not fit.
pub fn rms_norm(x: &Tensor, alpha: &Tensor, epsilon: impl Into<f64>) -> Result<Tensor> {
    normalized(x, "rms_norm", false, epsilon.into())?.broadcast_mul(alpha)
}

/// `x`, without its mean if `centered`, divided by its root mean square over the last axis.
pub(super) fn normalized(x: &Tensor, op: &'static str, centered: bool, epsilon: f64) -> Result<Tensor> {
    let axis = D::Minus1.of(x.sym_shape(), op)?;
    let mut wide = widen(x)?;
    if centered {
        wide = wide.broadcast_sub(&wide.mean_keepdim(axis)?)?;
    }
    let scale = wide.sqr()?.mean_keepdim(axis)?.affine(1.0, epsilon)?.sqrt()?.recip()?;
    wide.broadcast_mul(&scale)?.to_dtype(x.dtype())
}

/// 16-bit floats as f32, other types as they are.
pub(super) fn widen(x: &Tensor) -> Result<Tensor> {
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

/// Channels become space: `[b, c * f^2, h, w]` to `[b, c, h * f, w * f]`.
///
/// # Errors
/// When the tensor has other axes, or the channels are no multiple of `f^2`.
pub fn pixel_shuffle(x: &Tensor, factor: usize) -> Result<Tensor> {
    let [batch, channels, height, width] = x.const_dims_of::<4>("dims4")?;
    let split = (batch, (), factor, factor, height, width);
    let fail = || Error::InvalidArgument {
        op: "pixel_shuffle",
        why: format!("{channels} channels of {} are no multiple of {factor}^2", x.sym_shape()),
    };
    if factor == 0 || !channels.is_multiple_of(factor.saturating_mul(factor)) {
        return Err(fail());
    }
    let out = (batch, channels / (factor * factor), height * factor, width * factor);
    if x.const_elem_count()? == 0 {
        return x.reshape(out);
    }
    x.reshape(split)?.permute((0, 1, 4, 2, 5, 3))?.reshape(out)
}

/// Space becomes channels: the inverse of [`pixel_shuffle`].
///
/// # Errors
/// When the tensor has other axes, or height or width are no multiple of the factor.
pub fn pixel_unshuffle(x: &Tensor, factor: usize) -> Result<Tensor> {
    let [batch, channels, height, width] = x.const_dims_of::<4>("dims4")?;
    if factor == 0 || !height.is_multiple_of(factor) || !width.is_multiple_of(factor) {
        let why = format!("height and width of {} are no multiples of {factor}", x.sym_shape());
        return Err(Error::InvalidArgument { op: "pixel_unshuffle", why });
    }
    let (rows, columns) = (height / factor, width / factor);
    x.reshape((batch, channels, rows, factor, columns, factor))?.permute((0, 1, 3, 5, 2, 4))?.reshape((
        batch,
        channels * factor * factor,
        rows,
        columns,
    ))
}

/// The borders of images (the last two of four axes) repeated outwards.
///
/// # Errors
/// When the tensor has other axes or no elements.
pub fn replication_pad2d(x: &Tensor, pad: usize) -> Result<Tensor> {
    x.const_dims_of::<4>("dims4")?;
    x.pad_with_same(2, pad, pad)?.pad_with_same(3, pad, pad)
}
