//! Layers that normalize.

use tallow_ir::Dim;

use crate::error::{Error, Result};
use crate::module::Module;
use crate::nn::init::{ONE, ZERO};
use crate::nn::ops::normalized;
use crate::nn::var_builder::VarBuilder;
use crate::shape::D;
use crate::tensor::Tensor;

/// Settings of [`layer_norm`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerNormConfig {
    /// Added to the variance.
    pub eps: f64,
    /// Whether the mean is taken away.
    pub remove_mean: bool,
    /// Whether there is a summand.
    pub affine: bool,
}

impl Default for LayerNormConfig {
    fn default() -> Self {
        LayerNormConfig { eps: 1e-5, remove_mean: true, affine: true }
    }
}

impl From<f64> for LayerNormConfig {
    fn from(eps: f64) -> Self {
        LayerNormConfig { eps, ..LayerNormConfig::default() }
    }
}

/// [`crate::nn::ops::layer_norm`] with its weights.
#[derive(Clone, Debug)]
pub struct LayerNorm {
    weight: Tensor,
    bias: Option<Tensor>,
    remove_mean: bool,
    epsilon: f64,
}

impl LayerNorm {
    /// With factor and summand.
    pub fn new(weight: Tensor, bias: Tensor, epsilon: f64) -> LayerNorm {
        LayerNorm { weight, bias: Some(bias), remove_mean: true, epsilon }
    }

    /// With a factor alone.
    pub fn new_no_bias(weight: Tensor, epsilon: f64) -> LayerNorm {
        LayerNorm { weight, bias: None, remove_mean: true, epsilon }
    }

    /// With a factor alone, and without taking the mean away.
    pub fn rms_norm(weight: Tensor, epsilon: f64) -> LayerNorm {
        LayerNorm { weight, bias: None, remove_mean: false, epsilon }
    }

    /// The factor, of the last axis' extent.
    pub fn weight(&self) -> &Tensor {
        &self.weight
    }

    /// The summand, of the last axis' extent.
    pub fn bias(&self) -> Option<&Tensor> {
        self.bias.as_ref()
    }

    /// What is added to the variance.
    pub fn eps(&self) -> f64 {
        self.epsilon
    }

    /// Whether the mean is taken away.
    pub fn remove_mean(&self) -> bool {
        self.remove_mean
    }
}

impl Module for LayerNorm {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let op = if self.remove_mean { "layer_norm" } else { "rms_norm" };
        let scaled = normalized(xs, op, self.remove_mean, self.epsilon)?.broadcast_mul(&self.weight)?;
        match &self.bias {
            Some(bias) => scaled.broadcast_add(bias),
            None => Ok(scaled),
        }
    }
}

/// A [`LayerNorm`] over a last axis of `size`, with `weight` and, as the settings say, `bias` of `vb`. An f64 as settings is
/// the epsilon.
///
/// # Errors
/// When one is missing or has another shape.
pub fn layer_norm(size: usize, config: impl Into<LayerNormConfig>, vb: VarBuilder<'_>) -> Result<LayerNorm> {
    let LayerNormConfig { eps, remove_mean, affine } = config.into();
    let weight = vb.get_with_hints(size, "weight", ONE)?;
    let bias = affine.then(|| vb.get_with_hints(size, "bias", ZERO)).transpose()?;
    Ok(LayerNorm { weight, bias, remove_mean, epsilon: eps })
}

/// A [`LayerNorm`] with `weight` of `vb` alone.
///
/// # Errors
/// When it is missing or has another shape.
pub fn layer_norm_no_bias(size: usize, eps: f64, vb: VarBuilder<'_>) -> Result<LayerNorm> {
    layer_norm(size, LayerNormConfig { eps, remove_mean: true, affine: false }, vb)
}

/// [`crate::nn::ops::rms_norm`] with its weights.
#[derive(Clone, Debug)]
pub struct RmsNorm(LayerNorm);

impl RmsNorm {
    /// With a factor.
    pub fn new(weight: Tensor, epsilon: f64) -> RmsNorm {
        RmsNorm(LayerNorm::rms_norm(weight, epsilon))
    }

    /// As a layer norm that leaves the mean.
    pub fn into_inner(self) -> LayerNorm {
        self.0
    }

    /// The factor, of the last axis' extent.
    pub fn weight(&self) -> &Tensor {
        self.0.weight()
    }

    /// What is added to the mean square.
    pub fn eps(&self) -> f64 {
        self.0.eps()
    }

    /// The same as [`Module::forward`], which has gradients here.
    ///
    /// # Errors
    /// As there.
    pub fn forward_diff(&self, xs: &Tensor) -> Result<Tensor> {
        self.0.forward(xs)
    }
}

impl Module for RmsNorm {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        self.0.forward(xs)
    }
}

/// An [`RmsNorm`] over a last axis of `size`, with `weight` of `vb`.
///
/// # Errors
/// When it is missing or has another shape.
pub fn rms_norm(size: usize, eps: f64, vb: VarBuilder<'_>) -> Result<RmsNorm> {
    layer_norm(size, LayerNormConfig { eps, remove_mean: false, affine: false }, vb).map(RmsNorm)
}

/// Each group of channels without its mean, divided by its standard deviation (Wu & He, arXiv 1803.08494).
/// 16-bit floats are computed in f32.
#[derive(Clone, Debug)]
pub struct GroupNorm {
    weight: Tensor,
    bias: Tensor,
    epsilon: f64,
    num_channels: usize,
    num_groups: usize,
}

impl GroupNorm {
    /// With factor and summand per channel.
    ///
    /// # Errors
    /// When the channels are no multiple of the groups.
    pub fn new(
        weight: Tensor,
        bias: Tensor,
        num_channels: usize,
        num_groups: usize,
        epsilon: f64,
    ) -> Result<GroupNorm> {
        if num_groups == 0 || !num_channels.is_multiple_of(num_groups) {
            let why = format!("{num_channels} channels do not make {num_groups} groups");
            return Err(Error::InvalidArgument { op: "group_norm", why });
        }
        Ok(GroupNorm { weight, bias, epsilon, num_channels, num_groups })
    }
}

impl Module for GroupNorm {
    /// `[batch, channels, ..]` with at least one axis more.
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let dims = xs.sym_dims();
        if dims.len() < 3 || !dims[1].is(self.num_channels as i64) {
            let why = format!("{} is not [batch, {}, ..]", xs.sym_shape(), self.num_channels);
            return Err(Error::InvalidArgument { op: "group_norm", why });
        }
        let elements = dims[1..].iter().fold(Dim::one(), |n, d| &n * d);
        let groups = Dim::from(self.num_groups);
        let each = elements.div_exact(&groups).unwrap_or(elements);
        let grouped = xs.reshape([dims[0].clone(), groups, each])?;
        let normal = normalized(&grouped, "group_norm", true, self.epsilon)?.reshape(xs.sym_shape())?;
        scaled(&normal, &self.weight, &self.bias)
    }
}

/// A [`GroupNorm`] with `weight` and `bias` of `vb`.
///
/// # Errors
/// When one is missing or has another shape, or as [`GroupNorm::new`].
pub fn group_norm(num_groups: usize, num_channels: usize, eps: f64, vb: VarBuilder<'_>) -> Result<GroupNorm> {
    let weight = vb.get_with_hints(num_channels, "weight", ONE)?;
    let bias = vb.get_with_hints(num_channels, "bias", ZERO)?;
    GroupNorm::new(weight, bias, num_channels, num_groups, eps)
}

/// `x * weight + bias`, per channel: axis 1.
pub(super) fn scaled(x: &Tensor, weight: &Tensor, bias: &Tensor) -> Result<Tensor> {
    let lift = |t: &Tensor| per_channel(t, x.rank());
    x.broadcast_mul(&lift(weight)?)?.broadcast_add(&lift(bias)?)
}

/// `[channels]` as `[channels, 1, ..]`, so that it repeats along all axes of a tensor but 1.
pub(super) fn per_channel(x: &Tensor, rank: usize) -> Result<Tensor> {
    (2..rank).try_fold(x.clone(), |t, _| t.unsqueeze(D::Minus1))
}
