//! How new variables are filled.

use tallow_ir::DType;

use crate::device::Device;
use crate::error::{Error, Result};
use crate::extents::Shape;
use crate::shape::IntoShape;
use crate::tensor::Tensor;
use crate::variable::Var;

/// Whose number of elements sets the width of a distribution: that of a neuron's inputs, so that activations keep their
/// size, or that of its outputs, so that gradients do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FanInOut {
    /// Inputs.
    FanIn,
    /// Outputs.
    FanOut,
}

impl FanInOut {
    /// The number for weights of shape `[out, in, ..]`; the axes after these are the window of a convolution.
    pub fn for_shape(&self, shape: &Shape) -> usize {
        let dims = shape.dims();
        let window: usize = dims.iter().skip(2).product();
        match (self, dims) {
            (FanInOut::FanIn, [_, inputs, ..]) => inputs * window,
            (FanInOut::FanOut, [outputs, ..]) => outputs * window,
            (FanInOut::FanIn, [] | [_]) | (FanInOut::FanOut, []) => 1,
        }
    }
}

/// The kind of a distribution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormalOrUniform {
    /// A normal one.
    Normal,
    /// A uniform one.
    Uniform,
}

/// The function that follows a layer. It decides by how much weights have to be larger for activations to keep their size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum NonLinearity {
    /// `max(x, 0)`, which halves the variance.
    ReLU,
    /// None.
    Linear,
    /// The logistic function.
    Sigmoid,
    /// The hyperbolic tangent.
    Tanh,
    /// The scaled exponential linear unit.
    SELU,
    /// This gain.
    ExplicitGain(f64),
}

impl NonLinearity {
    /// The factor on the standard deviation, as PyTorch's `calculate_gain` has it.
    pub fn gain(&self) -> f64 {
        match *self {
            NonLinearity::ReLU => std::f64::consts::SQRT_2,
            NonLinearity::Linear | NonLinearity::Sigmoid => 1.0,
            NonLinearity::Tanh => 5.0 / 3.0,
            NonLinearity::SELU => 0.75,
            NonLinearity::ExplicitGain(gain) => gain,
        }
    }
}

/// What a new variable holds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    /// One number everywhere.
    Const(f64),
    /// Drawn from a normal distribution.
    Randn {
        /// The mean.
        mean: f64,
        /// The standard deviation.
        stdev: f64,
    },
    /// Drawn evenly from `lo .. up`.
    Uniform {
        /// The smallest.
        lo: f64,
        /// The bound above.
        up: f64,
    },
    /// Drawn with the standard deviation `gain / sqrt(fan)` (He et al., arXiv 1502.01852).
    Kaiming {
        /// The kind of the distribution.
        dist: NormalOrUniform,
        /// What the deviation depends on.
        fan: FanInOut,
        /// What follows the layer.
        non_linearity: NonLinearity,
    },
}

/// Zeros.
pub const ZERO: Init = Init::Const(0.0);

/// Ones.
pub const ONE: Init = Init::Const(1.0);

/// Evenly drawn weights of a layer that `relu` follows.
pub const DEFAULT_KAIMING_UNIFORM: Init =
    Init::Kaiming { dist: NormalOrUniform::Uniform, fan: FanInOut::FanIn, non_linearity: NonLinearity::ReLU };

/// Normally distributed weights of a layer that `relu` follows.
pub const DEFAULT_KAIMING_NORMAL: Init =
    Init::Kaiming { dist: NormalOrUniform::Normal, fan: FanInOut::FanIn, non_linearity: NonLinearity::ReLU };

impl Default for Init {
    /// Zeros.
    fn default() -> Init {
        ZERO
    }
}

impl Init {
    /// A new variable of this shape. Random numbers continue the sequence that [`Device::set_seed`] starts.
    ///
    /// # Errors
    /// When the shape is symbolic, `dtype` is no float type and numbers are random, or as [`Tensor::rand`].
    pub fn var(&self, shape: impl IntoShape, dtype: DType, device: &Device) -> Result<Var> {
        let shape = shape.into_shape();
        let Some(dims) = shape.as_const() else { return Err(Error::SymbolicShape { shape }) };
        match *self {
            Init::Const(number) => Var::from_tensor(&Tensor::constant(dtype, number, &shape, device)?),
            Init::Randn { mean, stdev } => Var::randn_f64(mean, stdev, shape, dtype, device),
            Init::Uniform { lo, up } => Var::rand_f64(lo, up, shape, dtype, device),
            Init::Kaiming { dist, fan, non_linearity } => {
                let fan = fan.for_shape(&Shape::from_dims(&dims)) as f64;
                let deviation = non_linearity.gain() / fan.sqrt();
                match dist {
                    NormalOrUniform::Normal => Var::randn_f64(0.0, deviation, shape, dtype, device),
                    NormalOrUniform::Uniform => {
                        // The deviation of numbers from -b to b is b / sqrt(3).
                        let bound = 3f64.sqrt() * deviation;
                        Var::rand_f64(-bound, bound, shape, dtype, device)
                    }
                }
            }
        }
    }
}
