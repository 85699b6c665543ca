//! From the rows of a text to its embedding.

use tallow_ir::{DType, Dim, ElementwiseOp, Op, ReduceKind, Value};

use super::{Builder, Result, extent};
use crate::config::Pooling;
use crate::layers::last_row;

/// The least length that a row is divided by: a row of zeros stays one.
const LEAST_LENGTH: f32 = 1e-12;

impl Builder<'_> {
    /// `x: [rows, width]` plus the first row of `token_types.weight: [types, width]`, the type of a text that stands alone.
    ///
    /// # Errors
    /// When the weight is missing.
    pub fn plus_first_token_type(&mut self, x: Value) -> Result<Value> {
        let name = "token_types.weight";
        let types = self.types.get(name).map_or(1, |ty| extent(ty, 0));
        let table = self.weight(name, &[types, self.config.width])?;
        let first = self.g.add(Op::Slice { axis: 0, start: Dim::zero(), len: Dim::one() }, &[table])?;
        let shape = self.g.ty(x).shape.clone();
        let first = self.g.broadcast(first, shape)?;
        self.add(x, first)
    }

    /// The embedding of a text whose rows are `x: [rows, width]`: `[1, width]`, or `x` without pooling. Of several texts,
    /// `[texts, width]`.
    ///
    /// # Errors
    /// When `x` is not of floats.
    pub fn pooled(&mut self, x: Value, pooling: Pooling) -> Result<Value> {
        if let Some(texts) = self.texts.clone() {
            return self.pooled_by_text(x, pooling, &texts);
        }
        match pooling {
            Pooling::None => Ok(x),
            Pooling::Mean => {
                let sum = self.g.reduce_keepdim(ReduceKind::Sum, x, &[0])?;
                let rows = self.g.add(Op::DimValue { dim: self.seq.clone(), dtype: DType::F32 }, &[])?;
                let shape = self.g.ty(sum).shape.clone();
                let rows = self.g.broadcast(rows, shape)?;
                self.g.elementwise(ElementwiseOp::Div, &[sum, rows])
            }
            Pooling::Cls => self.g.add(Op::Slice { axis: 0, start: Dim::zero(), len: Dim::one() }, &[x]),
            Pooling::Last => last_row(&mut self.g, x),
        }
    }

    /// The rows of `x: [rows, n]`, each divided by its Euclidean length.
    ///
    /// # Errors
    /// When `x` is not of floats.
    pub fn unit_rows(&mut self, x: Value) -> Result<Value> {
        let shape = self.g.ty(x).shape.clone();
        let square = self.mul(x, x)?;
        let sum = self.g.reduce_keepdim(ReduceKind::Sum, square, &[1])?;
        let length = self.g.elementwise(ElementwiseOp::Sqrt, &[sum])?;
        let length = self.at_least(length, LEAST_LENGTH)?;
        let length = self.g.broadcast(length, shape)?;
        self.g.elementwise(ElementwiseOp::Div, &[x, length])
    }
}
