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

    /// The RMS norm of the rows of `x: [rows, n]` without a weight.
    ///
    /// # Errors
    /// When `x` has other axes.
    pub fn unweighted(&mut self, x: Value) -> Result<Value> {
        let w = self.g.full_like(x, 1.0)?;
        rms_norm(&mut self.g, x, w, self.config.norm_epsilon)
    }

    /// The RMS norm of each group of columns of `x: [rows, n]`, with a weight of its own for each:
    /// `{part}.weight: [groups, n / groups]`.
    ///
    /// # Errors
    /// When the weight is missing.
    pub fn group_rms_norm(&mut self, x: Value, part: &str, groups: usize) -> Result<Value> {
        let (shape, length) = (self.g.ty(x).shape.clone(), self.columns(x) / groups);
        let rows = self.rows() * &groups.into();
        let each = self.g.reshape(x, [rows, length.into()])?;
        let normal = self.unweighted(each)?;
        let normal = self.g.reshape(normal, shape.clone())?;
        let name = format!("{part}.weight");
        // Tools that write a file again drop an axis of one group.
        let is_flat =
            groups == 1 && self.types.get(&self.named(&name)).is_some_and(|ty| ty.shape.rank() == 1);
        let extents = [groups, length];
        let w = self.weight(&name, &extents[usize::from(is_flat)..])?;
        let w = self.g.reshape(w, [groups * length])?;
        let w = self.g.broadcast(w, shape)?;
        self.mul(normal, w)
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
