//! Layers with weights.

use crate::error::Result;
use crate::module::Module;
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
