//! Layers with weights.

use crate::error::Result;
use crate::module::Module;
use crate::nn::init::{DEFAULT_KAIMING_NORMAL, Init};
use crate::nn::var_builder::VarBuilder;
use crate::tensor::Tensor;

/// `x W^T + b` for weights of shape `[out, in]`.
#[derive(Clone, Debug)]
pub struct Linear {
    weight: Tensor,
    bias: Option<Tensor>,
}

impl Linear {
    /// A layer of these weights.
    pub fn new(weight: Tensor, bias: Option<Tensor>) -> Linear {
        Linear { weight, bias }
    }

    /// The weights, `[out, in]`.
    pub fn weight(&self) -> &Tensor {
        &self.weight
    }

    /// The bias, `[out]`.
    pub fn bias(&self) -> Option<&Tensor> {
        self.bias.as_ref()
    }
}

impl Module for Linear {
    /// `[.., in]` to `[.., out]`.
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let product = xs.broadcast_matmul(&self.weight.t()?)?;
        match &self.bias {
            None => Ok(product),
            Some(bias) => product.broadcast_add(bias),
        }
    }
}

/// A [`Linear`] with `weight` and `bias` of `vb`.
///
/// # Errors
/// When one is missing or has another shape.
pub fn linear(in_dim: usize, out_dim: usize, vb: VarBuilder<'_>) -> Result<Linear> {
    linear_b(in_dim, out_dim, true, vb)
}

/// A [`Linear`] with `weight` of `vb`.
///
/// # Errors
/// When it is missing or has another shape.
pub fn linear_no_bias(in_dim: usize, out_dim: usize, vb: VarBuilder<'_>) -> Result<Linear> {
    linear_b(in_dim, out_dim, false, vb)
}

/// A [`Linear`] with `weight` and perhaps `bias` of `vb`.
///
/// # Errors
/// When one is missing or has another shape.
pub fn linear_b(in_dim: usize, out_dim: usize, bias: bool, vb: VarBuilder<'_>) -> Result<Linear> {
    let weight = vb.get_with_hints((out_dim, in_dim), "weight", DEFAULT_KAIMING_NORMAL)?;
    let bound = (in_dim as f64).sqrt().recip();
    let init = Init::Uniform { lo: -bound, up: bound };
    let bias = bias.then(|| vb.get_with_hints(out_dim, "bias", init)).transpose()?;
    Ok(Linear::new(weight, bias))
}

/// A table of vectors, looked up by number.
#[derive(Clone, Debug)]
pub struct Embedding {
    embeddings: Tensor,
    hidden_size: usize,
}

impl Embedding {
    /// A layer of this table of shape `[entries, hidden_size]`.
    pub fn new(embeddings: Tensor, hidden_size: usize) -> Embedding {
        Embedding { embeddings, hidden_size }
    }

    /// The table.
    pub fn embeddings(&self) -> &Tensor {
        &self.embeddings
    }

    /// The length of each vector.
    pub fn hidden_size(&self) -> usize {
        self.hidden_size
    }
}

impl Module for Embedding {
    /// Numbers of any shape to that shape with a new last axis.
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        self.embeddings.embedding(xs)
    }
}

/// An [`Embedding`] of so many entries, with `weight` of `vb`.
///
/// # Errors
/// When it is missing or has another shape.
pub fn embedding(in_size: usize, out_size: usize, vb: VarBuilder<'_>) -> Result<Embedding> {
    let init = Init::Randn { mean: 0.0, stdev: 1.0 };
    Ok(Embedding::new(vb.get_with_hints((in_size, out_size), "weight", init)?, out_size))
}
