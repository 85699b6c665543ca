//! Activations as layers.

use crate::error::{Error, Result};
use crate::module::Module;
use crate::nn::init::Init;
use crate::nn::norms::per_channel;
use crate::nn::ops;
use crate::nn::var_builder::VarBuilder;
use crate::tensor::Tensor;

/// An activation, chosen by a model's configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Activation {
    /// [`Tensor::gelu_erf`].
    #[default]
    Gelu,
    /// [`Tensor::gelu`], by the hyperbolic tangent.
    NewGelu,
    /// [`Tensor::relu`].
    Relu,
    /// The square of `relu`.
    Relu2,
    /// From 0 to 6.
    Relu6,
    /// [`Tensor::silu`].
    Silu,
    /// [`ops::sigmoid`].
    Sigmoid,
    /// [`ops::hard_sigmoid`].
    HardSigmoid,
    /// [`ops::swiglu`].
    Swiglu,
    /// [`Tensor::silu`] by its other name.
    Swish,
    /// [`ops::mish`].
    Mish,
    /// `x * hard_sigmoid(x)`.
    HardSwish,
    /// [`Tensor::elu`] with this factor.
    Elu(f64),
    /// [`ops::leaky_relu`] with this slope.
    LeakyRelu(f64),
    /// [`Tensor::gelu`] by its other name.
    GeluPytorchTanh,
}

impl Module for Activation {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        match *self {
            Activation::Gelu => xs.gelu_erf(),
            Activation::NewGelu | Activation::GeluPytorchTanh => xs.gelu(),
            Activation::Relu => xs.relu(),
            Activation::Relu2 => xs.relu()?.sqr(),
            Activation::Relu6 => xs.clamp(0f32, 6f32),
            Activation::Silu | Activation::Swish => xs.silu(),
            Activation::Sigmoid => ops::sigmoid(xs),
            Activation::HardSigmoid => ops::hard_sigmoid(xs),
            Activation::Swiglu => ops::swiglu(xs),
            Activation::Mish => ops::mish(xs),
            Activation::HardSwish => xs.mul(&ops::hard_sigmoid(xs)?),
            Activation::Elu(alpha) => xs.elu(alpha),
            Activation::LeakyRelu(slope) => ops::leaky_relu(xs, slope),
        }
    }
}

/// `x`, times a weight where it is negative (He et al., arXiv 1502.01852).
#[derive(Clone, Debug)]
pub struct PReLU {
    weight: Tensor,
    is_scalar: bool,
}

impl PReLU {
    /// A layer of one weight, or of one per channel.
    pub fn new(weight: Tensor, is_scalar: bool) -> PReLU {
        PReLU { weight, is_scalar }
    }

    /// The weight, or the weights.
    pub fn weight(&self) -> &Tensor {
        &self.weight
    }

    /// Whether there is one weight for all elements.
    pub fn is_scalar(&self) -> bool {
        self.is_scalar
    }
}

impl Module for PReLU {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let weight = if self.is_scalar {
            self.weight.reshape(())?
        } else if xs.rank() >= 2 && self.weight.rank() == 1 {
            let weights = self.weight.const_dim(0)?;
            if !xs.sym_dims()[1].is(weights as i64) {
                let why = format!("{} has not {weights} channels in axis 1", xs.sym_shape());
                return Err(Error::InvalidArgument { op: "prelu", why });
            }
            per_channel(&self.weight, xs.rank())?
        } else {
            self.weight.clone()
        };
        xs.maximum(0.0)?.add(&xs.minimum(0.0)?.broadcast_mul(&weight)?)
    }
}

/// A [`PReLU`] with `weight` of `vb`: one for each of so many channels (axis 1), or for `None` one for all, of shape `[1]`.
///
/// # Errors
/// When it is missing or has another shape.
pub fn prelu(num_channels: Option<usize>, vb: VarBuilder<'_>) -> Result<PReLU> {
    let weight = vb.get_with_hints(num_channels.unwrap_or(1), "weight", Init::Const(0.25))?;
    Ok(PReLU::new(weight, num_channels.is_none()))
}
