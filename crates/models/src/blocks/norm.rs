//! Norms over rows and over heads.

use tallow_ir::Value;

use super::{Builder, Result};
use crate::layers::{layer_norm, rms_norm};

impl Builder<'_> {
    /// The RMS norm of the rows of `x: [rows, n]` with `{part}.weight: [n]`.
    ///
    /// # Errors
    /// When the weight is missing.
    pub fn rms_norm(&mut self, x: Value, part: &str) -> Result<Value> {
        let w = self.weight(&format!("{part}.weight"), &[self.columns(x)])?;
        rms_norm(&mut self.g, x, w, self.config.norm_epsilon)
    }

    /// The layer norm of the rows of `x: [rows, n]` with `{part}.weight: [n]`, and `{part}.bias: [n]` where the file has it.
    ///
    /// # Errors
    /// When the weight is missing.
    pub fn layer_norm(&mut self, x: Value, part: &str) -> Result<Value> {
        let w = self.weight(&format!("{part}.weight"), &[self.columns(x)])?;
        let normal = layer_norm(&mut self.g, x, w, self.config.norm_epsilon)?;
        self.plus_bias(normal, part)
    }

    /// The RMS norm of each head of `x: [rows, heads, length]`, with `{part}.weight: [length]` for all heads.
    ///
    /// # Errors
    /// When the weight is missing.
    pub fn head_rms_norm(&mut self, x: Value, part: &str) -> Result<Value> {
        let shape = self.g.ty(x).shape.clone();
        let [rows, heads, length] = shape.dims() else { return Ok(x) };
        let flat = self.g.reshape(x, [rows * heads, length.clone()])?;
        let normal = self.rms_norm(flat, part)?;
        self.g.reshape(normal, shape)
    }

    /// The layer norm of each head of `x: [rows, heads, length]`, with a weight of its own for each head:
    /// `{part}.weight: [heads, length]`.
    ///
    /// # Errors
    /// When the weight is missing.
    pub fn each_head_layer_norm(&mut self, x: Value, part: &str) -> Result<Value> {
        let shape = self.g.ty(x).shape.clone();
        let [rows, heads, length] = shape.dims() else { return Ok(x) };
        let extents = [heads.max_value() as usize, length.max_value() as usize];
        let flat = self.g.reshape(x, [rows * heads, length.clone()])?;
        let normal = crate::layers::standardized(&mut self.g, flat, self.config.norm_epsilon)?;
        let normal = self.g.reshape(normal, shape.clone())?;
        let w = self.weight(&format!("{part}.weight"), &extents)?;
        let w = self.g.broadcast(w, shape)?;
        self.mul(normal, w)
    }
}
