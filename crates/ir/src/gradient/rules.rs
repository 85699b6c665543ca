//! Which rule is that of which op.

use super::attention::attention;
use super::contraction::matmul;
use super::indexing::{gather, index_add, scatter_add, update, window};
use super::reduce::{cumulative_product, cumulative_sum, extremum, linear_recurrence, product};
use super::term::{Passed, Term};
use super::views;
use crate::op::{Op, ReduceKind, ScanKind, ScatterKind};

/// What the gradient `g` of `result`, which `op` makes of `operands`, passes back to these.
///
/// # Errors
/// What is missing, where the op has no derivative.
pub fn pass_back<'b>(
    op: &Op,
    g: Term<'b>,
    operands: &[Term<'b>],
    result: Term<'b>,
) -> Result<Passed<'b>, String> {
    let none = || Ok(vec![None; operands.len()]);
    let Some(x) = operands.first().copied() else { return none() };
    let one = |term: Term<'b>| Ok(vec![Some(term)]);
    match op {
        Op::Elementwise(op) => Ok(op.derivative(g, operands, result)),
        Op::Cast(_) => one(g.cast(x.dtype())),
        Op::Reshape(_) => one(g.reshape(x.shape())),
        Op::Broadcast(_) => one(g.sum_to(&x.shape())),
        Op::Permute(axes) => one(views::permute(g, axes)),
        Op::Slice { axis, start, len } => one(views::slice(g, &x.shape(), *axis, start, len)),
        Op::Flip { axis } => one(g.apply(Op::Flip { axis: *axis })),
        Op::Pad { axis, before, .. } => one(g.slice(*axis, before, &x.shape().dims()[*axis])),
        Op::Concat { axis } => Ok(views::concat(g, *axis, operands)),
        Op::Window { axis, size, stride, dilation } => {
            one(window(g, &x.shape(), *axis, [*size, *stride, *dilation])?)
        }
        Op::Reduce { kind: ReduceKind::Sum, axes } => one(views::spread(g, &x.shape(), axes)),
        Op::Reduce { kind: ReduceKind::Prod, axes } => one(product(g, x, axes)),
        Op::Reduce { kind: ReduceKind::Max, axes } => one(extremum(g, x, result, ReduceKind::ArgMax, axes)),
        Op::Reduce { kind: ReduceKind::Min, axes } => one(extremum(g, x, result, ReduceKind::ArgMin, axes)),
        Op::Reduce { kind: ReduceKind::ArgMax | ReduceKind::ArgMin, .. } => none(),
        Op::Matmul => Ok(matmul(g, operands[0], operands[1])),
        Op::Gather { axis } => Ok(vec![Some(gather(g, &x.shape(), *axis, operands[1])), None]),
        Op::Scan { kind: ScanKind::Sum, axis, part: None } => one(cumulative_sum(g, *axis)),
        Op::Scan { kind: ScanKind::Prod, axis, part: None } => one(cumulative_product(g, x, result, *axis)),
        Op::Scan { kind: ScanKind::Linear, axis, part: None } => {
            Ok(linear_recurrence(g, operands[0], result, *axis))
        }
        Op::Scatter(ScatterKind::Add) => Ok(scatter_add(g, operands)),
        Op::IndexAdd => Ok(index_add(g, operands)),
        Op::Attention(attrs) if attrs.sinks => Err("attention with sinks has none".into()),
        Op::Attention(attrs) => Ok(attention(g, attrs, operands, result)),
        Op::StateUpdate { offsets, rows: None } => Ok(update(g, operands[1], offsets)),
        Op::StateUpdate { rows: Some(_), .. } => Err("rows chosen by an index are written".into()),
        Op::AttentionGrad(..) => Err("second derivatives of attention have no rule".into()),
        Op::Scan { part: Some(_), .. } | Op::MergeRuns { .. } | Op::Fusion(_) => {
            Err("differentiate the graph before its passes".into())
        }
        Op::Quantize(_) => Err("rounding to blocks has none".into()),
        Op::Custom(_) => Err("a user's kernel has none unless it is built with `backward`".into()),
        // Nothing is asked of weights of blocks. What else has blocks was quantized, where it ends.
        Op::Dequantize(_) => one(g),
        // Positions and largest integers jump.
        Op::ArgSort { .. } | Op::Scatter(ScatterKind::Max) => none(),
        Op::Input { .. }
        | Op::Weight { .. }
        | Op::State { .. }
        | Op::Param { .. }
        | Op::Const(_)
        | Op::Iota { .. }
        | Op::DimValue { .. }
        | Op::Scalar { .. } => none(),
    }
}
