//! Factors of activations that are the same along a row, as that of a norm is, taken out of their rounding.
//!
//! `(r y) W = r (y W)` for a factor `r` of a whole row. Rounding to blocks is of the same shape, as a block's scale is a
//! multiple of its largest element: the bytes of `r y` are those of `y`, and its scale is `r` times that of `y`, up to how
//! both are rounded to f16. So `y` may be rounded where it is computed, by a kernel that knows a few of its columns and not
//! yet `r`, and the results are multiplied by `r` instead of the activations.

use std::collections::HashSet;

use crate::elementwise::ElementwiseOp;
use crate::graph::{Graph, GraphError, Value};
use crate::op::Op;

/// Nodes that are looked at to find what activations are made of, at most.
const MOST_NODES: usize = 64;

/// Activations without the factors of their rows.
pub(super) struct Split {
    /// What is left, of the same shape.
    pub rest: Value,
    /// The factors, whose last extent is 1, broadcast along a row.
    factors: Vec<Value>,
}

impl Split {
    /// `product`, whose rows are those of the activations, times the factors.
    pub fn times(&self, graph: &mut Graph, product: Value) -> Result<Value, GraphError> {
        self.factors.iter().try_fold(product, |product, factor| {
            let shape = graph.ty(product).shape.clone();
            let factor = graph.broadcast(*factor, shape)?;
            graph.elementwise(ElementwiseOp::Mul, &[product, factor])
        })
    }
}

/// Takes the factors out of `activations` that wait for a reduction of the very row that they scale, if what is left is computed
/// from the results of a matmul of as many columns: then that one's kernel can round it.
///
/// # Errors
/// Only of a graph that is not valid.
pub(super) fn split(graph: &mut Graph, activations: Value) -> Result<Option<Split>, GraphError> {
    let (mut todo, mut scales, mut rest) = (vec![activations], vec![], vec![]);
    while let Some(value) = todo.pop() {
        let node = graph.node(value.node);
        match &node.op {
            Op::Elementwise(ElementwiseOp::Mul) => todo.extend(node.operands.iter().rev()),
            Op::Broadcast(_) if is_one_a_row(graph, node.operands[0]) => scales.push(value),
            _ => rest.push(value),
        }
        if todo.len() + rest.len() + scales.len() > MOST_NODES {
            return Ok(None);
        }
    }
    let numel = graph.ty(activations).shape.numel();
    let made = |value: &Value| {
        depends_on(graph, *value, |v| matches!(graph.op(v), Op::Matmul) && graph.ty(v).shape.numel() == numel)
    };
    if !rest.iter().any(made) {
        return Ok(None);
    }
    let (norms, others): (Vec<Value>, Vec<Value>) =
        scales.into_iter().partition(|scale| waits_for_row(graph, *scale, &rest));
    let mut rest = rest.into_iter().chain(others);
    let (Some(first), false) = (rest.next(), norms.is_empty()) else { return Ok(None) };
    let rest =
        rest.try_fold(first, |product, value| graph.elementwise(ElementwiseOp::Mul, &[product, value]))?;
    let factors = norms.into_iter().map(|norm| graph.node(norm.node).operands[0]).collect();
    Ok(Some(Split { rest, factors }))
}

/// Whether `value` is one for each row.
fn is_one_a_row(graph: &Graph, value: Value) -> bool {
    graph.ty(value).shape.dims().last().is_some_and(|last| last.is(1))
}

/// Whether a factor is computed from a reduction of one of the values that it scales.
fn waits_for_row(graph: &Graph, factor: Value, scaled: &[Value]) -> bool {
    depends_on(graph, factor, |v| {
        let node = graph.node(v.node);
        matches!(node.op, Op::Reduce { .. })
            && depends_on(graph, node.operands[0], |operand| scaled.contains(&operand))
    })
}

/// Whether `value` is computed point by point, and by views, from a value that `found` accepts, or is one.
fn depends_on(graph: &Graph, value: Value, found: impl Fn(Value) -> bool) -> bool {
    let (mut todo, mut seen) = (vec![value], HashSet::new());
    while let Some(value) = todo.pop() {
        if seen.len() == MOST_NODES || !seen.insert(value) {
            continue;
        }
        if found(value) {
            return true;
        }
        let node = graph.node(value.node);
        if matches!(node.op, Op::Elementwise(_) | Op::Reshape(_) | Op::Broadcast(_) | Op::Permute(_)) {
            todo.extend(&node.operands);
        }
    }
    false
}
