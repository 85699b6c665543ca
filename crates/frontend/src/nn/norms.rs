//! Layers that normalize.

use tallow_ir::Dim;

use crate::error::{Error, Result};
use crate::module::{Module, ModuleT};
use crate::nn::ops::{layer_norm, normalized, rms_norm, widen};
use crate::shape::D;
use crate::tensor::Tensor;

/// [`layer_norm`] with its weights.
#[derive(Clone, Debug)]
pub struct LayerNorm {
    weight: Tensor,
    bias: Option<Tensor>,
    epsilon: f64,
}

impl LayerNorm {
    /// With factor and summand.
    pub fn new(weight: Tensor, bias: Tensor, epsilon: f64) -> LayerNorm {
        LayerNorm { weight, bias: Some(bias), epsilon }
    }

    /// With a factor alone.
    pub fn new_no_bias(weight: Tensor, epsilon: f64) -> LayerNorm {
        LayerNorm { weight, bias: None, epsilon }
    }
}

impl Module for LayerNorm {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        match &self.bias {
            Some(bias) => layer_norm(xs, &self.weight, bias, self.epsilon),
            None => normalized(xs, "layer_norm", true, self.epsilon)?.broadcast_mul(&self.weight),
        }
    }
}

/// [`rms_norm`] with its weights.
#[derive(Clone, Debug)]
pub struct RmsNorm {
    weight: Tensor,
    epsilon: f64,
}

impl RmsNorm {
    /// With a factor.
    pub fn new(weight: Tensor, epsilon: f64) -> RmsNorm {
        RmsNorm { weight, epsilon }
    }
}

impl Module for RmsNorm {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        rms_norm(xs, &self.weight, self.epsilon)
    }
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

/// `x * weight + bias`, per channel: axis 1.
fn scaled(x: &Tensor, weight: &Tensor, bias: &Tensor) -> Result<Tensor> {
    let lift = |t: &Tensor| per_channel(t, x.rank());
    x.broadcast_mul(&lift(weight)?)?.broadcast_add(&lift(bias)?)
}

/// `[channels]` as `[channels, 1, ..]`, so that it repeats along all axes of a tensor but 1.
fn per_channel(x: &Tensor, rank: usize) -> Result<Tensor> {
    (2..rank).try_fold(x.clone(), |t, _| t.unsqueeze(D::Minus1))
}

/// Each channel without its mean, divided by its standard deviation (Ioffe & Szegedy, arXiv 1502.03167):
/// those of the batch while a network is trained, running averages of them otherwise.
#[derive(Clone, Debug)]
pub struct BatchNorm {
    running_mean: Tensor,
    running_var: Tensor,
    weight_and_bias: Option<(Tensor, Tensor)>,
    epsilon: f64,
    momentum: f64,
}

impl BatchNorm {
    /// With factor and summand per channel. The share of a batch in the running averages is 0.1.
    ///
    /// # Errors
    /// When a tensor is not of shape `[num_features]`, or `epsilon` is negative.
    pub fn new(
        num_features: usize,
        running_mean: Tensor,
        running_var: Tensor,
        weight: Tensor,
        bias: Tensor,
        epsilon: f64,
    ) -> Result<BatchNorm> {
        BatchNorm { weight_and_bias: Some((weight, bias)), running_mean, running_var, epsilon, momentum: 0.1 }
            .checked(num_features)
    }

    /// Without factor and summand.
    ///
    /// # Errors
    /// As [`BatchNorm::new`].
    pub fn new_no_bias(
        num_features: usize,
        running_mean: Tensor,
        running_var: Tensor,
        epsilon: f64,
    ) -> Result<BatchNorm> {
        BatchNorm { weight_and_bias: None, running_mean, running_var, epsilon, momentum: 0.1 }
            .checked(num_features)
    }

    /// With another share of a batch in the running averages.
    ///
    /// # Errors
    /// When that is not from 0 to 1.
    pub fn with_momentum(self, momentum: f64) -> Result<BatchNorm> {
        if !(0.0..=1.0).contains(&momentum) {
            let why = format!("momentum {momentum} is not from 0 to 1");
            return Err(Error::InvalidArgument { op: "batch_norm", why });
        }
        Ok(BatchNorm { momentum, ..self })
    }

    fn checked(self, num_features: usize) -> Result<BatchNorm> {
        let affine = self.weight_and_bias.iter().flat_map(|(weight, bias)| [weight, bias]);
        for tensor in [&self.running_mean, &self.running_var].into_iter().chain(affine) {
            if tensor.rank() != 1 || !tensor.sym_dims()[0].is(num_features as i64) {
                let why = format!("{} is not [{num_features}]", tensor.sym_shape());
                return Err(Error::InvalidArgument { op: "batch_norm", why });
            }
        }
        if self.epsilon.is_nan() || self.epsilon < 0.0 {
            let why = format!("epsilon {} is negative", self.epsilon);
            return Err(Error::InvalidArgument { op: "batch_norm", why });
        }
        Ok(self)
    }

    /// The running mean of each channel.
    pub fn running_mean(&self) -> &Tensor {
        &self.running_mean
    }

    /// The running variance of each channel.
    pub fn running_var(&self) -> &Tensor {
        &self.running_var
    }

    /// Normalizes `[batch, channels, ..]` by its own statistics; gives the result and the layer with its
    /// running averages moved towards them. (Tensors are values, so that the layer cannot change in place.)
    /// 16-bit floats are computed in f32.
    ///
    /// # Errors
    /// When the tensor has other channels, or its shape is symbolic.
    pub fn forward_train(&self, xs: &Tensor) -> Result<(Tensor, BatchNorm)> {
        self.has_channels(xs)?;
        let wide = widen(xs)?;
        let others: Vec<usize> = (0..xs.rank()).filter(|axis| *axis != 1).collect();
        let mean = wide.mean_keepdim(others.as_slice())?;
        let centered = wide.broadcast_sub(&mean)?;
        let variance = centered.sqr()?.mean_keepdim(others.as_slice())?;
        let count = (xs.const_elem_count()? / xs.const_dim(1)?.max(1)) as f64;
        let moved = |running: &Tensor, batch: &Tensor, share: f64| {
            let batch = batch.flatten_all()?.to_dtype(running.dtype())?;
            running.affine(1.0 - self.momentum, 0.0)?.add(&batch.affine(share, 0.0)?)
        };
        let next = BatchNorm {
            running_mean: moved(&self.running_mean, &mean, self.momentum)?,
            // The batch is a sample of what is to come, hence one less in the divisor.
            running_var: moved(&self.running_var, &variance, self.momentum * count / (count - 1.0))?,
            ..self.clone()
        };
        let scale = variance.affine(1.0, self.epsilon)?.sqrt()?.recip()?;
        let normal = centered.broadcast_mul(&scale)?.to_dtype(xs.dtype())?;
        Ok((self.affine(&normal)?, next))
    }

    fn affine(&self, normal: &Tensor) -> Result<Tensor> {
        match &self.weight_and_bias {
            Some((weight, bias)) => scaled(normal, weight, bias),
            None => Ok(normal.clone()),
        }
    }

    fn has_channels(&self, xs: &Tensor) -> Result<()> {
        if xs.rank() >= 2 && xs.sym_dims()[1] == self.running_mean.sym_dims()[0] {
            return Ok(());
        }
        let (lhs, rhs) = (xs.sym_shape().clone(), self.running_mean.sym_shape().clone());
        Err(Error::ShapeMismatchBinaryOp { op: "batch_norm", lhs, rhs })
    }
}

impl ModuleT for BatchNorm {
    /// Normalizes by the running averages, or by the batch's own ones; the averages of this layer stay
    /// ([`BatchNorm::forward_train`] gives moved ones).
    fn forward_t(&self, xs: &Tensor, train: bool) -> Result<Tensor> {
        if train {
            return Ok(self.forward_train(xs)?.0);
        }
        self.has_channels(xs)?;
        let lift = |t: &Tensor| per_channel(t, xs.rank());
        let scale = lift(&self.running_var.affine(1.0, self.epsilon)?.sqrt()?.recip()?)?;
        self.affine(&xs.broadcast_sub(&lift(&self.running_mean)?)?.broadcast_mul(&scale)?)
    }
}
