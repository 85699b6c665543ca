//! Algebraic simplification. Each rule is exact bit for bit, also for NaN, infinities and signed zeros.

mod products;

use crate::caps::DeviceCaps;
use crate::dtype::DType;
use crate::elementwise::ElementwiseOp as E;
use crate::graph::{Graph, GraphError, Node, Value};
use crate::op::Op;
use crate::passes::fold_constants::uniform;
use crate::rewrite::rebuild_results;
use crate::scalar::Scalar;
use crate::shape::TensorType;

/// The pass.
pub fn run(graph: &Graph, caps: &DeviceCaps) -> Result<Graph, GraphError> {
    let shared = products::lefts_of_many_columns(graph);
    let turned = products::read_by_one_permute(graph);
    rebuild_results(graph, |new, node, operands| {
        if is_empty(node) {
            return node.types.iter().map(|ty| empty(new, ty)).collect::<Result<_, _>>().map(Some);
        }
        let found = match &node.op {
            Op::Elementwise(op) => elementwise(new, *op, operands)?,
            Op::Cast(dtype) => match cast(new, *dtype, operands[0]) {
                None => narrow_before_views(new, *dtype, operands[0])?,
                found => found,
            },
            // index_add(x, indices, source) -> x if there is no index
            Op::IndexAdd if new.ty(operands[1]).shape.numel().is(0) => Some(operands[0]),
            Op::Matmul => {
                let alone = !shared.contains(&node.operands[0]);
                products::matmul(new, [operands[0], operands[1]], &node.types[0].shape, alone, caps)?
            }
            Op::Permute(axes) if turned.contains(&node.operands[0]) => {
                products::transposed(new, axes, operands[0], &node.types[0].shape)?
            }
            _ => None,
        };
        Ok(found.map(|value| vec![value]))
    })
}

/// Whether a node computes nothing but tensors without elements, all of which are equal. (There are no block constants.)
fn is_empty(node: &Node) -> bool {
    let is_other = matches!(node.op, Op::Broadcast(_) | Op::StateUpdate { .. } | Op::Fusion(_));
    let is_block = |ty: &TensorType| matches!(ty.dtype, DType::Block(_));
    let types = &node.types;
    types.iter().all(|t| t.shape.numel().is(0) && !is_block(t)) && !is_other && !node.op.is_leaf()
}

fn empty(g: &mut Graph, ty: &TensorType) -> Result<Value, GraphError> {
    let zero = g.add(Op::Const(Scalar::of(ty.dtype, 0.0)), &[])?;
    g.add(Op::Broadcast(ty.shape.clone()), &[zero])
}

fn elementwise(g: &mut Graph, op: E, operands: &[Value]) -> Result<Option<Value>, GraphError> {
    let a = operands[0];
    let constant = |i: usize| operands.get(i).and_then(|v| uniform(g, *v));
    let right_is = |x: f64| constant(1).is_some_and(|c| c.is(x));
    let left_is = |x: f64| constant(0).is_some_and(|c| c.is(x));
    // Adding +0 turns -0 into +0, so only integers and a literal -0 allow it.
    let neutral = |c: Option<Scalar>| {
        c.is_some_and(|c| c.is(0.0) && (!c.dtype().is_float() || c.as_f64().is_sign_negative()))
    };
    let same = match op {
        // x + 0 -> x
        E::Add if neutral(constant(1)) => Some(a),
        // 0 + x -> x
        E::Add if neutral(constant(0)) => Some(operands[1]),
        // x - 0 -> x; for floats -0 - (+0) is -0, but -0 - (-0) is +0.
        E::Sub if right_is(0.0) && constant(1).is_some_and(|c| c.as_f64().is_sign_positive()) => Some(a),
        // x * 1 -> x
        E::Mul if right_is(1.0) => Some(a),
        // 1 * x -> x
        E::Mul if left_is(1.0) => Some(operands[1]),
        // x / 1 -> x
        E::Div if right_is(1.0) => Some(a),
        // -(-x) -> x
        E::Neg => inner(g, a, E::Neg),
        // abs(-x) and abs(abs(x)) are handled by abs itself: |x| == |-x|
        E::Abs => inner(g, a, E::Abs).map(|_| a),
        // select(c, x, x) -> x
        E::Select if operands[1] == operands[2] => Some(operands[1]),
        // select(true, x, y) -> x, select(false, x, y) -> y
        E::Select => constant(0).map(|c| operands[if c.as_i64() != 0 { 1 } else { 2 }]),
        // min(x, x) -> x, max(x, x) -> x
        E::Minimum | E::Maximum if a == operands[1] => Some(a),
        _ => None,
    };
    if same.is_some() {
        return Ok(same);
    }
    let narrow = g.ty(a).dtype != DType::F64;
    match op {
        // pow(x, 2) -> x * x: the square of a float of up to 24 bits is exact in f64, in which ops are defined. Both
        // sides round the same number once. This does not hold for f64 itself.
        E::Pow if right_is(2.0) && narrow => g.elementwise(E::Mul, &[a, a]).map(Some),
        // pow(x, 1) -> x
        E::Pow if right_is(1.0) => Ok(Some(a)),
        _ => Ok(None),
    }
}

/// The operand of `v` if `v` is an `op` node.
fn inner(g: &Graph, v: Value, op: E) -> Option<Value> {
    let node = g.node(v.node);
    (node.op == Op::Elementwise(op)).then(|| node.operands[0])
}

fn cast(g: &Graph, to: DType, a: Value) -> Option<Value> {
    let from = g.ty(a).dtype;
    if from == to {
        return Some(a);
    }
    // cast(cast(x, wider), dtype of x) -> x: widening loses nothing.
    let node = g.node(a.node);
    let Op::Cast(_) = node.op else { return None };
    let origin = g.ty(node.operands[0]).dtype;
    (origin == to && widens(origin, from)).then(|| node.operands[0])
}

/// `cast(view(x), narrower)` -> `view(cast(x, narrower))` for a view that moves each element to one place: a cast has no axes.
/// The kernel that computes `x` then stores the narrow type, also if it is a product, whose results stay in their order.
/// Inputs, weights and states are cast where they are read, also elements that indices choose.
fn narrow_before_views(g: &mut Graph, to: DType, a: Value) -> Result<Option<Value>, GraphError> {
    let bytes = |dtype: DType| dtype.size().unwrap_or(0);
    let (mut source, mut views) = (a, vec![]);
    while let (op @ (Op::Reshape(_) | Op::Permute(_) | Op::Flip { .. }), [operand]) =
        (g.op(source), &g.node(source.node).operands[..])
    {
        views.push(op.clone());
        source = *operand;
    }
    if views.is_empty() || is_stored(g, source) || bytes(to) >= bytes(g.ty(a).dtype) {
        return Ok(None);
    }
    let narrow = match cast(g, to, source) {
        Some(origin) => origin,
        None => g.add(Op::Cast(to), &[source])?,
    };
    views.into_iter().rev().try_fold(narrow, |value, view| g.add(view, &[value])).map(Some)
}

/// Whether a value is an input, weight or state as it is stored, or elements of one.
fn is_stored(g: &Graph, mut value: Value) -> bool {
    while let Op::Gather { .. } = g.op(value) {
        value = g.node(value.node).operands[0];
    }
    g.op(value).is_leaf() || matches!(g.op(value), Op::Dequantize(_))
}

/// True if every value of `from` is representable in `to`.
fn widens(from: DType, to: DType) -> bool {
    use DType::{BF16, F8E4M3, F16, F32, F64, I16, I32, I64, U8, U32};
    matches!(
        (from, to),
        (F8E4M3, F16 | BF16 | F32 | F64)
            | (F16 | BF16, F32 | F64)
            | (F32, F64)
            | (U8, U32 | I16 | I32 | I64 | F16 | F32 | F64)
            | (I16, I32 | I64 | F32 | F64)
            | (U32 | I32, I64 | F64)
    )
}
