//! Expands gradients of attention into products, softmax and elementwise ops, where these are faster than its own kernels.
//!
//! [`Op::AttentionGrad`] has a kernel with cooperative matrices, which passes scores through registers, and one for any
//! device and type, which reads each key again for each query. Scores in memory are faster than the latter, at the price of
//! their memory. So a node stays where the device has matrices for its types and sizes, and where a buffer of scores would
//! exceed what a kernel can bind.
//!
//! Formulas: `gradient/attention.rs`. Where `sums` are those of the same queries and keys, `exp(x - sums)` is their softmax,
//! and both sides share it.

use crate::attention::{Attention, AttentionSide};
use crate::caps::DeviceCaps;
use crate::dtype::DType;
use crate::gradient::{AttentionOperands, expand_attention};
use crate::graph::{Graph, GraphError, Value};
use crate::matrix::{self, MatrixOperand};
use crate::op::Op;
use crate::rewrite::rebuild_results;

/// Rows and columns of the matrices.
const SIDE: i64 = 16;

/// Most elements of a query and of a value of the kernel with matrices: a subgroup has 16 rows of both and of their
/// gradients in registers.
const WIDEST: i64 = 128;

/// The pass.
pub fn run(graph: &Graph, caps: &DeviceCaps) -> Result<Graph, GraphError> {
    expand(graph, |graph, side, operands| {
        let is_faster = !has_tiles(graph, caps, operands) && fits(graph, caps, operands);
        // Results without elements are left to `simplify`.
        let is_empty = results(side, operands).iter().all(|v| graph.ty(*v).shape.numel().is(0));
        !is_empty && (is_faster || !can_bind(graph, caps, side, operands))
    })
}

/// Expands those nodes for whose operands `is_wanted` holds, given the graph under construction.
///
/// # Errors
/// If the graph is invalid.
pub fn expand(
    graph: &Graph,
    is_wanted: impl Fn(&Graph, AttentionSide, &[Value]) -> bool,
) -> Result<Graph, GraphError> {
    // Of each query side that was expanded, its logarithms of sums, and what they are of.
    let mut expanded: Vec<(Value, Attention, Vec<Value>)> = vec![];
    rebuild_results(graph, |new, node, operands| {
        let Op::AttentionGrad(attrs, side) = node.op else { return Ok(None) };
        if !is_wanted(new, side, operands) {
            return Ok(None);
        }
        let (main, bias) = operands.split_at(side.operands());
        let [q, k, v, g, means, sums @ ..] = main else { return Ok(None) };
        let of = [&[*q, *k], bias].concat();
        let is_of = |(found, attention, of_found): &(Value, Attention, Vec<Value>)| {
            sums.contains(found) && *attention == attrs && *of_found == of
        };
        let is_softmax = side == AttentionSide::Queries || expanded.iter().any(is_of);
        let given = sums.first().filter(|_| !is_softmax).copied();
        let bias = bias.first().copied();
        let operands = AttentionOperands { q: *q, k: *k, v: *v, g: *g, means: *means, bias };
        let found = expand_attention(new, &attrs, side, operands, given)?;
        if side == AttentionSide::Queries {
            expanded.extend(found.get(1).map(|sums| (*sums, attrs, of)));
        }
        Ok(Some(found))
    })
}

/// Whether the kernel with cooperative matrices computes it, if its operands lie in memory as they should.
fn has_tiles(graph: &Graph, caps: &DeviceCaps, operands: &[Value]) -> bool {
    let is_all = |operand: &MatrixOperand| {
        let is_one = |v: &Value| graph.ty(*v).dtype == operand.dtype();
        operands[..4].iter().all(is_one) && matrix::coopmat_size(caps, *operand) == Some(SIDE as u32)
    };
    let width = |v: Value| graph.ty(v).shape.dims()[2].as_const();
    let is_width = |n: Option<i64>| n.is_some_and(|n| n > 0 && n <= WIDEST && n % SIDE == 0);
    caps.coopmat_fragment_layout
        && caps.subgroup_shuffle
        && MatrixOperand::ALL.iter().any(is_all)
        && [operands[1], operands[2]].map(width).into_iter().all(is_width)
}

/// Whether a kernel can bind all operands and results, and what symbols it needs.
fn can_bind(graph: &Graph, caps: &DeviceCaps, side: AttentionSide, operands: &[Value]) -> bool {
    let windows = |v: &Value| caps.windows(graph.ty(*v).max_bytes());
    let needs = operands.iter().chain(&results(side, operands)).map(windows).sum::<u64>() + 1;
    needs <= u64::from(caps.max_storage_buffers)
}

/// Operands of the results' types.
fn results(side: AttentionSide, operands: &[Value]) -> [Value; 2] {
    match side {
        AttentionSide::Queries => [operands[0], operands[4]],
        AttentionSide::Keys => [operands[1], operands[2]],
    }
}

/// Whether a kernel can bind the scores.
fn fits(graph: &Graph, caps: &DeviceCaps, operands: &[Value]) -> bool {
    let [q, k] = [operands[0], operands[1]].map(|v| graph.ty(v).shape.dims());
    let extents = [&q[0], &q[1], &k[1]].map(|dim| u64::try_from(dim.max_value()).unwrap_or(u64::MAX));
    let wide = if graph.ty(operands[4]).dtype == DType::F64 { 8 } else { 4 };
    extents.into_iter().fold(wide, u64::saturating_mul) <= caps.window_bytes()
}
