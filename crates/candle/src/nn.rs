//! Layers with the names, constructors and results of `candle_nn` and `candle_core::quantized`, whose weights are
//! resident on the device.
//!
//! The functions [`linear`], [`embedding`], .. read their weights from a `VarBuilder` as those of `candle_nn` do; the
//! types' `new` take tensors. Layers are for inference: `backward` through one is an error, not a gradient of zero.
//! Each call copies its input to the device and its output back; a whole network as one [`crate::compile`]d function
//! does that once.

use candle_nn::{Conv1dConfig, Conv2dConfig, LayerNormConfig, VarBuilder};
use tallow::{Device, Module as _};

use crate::convert::to_resident;
use crate::error::fail;
use crate::op::{CompiledOp, compile};
pub use crate::qmatmul::QMatMul;
use crate::rows::{Op, RowOp, check_ids, op};

type Tensor = candle_core::Tensor;
type Result<T> = candle_core::Result<T>;

/// `x w^T + b`: `candle_nn::Linear`.
#[derive(Clone)]
pub struct Linear(Op);

impl Linear {
    /// A layer of weights `[out, in]` and a bias `[out]` on [`crate::device`].
    ///
    /// # Errors
    /// When shapes or types do not fit, or the device's memory does not suffice.
    pub fn new(weight: Tensor, bias: Option<Tensor>) -> Result<Linear> {
        Linear::on(&weight, bias.as_ref(), &crate::device())
    }

    /// [`Linear::new`] on a device.
    ///
    /// # Errors
    /// As there.
    pub fn on(weight: &Tensor, bias: Option<&Tensor>, device: &Device) -> Result<Linear> {
        let (out, _) = weight.dims2()?;
        check_bias(bias, out)?;
        let weight = to_resident(weight, device)?;
        let bias = bias.map(|b| to_resident(b, device)).transpose()?;
        let layer = tallow::nn::Linear::new(weight, bias);
        Ok(Linear(op(RowOp::new("linear", 1, device, move |x| layer.forward(x)))))
    }
}

fn check_bias(bias: Option<&Tensor>, out: usize) -> Result<()> {
    match bias.map(Tensor::dims1).transpose()? {
        Some(found) if found != out => fail(format!("a bias of {found} elements for {out} outputs")),
        Some(_) | None => Ok(()),
    }
}

/// A table of vectors, looked up by number: `candle_nn::Embedding`.
#[derive(Clone)]
pub struct Embedding {
    op: Op,
    entries: usize,
}

impl Embedding {
    /// A layer of a table `[entries, hidden_size]` on [`crate::device`].
    ///
    /// # Errors
    /// When the table has other extents, or the device's memory does not suffice.
    pub fn new(embeddings: Tensor, hidden_size: usize) -> Result<Embedding> {
        Embedding::on(&embeddings, hidden_size, &crate::device())
    }

    /// [`Embedding::new`] on a device.
    ///
    /// # Errors
    /// As there.
    pub fn on(embeddings: &Tensor, hidden_size: usize, device: &Device) -> Result<Embedding> {
        let (entries, width) = embeddings.dims2()?;
        if width != hidden_size {
            return fail(format!("a table of rows of {width}, not {hidden_size}"));
        }
        let table = to_resident(embeddings, device)?;
        let layer = RowOp::new("embedding", 0, device, move |ids| table.embedding(ids));
        Ok(Embedding { op: op(layer), entries })
    }
}

/// `(x - mean) / sqrt(variance + eps) * w + b` over the last axis: `candle_nn::LayerNorm`.
#[derive(Clone)]
pub struct LayerNorm(Op);

impl LayerNorm {
    /// A layer with weights and a bias of the last axis on [`crate::device`].
    ///
    /// # Errors
    /// When shapes do not fit, or the device's memory does not suffice.
    pub fn new(weight: Tensor, bias: Tensor, eps: f64) -> Result<LayerNorm> {
        LayerNorm::on(&candle_nn::LayerNorm::new(weight, bias, eps), &crate::device())
    }

    /// A layer with weights of the last axis on [`crate::device`].
    ///
    /// # Errors
    /// As [`LayerNorm::new`].
    pub fn new_no_bias(weight: Tensor, eps: f64) -> Result<LayerNorm> {
        LayerNorm::on(&candle_nn::LayerNorm::new_no_bias(weight, eps), &crate::device())
    }

    /// What Candle's layer does, on a device.
    ///
    /// # Errors
    /// As [`LayerNorm::new`].
    pub fn on(layer: &candle_nn::LayerNorm, device: &Device) -> Result<LayerNorm> {
        let width = layer.weight().dims1()?;
        check_bias(layer.bias(), width)?;
        let (eps, weight) = (layer.eps(), to_resident(layer.weight(), device)?);
        let bias = layer.bias().map(|b| to_resident(b, device)).transpose()?;
        if !layer.remove_mean() {
            let (norm, bias) = (tallow::nn::RmsNorm::new(weight, eps), bias);
            return Ok(LayerNorm(op(RowOp::new("rms_norm", 1, device, move |x| {
                let y = norm.forward(x)?;
                bias.as_ref().map_or(Ok(y.clone()), |bias| y.broadcast_add(bias))
            }))));
        }
        let norm = match bias {
            Some(bias) => tallow::nn::LayerNorm::new(weight, bias, eps),
            None => tallow::nn::LayerNorm::new_no_bias(weight, eps),
        };
        Ok(LayerNorm(op(RowOp::new("layer_norm", 1, device, move |x| norm.forward(x)))))
    }
}

/// `x / sqrt(mean(x^2) + eps) * w` over the last axis: `candle_nn::RmsNorm`.
#[derive(Clone)]
pub struct RmsNorm(LayerNorm);

impl RmsNorm {
    /// A layer with weights of the last axis on [`crate::device`].
    ///
    /// # Errors
    /// When the weights have several axes, or the device's memory does not suffice.
    pub fn new(weight: Tensor, eps: f64) -> Result<RmsNorm> {
        RmsNorm::on(weight, eps, &crate::device())
    }

    /// [`RmsNorm::new`] on a device.
    ///
    /// # Errors
    /// As there.
    pub fn on(weight: Tensor, eps: f64, device: &Device) -> Result<RmsNorm> {
        Ok(RmsNorm(LayerNorm::on(&candle_nn::LayerNorm::rms_norm(weight, eps), device)?))
    }
}

/// A convolution along one axis: `candle_nn::Conv1d`.
#[derive(Clone)]
pub struct Conv1d(CompiledOp<1>);

impl Conv1d {
    /// A layer of kernels `[out, in / groups, size]` and a bias `[out]` on [`crate::device`].
    ///
    /// # Errors
    /// When shapes do not fit, or the device's memory does not suffice.
    pub fn new(weight: Tensor, bias: Option<Tensor>, config: Conv1dConfig) -> Result<Conv1d> {
        Conv1d::on(&weight, bias.as_ref(), config, &crate::device())
    }

    /// [`Conv1d::new`] on a device.
    ///
    /// # Errors
    /// As there.
    pub fn on(
        weight: &Tensor,
        bias: Option<&Tensor>,
        config: Conv1dConfig,
        device: &Device,
    ) -> Result<Conv1d> {
        let (out, _, _) = weight.dims3()?;
        let (weight, bias) = convolution(weight, bias, out, device)?;
        let Conv1dConfig { padding, stride, dilation, groups, cudnn_fwd_algo: _ } = config;
        let op = compile(move |[x]: &[tallow::Tensor; 1]| {
            let y = x.conv1d(&weight, padding, stride, dilation, groups)?;
            bias.as_ref().map_or(Ok(y.clone()), |b| y.broadcast_add(&b.reshape((1, out, 1))?))
        });
        Ok(Conv1d(op.named("conv1d").on(device)))
    }
}

/// A convolution along two axes: `candle_nn::Conv2d`.
#[derive(Clone)]
pub struct Conv2d(CompiledOp<1>);

impl Conv2d {
    /// A layer of kernels `[out, in / groups, height, width]` and a bias `[out]` on [`crate::device`].
    ///
    /// # Errors
    /// When shapes do not fit, or the device's memory does not suffice.
    pub fn new(weight: Tensor, bias: Option<Tensor>, config: Conv2dConfig) -> Result<Conv2d> {
        Conv2d::on(&weight, bias.as_ref(), config, &crate::device())
    }

    /// [`Conv2d::new`] on a device.
    ///
    /// # Errors
    /// As there.
    pub fn on(
        weight: &Tensor,
        bias: Option<&Tensor>,
        config: Conv2dConfig,
        device: &Device,
    ) -> Result<Conv2d> {
        let (out, _, _, _) = weight.dims4()?;
        let (weight, bias) = convolution(weight, bias, out, device)?;
        let Conv2dConfig { padding, stride, dilation, groups, cudnn_fwd_algo: _ } = config;
        let op = compile(move |[x]: &[tallow::Tensor; 1]| {
            let y = x.conv2d(&weight, padding, stride, dilation, groups)?;
            bias.as_ref().map_or(Ok(y.clone()), |b| y.broadcast_add(&b.reshape((1, out, 1, 1))?))
        });
        Ok(Conv2d(op.named("conv2d").on(device)))
    }
}

/// Kernels and bias on the device.
fn convolution(
    weight: &Tensor,
    bias: Option<&Tensor>,
    out: usize,
    device: &Device,
) -> Result<(tallow::Tensor, Option<tallow::Tensor>)> {
    check_bias(bias, out)?;
    Ok((to_resident(weight, device)?, bias.map(|b| to_resident(b, device)).transpose()?))
}

/// The same for the layers of one op.
macro_rules! module {
    ($($layer:ident, $self:ident => $op:expr;)*) => {$(
        impl std::fmt::Debug for $layer {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(stringify!($layer))
            }
        }

        impl candle_core::Module for $layer {
            fn forward(&$self, xs: &Tensor) -> Result<Tensor> {
                xs.apply_op1_arc($op)
            }
        }
    )*};
}
module! {
    Linear, self => self.0.clone();
    LayerNorm, self => self.0.clone();
    RmsNorm, self => self.0.0.clone();
    Conv1d, self => op(self.0.clone());
    Conv2d, self => op(self.0.clone());
}

impl std::fmt::Debug for Embedding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Embedding({} entries)", self.entries)
    }
}

impl candle_core::Module for Embedding {
    fn forward(&self, ids: &Tensor) -> Result<Tensor> {
        check_ids(ids, self.entries)?;
        ids.apply_op1_arc(self.op.clone())
    }
}

/// [`Linear`] with the weights of `vb`, as `candle_nn::linear` reads them.
///
/// # Errors
/// When `vb` lacks a tensor, or the device's memory does not suffice.
pub fn linear(in_dim: usize, out_dim: usize, vb: VarBuilder) -> Result<Linear> {
    let layer = candle_nn::linear(in_dim, out_dim, vb)?;
    Linear::on(layer.weight(), layer.bias(), &crate::device())
}

/// [`Linear`] without a bias, as `candle_nn::linear_no_bias` reads it.
///
/// # Errors
/// As [`linear`].
pub fn linear_no_bias(in_dim: usize, out_dim: usize, vb: VarBuilder) -> Result<Linear> {
    let layer = candle_nn::linear_no_bias(in_dim, out_dim, vb)?;
    Linear::on(layer.weight(), None, &crate::device())
}

/// [`Embedding`] with the table of `vb`, as `candle_nn::embedding` reads it.
///
/// # Errors
/// As [`linear`].
pub fn embedding(in_size: usize, out_size: usize, vb: VarBuilder) -> Result<Embedding> {
    Embedding::on(candle_nn::embedding(in_size, out_size, vb)?.embeddings(), out_size, &crate::device())
}

/// [`LayerNorm`] with the weights of `vb`, as `candle_nn::layer_norm` reads them.
///
/// # Errors
/// As [`linear`].
pub fn layer_norm<C: Into<LayerNormConfig>>(size: usize, config: C, vb: VarBuilder) -> Result<LayerNorm> {
    LayerNorm::on(&candle_nn::layer_norm(size, config, vb)?, &crate::device())
}

/// [`RmsNorm`] with the weights of `vb`, as `candle_nn::rms_norm` reads them.
///
/// # Errors
/// As [`linear`].
pub fn rms_norm(size: usize, eps: f64, vb: VarBuilder) -> Result<RmsNorm> {
    Ok(RmsNorm(LayerNorm::on(&candle_nn::rms_norm(size, eps, vb)?.into_inner(), &crate::device())?))
}

/// [`Conv1d`] with the weights of `vb`, as `candle_nn::conv1d` reads them.
///
/// # Errors
/// As [`linear`].
pub fn conv1d(
    in_channels: usize,
    out_channels: usize,
    kernel_size: usize,
    config: Conv1dConfig,
    vb: VarBuilder,
) -> Result<Conv1d> {
    let layer = candle_nn::conv1d(in_channels, out_channels, kernel_size, config, vb)?;
    Conv1d::on(layer.weight(), layer.bias(), config, &crate::device())
}

/// [`Conv2d`] with the weights of `vb`, as `candle_nn::conv2d` reads them.
///
/// # Errors
/// As [`linear`].
pub fn conv2d(
    in_channels: usize,
    out_channels: usize,
    kernel_size: usize,
    config: Conv2dConfig,
    vb: VarBuilder,
) -> Result<Conv2d> {
    let layer = candle_nn::conv2d(in_channels, out_channels, kernel_size, config, vb)?;
    Conv2d::on(layer.weight(), layer.bias(), config, &crate::device())
}
