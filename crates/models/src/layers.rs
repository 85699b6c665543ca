//! Pieces of a decoder as graphs: norms, linear layers, activations, the last row, probabilities.

use std::f64::consts::{FRAC_1_SQRT_2, PI};

use tallow_ir::{DType, Dim, ElementwiseOp, Graph, GraphError, Op, ReduceKind, Value};

use crate::weights::{LoraTerm, WeightTypes, weight};

/// The function between the products of a feed-forward layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `x / (1 + e^-x)`.
    Silu,
    /// `x / 2 (1 + erf(x / sqrt 2))` (Hendrycks & Gimpel, arXiv 1606.08415).
    Gelu,
    /// `x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))`: the approximation in the same paper.
    GeluTanh,
}

impl Activation {
    /// The function of each element of `x`, which is of floats.
    ///
    /// # Errors
    /// When it is not.
    pub fn of(self, g: &mut Graph, x: Value) -> Result<Value, GraphError> {
        match self {
            Activation::Silu => silu(g, x),
            Activation::Gelu => {
                let inside = scaled(g, x, FRAC_1_SQRT_2)?;
                let erf = g.elementwise(ElementwiseOp::Erf, &[inside])?;
                half_of_one_plus(g, x, erf)
            }
            Activation::GeluTanh => {
                let square = g.elementwise(ElementwiseOp::Mul, &[x, x])?;
                let cube = g.elementwise(ElementwiseOp::Mul, &[square, x])?;
                let cube = scaled(g, cube, 0.044715)?;
                let sum = g.elementwise(ElementwiseOp::Add, &[x, cube])?;
                let inside = scaled(g, sum, (2.0 / PI).sqrt())?;
                let tanh = g.elementwise(ElementwiseOp::Tanh, &[inside])?;
                half_of_one_plus(g, x, tanh)
            }
        }
    }
}

/// `x / 2 (1 + y)`.
fn half_of_one_plus(g: &mut Graph, x: Value, y: Value) -> Result<Value, GraphError> {
    let one = g.full_like(y, 1.0)?;
    let sum = g.elementwise(ElementwiseOp::Add, &[y, one])?;
    let half = scaled(g, x, 0.5)?;
    g.elementwise(ElementwiseOp::Mul, &[half, sum])
}

/// `factor * x`.
pub fn scaled(g: &mut Graph, x: Value, factor: f64) -> Result<Value, GraphError> {
    let factor = g.full_like(x, factor)?;
    g.elementwise(ElementwiseOp::Mul, &[x, factor])
}

/// `1 / (1 + e^-x)`.
pub fn sigmoid(g: &mut Graph, x: Value) -> Result<Value, GraphError> {
    let negative = g.elementwise(ElementwiseOp::Neg, &[x])?;
    let exp = g.elementwise(ElementwiseOp::Exp, &[negative])?;
    let one = g.full_like(exp, 1.0)?;
    let below = g.elementwise(ElementwiseOp::Add, &[exp, one])?;
    g.elementwise(ElementwiseOp::Recip, &[below])
}

/// The softmax of each row of `x: [rows, n]`.
pub fn softmax(g: &mut Graph, x: Value) -> Result<Value, GraphError> {
    let shape = g.ty(x).shape.clone();
    let largest = g.reduce_keepdim(ReduceKind::Max, x, &[1])?;
    let largest = g.broadcast(largest, shape.clone())?;
    let shifted = g.elementwise(ElementwiseOp::Sub, &[x, largest])?;
    let exp = g.elementwise(ElementwiseOp::Exp, &[shifted])?;
    let sum = g.reduce_keepdim(ReduceKind::Sum, exp, &[1])?;
    let sum = g.broadcast(sum, shape)?;
    g.elementwise(ElementwiseOp::Div, &[exp, sum])
}

/// `(x - mean) / sqrt(variance + epsilon)` over rows of `x: [rows, width]`.
pub fn standardized(g: &mut Graph, x: Value, epsilon: f32) -> Result<Value, GraphError> {
    let shape = g.ty(x).shape.clone();
    let per_element = 1.0 / shape.dims()[1].max_value().max(1) as f64;
    let sum = g.reduce_keepdim(ReduceKind::Sum, x, &[1])?;
    let mean = scaled(g, sum, per_element)?;
    let mean = g.broadcast(mean, shape.clone())?;
    let centered = g.elementwise(ElementwiseOp::Sub, &[x, mean])?;
    let square = g.elementwise(ElementwiseOp::Mul, &[centered, centered])?;
    let sum = g.reduce_keepdim(ReduceKind::Sum, square, &[1])?;
    let variance = scaled(g, sum, per_element)?;
    let factor = reciprocal_root(g, variance, epsilon)?;
    let factor = g.broadcast(factor, shape)?;
    g.elementwise(ElementwiseOp::Mul, &[centered, factor])
}

/// The layer norm of rows of `x: [rows, width]` without its bias: [`standardized`] times `w: [width]` (Ba et al., arXiv
/// 1607.06450).
pub fn layer_norm(g: &mut Graph, x: Value, w: Value, epsilon: f32) -> Result<Value, GraphError> {
    let shape = g.ty(x).shape.clone();
    let normal = standardized(g, x, epsilon)?;
    let w = g.broadcast(w, shape)?;
    g.elementwise(ElementwiseOp::Mul, &[normal, w])
}

/// `1 / sqrt(x + epsilon)`.
fn reciprocal_root(g: &mut Graph, x: Value, epsilon: f32) -> Result<Value, GraphError> {
    let epsilon = g.full_like(x, f64::from(epsilon))?;
    let shifted = g.elementwise(ElementwiseOp::Add, &[x, epsilon])?;
    let root = g.elementwise(ElementwiseOp::Sqrt, &[shifted])?;
    g.elementwise(ElementwiseOp::Recip, &[root])
}

/// `x / sqrt(mean(x^2) + epsilon) * w` over rows of `x: [rows, width]` (Zhang & Sennrich, arXiv 1910.07467).
pub fn rms_norm(g: &mut Graph, x: Value, w: Value, epsilon: f32) -> Result<Value, GraphError> {
    let shape = g.ty(x).shape.clone();
    let square = g.elementwise(ElementwiseOp::Mul, &[x, x])?;
    let sum = g.reduce_keepdim(ReduceKind::Sum, square, &[1])?;
    // The width is a constant: weights have no symbols.
    let per_element = 1.0 / shape.dims()[1].max_value().max(1) as f64;
    let mean = scaled(g, sum, per_element)?;
    let factor = reciprocal_root(g, mean, epsilon)?;
    let factor = g.broadcast(factor, shape.clone())?;
    let normal = g.elementwise(ElementwiseOp::Mul, &[x, factor])?;
    let w = g.broadcast(w, shape)?;
    g.elementwise(ElementwiseOp::Mul, &[normal, w])
}

/// `x w^T` for the weight called `name`, which is `[outputs, columns of x]`, and what adapters add to it:
/// `scale (x a^T) b^T`.
pub(crate) fn times_transposed(
    g: &mut Graph,
    types: &WeightTypes,
    x: Value,
    name: &str,
    shape: [usize; 2],
) -> Result<Value, GraphError> {
    let mut y = product(g, types, x, name, &shape)?;
    for LoraTerm { a, b, scale } in types.terms(name) {
        // The scale multiplies the narrow product: it has few columns.
        let narrow = product(g, types, x, a, &[])?;
        let scaled = scaled(g, narrow, f64::from(*scale))?;
        let added = product(g, types, scaled, b, &[])?;
        y = g.elementwise(ElementwiseOp::Add, &[y, added])?;
    }
    Ok(y)
}

/// `x w^T` for the weight called `name` alone.
fn product(
    g: &mut Graph,
    types: &WeightTypes,
    x: Value,
    name: &str,
    shape: &[usize],
) -> Result<Value, GraphError> {
    let w = weight(g, types, name, shape)?;
    let transposed = g.permute(w, &[1, 0])?;
    g.add(Op::Matmul, &[x, transposed])
}

/// `x / (1 + e^-x)`: SiLU, also called swish.
pub fn silu(g: &mut Graph, x: Value) -> Result<Value, GraphError> {
    let negative = g.elementwise(ElementwiseOp::Neg, &[x])?;
    let exp = g.elementwise(ElementwiseOp::Exp, &[negative])?;
    let one = g.full_like(exp, 1.0)?;
    let below = g.elementwise(ElementwiseOp::Add, &[exp, one])?;
    g.elementwise(ElementwiseOp::Div, &[x, below])
}

/// The last row of `x: [rows, width]` as `[1, width]`, also where only a run knows the number of rows.
pub fn last_row(g: &mut Graph, x: Value) -> Result<Value, GraphError> {
    if g.ty(x).shape.dims()[0].is(1) {
        return Ok(x);
    }
    // The first row of the reversed rows: `rows - 1` would be no valid start if there were 0 rows.
    let reversed = g.add(Op::Flip { axis: 0 }, &[x])?;
    g.add(Op::Slice { axis: 0, start: Dim::zero(), len: Dim::one() }, &[reversed])
}

/// `log(softmax(x))[i, next[i]]` for each row `i` of the logits `x: [rows, n]`; `next: [rows]` of u32 names a column.
pub fn log_probability(g: &mut Graph, x: Value, next: Value) -> Result<Value, GraphError> {
    let shape = g.ty(x).shape.clone();
    let (rows, n) = (shape.dims()[0].clone(), shape.dims()[1].clone());
    let largest = g.reduce_keepdim(ReduceKind::Max, x, &[1])?;
    let largest = g.broadcast(largest, shape.clone())?;
    let shifted = g.elementwise(ElementwiseOp::Sub, &[x, largest])?;
    let exp = g.elementwise(ElementwiseOp::Exp, &[shifted])?;
    let sum = g.add(Op::Reduce { kind: ReduceKind::Sum, axes: vec![1] }, &[exp])?;
    let log = g.elementwise(ElementwiseOp::Log, &[sum])?;
    // The element at `next`, as a sum in which the others are 0: one more reduction over a row that is being
    // read, where a gather would be another kernel.
    let columns = g.add(Op::Iota { len: n, dtype: DType::U32 }, &[])?;
    let columns = g.broadcast(columns, shape.clone())?;
    let next = g.reshape(next, [rows, Dim::one()])?;
    let next = g.broadcast(next, shape)?;
    let chosen = g.elementwise(ElementwiseOp::Eq, &[columns, next])?;
    let zero = g.full_like(shifted, 0.0)?;
    let masked = g.elementwise(ElementwiseOp::Select, &[chosen, shifted, zero])?;
    let picked = g.add(Op::Reduce { kind: ReduceKind::Sum, axes: vec![1] }, &[masked])?;
    g.elementwise(ElementwiseOp::Sub, &[picked, log])
}
