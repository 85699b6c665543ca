//! Pieces of a decoder as graphs: norms, linear layers, activations, the last row, probabilities.

use tallow_ir::{DType, Dim, ElementwiseOp, Graph, GraphError, Op, ReduceKind, Value};

use crate::weights::{LoraTerm, WeightTypes, weight};

/// `x / sqrt(mean(x^2) + epsilon) * w` over rows of `x: [rows, width]` (Zhang & Sennrich, arXiv 1910.07467).
pub fn rms_norm(g: &mut Graph, x: Value, w: Value, epsilon: f32) -> Result<Value, GraphError> {
    let shape = g.ty(x).shape.clone();
    let square = g.elementwise(ElementwiseOp::Mul, &[x, x])?;
    let sum = g.reduce_keepdim(ReduceKind::Sum, square, &[1])?;
    // The width is a constant: weights have no symbols.
    let per_element = 1.0 / shape.dims()[1].max_value().max(1) as f64;
    let scale = g.full_like(sum, per_element)?;
    let mean = g.elementwise(ElementwiseOp::Mul, &[sum, scale])?;
    let epsilon = g.full_like(mean, f64::from(epsilon))?;
    let shifted = g.elementwise(ElementwiseOp::Add, &[mean, epsilon])?;
    let root = g.elementwise(ElementwiseOp::Sqrt, &[shifted])?;
    let factor = g.elementwise(ElementwiseOp::Recip, &[root])?;
    let factor = g.broadcast(factor, shape.clone())?;
    let normal = g.elementwise(ElementwiseOp::Mul, &[x, factor])?;
    let w = g.broadcast(w, shape)?;
    g.elementwise(ElementwiseOp::Mul, &[normal, w])
}

/// `x w^T (+ bias)` for `x: [rows, k]` and the weight `{name}.weight: [n, k]`; `{name}.bias` if it exists.
pub fn linear(g: &mut Graph, types: &WeightTypes, x: Value, name: &str) -> Result<Value, GraphError> {
    let y = times_transposed(g, types, x, &format!("{name}.weight"))?;
    let bias = format!("{name}.bias");
    if types.get(&bias).is_none() {
        return Ok(y);
    }
    let b = weight(g, types, &bias)?;
    let shape = g.ty(y).shape.clone();
    let b = g.broadcast(b, shape)?;
    g.elementwise(ElementwiseOp::Add, &[y, b])
}

/// `x w^T` for the weight called `name`, and what adapters add to it: `scale (x a^T) b^T`.
pub fn times_transposed(
    g: &mut Graph,
    types: &WeightTypes,
    x: Value,
    name: &str,
) -> Result<Value, GraphError> {
    let mut y = product(g, types, x, name)?;
    for LoraTerm { a, b, scale } in types.terms(name) {
        // The scale multiplies the narrow product: it has few columns.
        let narrow = product(g, types, x, a)?;
        let scale = g.full_like(narrow, f64::from(*scale))?;
        let scaled = g.elementwise(ElementwiseOp::Mul, &[narrow, scale])?;
        let added = product(g, types, scaled, b)?;
        y = g.elementwise(ElementwiseOp::Add, &[y, added])?;
    }
    Ok(y)
}

/// `x w^T` for the weight called `name` alone.
fn product(g: &mut Graph, types: &WeightTypes, x: Value, name: &str) -> Result<Value, GraphError> {
    let w = weight(g, types, name)?;
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
