//! Batch normalization.

use crate::error::{Error, Result};
use crate::module::ModuleT;
use crate::nn::init::{ONE, ZERO};
use crate::nn::norms::{per_channel, scaled};
use crate::nn::ops::widen;
use crate::nn::var_builder::VarBuilder;
use crate::tensor::Tensor;
use crate::variable::Var;

/// Settings of [`batch_norm`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BatchNormConfig {
    /// Added to the variance.
    pub eps: f64,
    /// Whether a batch's mean is taken away while a network is trained.
    pub remove_mean: bool,
    /// Whether there are factor and summand per channel.
    pub affine: bool,
    /// The share of a batch in the running averages.
    pub momentum: f64,
}

impl Default for BatchNormConfig {
    fn default() -> Self {
        BatchNormConfig { eps: 1e-5, remove_mean: true, affine: true, momentum: 0.1 }
    }
}

impl From<f64> for BatchNormConfig {
    fn from(eps: f64) -> Self {
        BatchNormConfig { eps, ..BatchNormConfig::default() }
    }
}

/// Each channel without its mean, divided by its standard deviation (Ioffe & Szegedy, arXiv 1502.03167):
/// those of the batch while a network is trained, running averages of them otherwise. These are variables, which a
/// batch changes, also in a compiled function. Clones share them.
#[derive(Clone, Debug)]
pub struct BatchNorm {
    running_mean: Var,
    running_var: Var,
    weight_and_bias: Option<(Tensor, Tensor)>,
    remove_mean: bool,
    epsilon: f64,
    momentum: f64,
}

impl BatchNorm {
    /// With factor and summand per channel. Running averages that are tensors of variables are these variables. The share of a batch in the running averages is 0.1.
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
        BatchNorm::of(running_mean, running_var, Some((weight, bias)), epsilon.into())?.checked(num_features)
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
        BatchNorm::of(running_mean, running_var, None, epsilon.into())?.checked(num_features)
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

    fn of(
        running_mean: Tensor,
        running_var: Tensor,
        weight_and_bias: Option<(Tensor, Tensor)>,
        config: BatchNormConfig,
    ) -> Result<BatchNorm> {
        let (running_mean, running_var) = (Var::from_tensor(&running_mean)?, Var::from_tensor(&running_var)?);
        let BatchNormConfig { eps: epsilon, remove_mean, momentum, .. } = config;
        Ok(BatchNorm { running_mean, running_var, weight_and_bias, remove_mean, epsilon, momentum })
    }

    fn checked(self, num_features: usize) -> Result<BatchNorm> {
        let affine = self.weight_and_bias.iter().flat_map(|(weight, bias)| [weight, bias]);
        let averages = [self.running_mean.as_tensor(), self.running_var.as_tensor()];
        for tensor in averages.into_iter().chain(affine) {
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
        self.running_mean.as_tensor()
    }

    /// The running variance of each channel.
    pub fn running_var(&self) -> &Tensor {
        self.running_var.as_tensor()
    }

    /// What is added to the variance.
    pub fn eps(&self) -> f64 {
        self.epsilon
    }

    /// Factor and summand per channel.
    pub fn weight_and_bias(&self) -> Option<(&Tensor, &Tensor)> {
        self.weight_and_bias.as_ref().map(|(weight, bias)| (weight, bias))
    }

    /// The share of a batch in the running averages.
    pub fn momentum(&self) -> f64 {
        self.momentum
    }

    /// Normalizes `[batch, channels, ..]` by its own statistics, and moves the running averages towards them. 16-bit
    /// floats are computed in f32.
    ///
    /// # Errors
    /// When the tensor has other channels, or its shape is symbolic.
    pub fn forward_train(&self, xs: &Tensor) -> Result<Tensor> {
        self.has_channels(xs)?;
        let wide = widen(xs)?;
        let others: Vec<usize> = (0..xs.rank()).filter(|axis| *axis != 1).collect();
        let mut centered = wide.clone();
        if self.remove_mean {
            let mean = wide.mean_keepdim(others.as_slice())?;
            centered = wide.broadcast_sub(&mean)?;
            self.moved(&self.running_mean, &mean, self.momentum)?;
        }
        let variance = centered.sqr()?.mean_keepdim(others.as_slice())?;
        let count = (xs.const_elem_count()? / xs.const_dim(1)?.max(1)) as f64;
        // The batch is a sample of what is to come, hence one less in the divisor.
        self.moved(&self.running_var, &variance, self.momentum * count / (count - 1.0))?;
        let scale = variance.affine(1.0, self.epsilon)?.sqrt()?.recip()?;
        self.affine(&centered.broadcast_mul(&scale)?.to_dtype(xs.dtype())?)
    }

    /// Moves a running average by a share of a batch's.
    fn moved(&self, running: &Var, batch: &Tensor, share: f64) -> Result<()> {
        let batch = batch.detach().flatten_all()?.to_dtype(running.dtype())?;
        let rest = running.as_detached_tensor().affine(1.0 - self.momentum, 0.0)?;
        running.set(&rest.add(&batch.affine(share, 0.0)?)?)
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
    /// Normalizes by the running averages; while a network is trained, [`BatchNorm::forward_train`].
    fn forward_t(&self, xs: &Tensor, train: bool) -> Result<Tensor> {
        if train {
            return self.forward_train(xs);
        }
        self.has_channels(xs)?;
        let lift = |t: &Tensor| per_channel(t, xs.rank());
        let (mean, variance) =
            (self.running_mean.as_detached_tensor(), self.running_var.as_detached_tensor());
        let scale = lift(&variance.affine(1.0, self.epsilon)?.sqrt()?.recip()?)?;
        self.affine(&xs.broadcast_sub(&lift(&mean)?)?.broadcast_mul(&scale)?)
    }
}

/// A [`BatchNorm`] with `running_mean` and `running_var` of `vb` and, as the settings say, `weight` and `bias`. An f64 as
/// settings is the epsilon.
///
/// # Errors
/// When a tensor is missing or has another shape, epsilon is negative, or momentum is not from 0 to 1.
pub fn batch_norm(
    num_features: usize,
    config: impl Into<BatchNormConfig>,
    vb: VarBuilder<'_>,
) -> Result<BatchNorm> {
    let config = config.into();
    let running_mean = vb.get_with_hints(num_features, "running_mean", ZERO)?;
    let running_var = vb.get_with_hints(num_features, "running_var", ONE)?;
    let affine = || {
        let weight = vb.get_with_hints(num_features, "weight", ONE)?;
        Ok::<_, Error>((weight, vb.get_with_hints(num_features, "bias", ZERO)?))
    };
    let weight_and_bias = config.affine.then(affine).transpose()?;
    BatchNorm::of(running_mean, running_var, weight_and_bias, config)?
        .with_momentum(config.momentum)?
        .checked(num_features)
}
