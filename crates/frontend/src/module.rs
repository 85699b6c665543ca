//! Layers: anything that makes a tensor of a tensor.

use crate::error::Result;
use crate::tensor::Tensor;

/// A layer.
pub trait Module {
    /// What the layer makes of `xs`.
    ///
    /// # Errors
    /// When the layer does not take such a tensor.
    fn forward(&self, xs: &Tensor) -> Result<Tensor>;
}

impl<F: Fn(&Tensor) -> Result<Tensor>> Module for F {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        self(xs)
    }
}

impl<M: Module> Module for Option<&M> {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        self.map_or_else(|| Ok(xs.clone()), |layer| layer.forward(xs))
    }
}

/// A layer that does something else while a network is trained.
pub trait ModuleT {
    /// What the layer makes of `xs`.
    ///
    /// # Errors
    /// When the layer does not take such a tensor.
    fn forward_t(&self, xs: &Tensor, train: bool) -> Result<Tensor>;
}

impl<M: Module> ModuleT for M {
    fn forward_t(&self, xs: &Tensor, _train: bool) -> Result<Tensor> {
        self.forward(xs)
    }
}

impl Tensor {
    /// What a layer makes of this tensor: `x.apply(&first)?.apply(&second)?`.
    ///
    /// # Errors
    /// Those of the layer.
    pub fn apply<M: Module + ?Sized>(&self, layer: &M) -> Result<Tensor> {
        layer.forward(self)
    }

    /// What a layer makes of this tensor while a network is trained, or not.
    ///
    /// # Errors
    /// Those of the layer.
    pub fn apply_t<M: ModuleT + ?Sized>(&self, layer: &M, train: bool) -> Result<Tensor> {
        layer.forward_t(self, train)
    }

    /// Rounded to so many decimals (to tens, hundreds, .. for negative numbers of them).
    ///
    /// # Errors
    /// When the elements are no floats.
    pub fn round_to(&self, decimals: i32) -> Result<Tensor> {
        let scale = 10f64.powi(decimals);
        self.affine(scale, 0.0)?.round()?.affine(1.0 / scale, 0.0)
    }
}
