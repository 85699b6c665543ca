//! Rules of matrix products: which operand is on the left, and which of its axes are rows.

use std::collections::{HashMap, HashSet};

use crate::caps::DeviceCaps;
use crate::dim::Dim;
use crate::form::are_few;
use crate::graph::{Graph, GraphError, Value};
use crate::op::Op;
use crate::shape::Shape;

/// `matmul(a: [.., m, k], b: [.., k, n])` -> `transpose(matmul(transpose(b), transpose(a)))` for few columns and many
/// rows: the matmul on the right has few rows, as those of a matvec. Each result is the same sum of the same products in
/// the same order. A tile of columns would be nearly empty. Other products, and the exchanged one, then go to
/// [`fold_batch`].
pub(super) fn matmul(
    g: &mut Graph,
    [a, b]: [Value; 2],
    result: &Shape,
    alone: bool,
    caps: &DeviceCaps,
) -> Result<Option<Value>, GraphError> {
    let dims = result.dims();
    let [few_rows, few_columns] = [2, 1].map(|from_end| are_few(&dims[dims.len() - from_end]));
    if few_rows || !few_columns || !alone {
        return fold_batch(g, [a, b], result, caps);
    }
    let [left, right] = [exchange_rows(g, b)?, exchange_rows(g, a)?];
    let product = g.add(Op::Matmul, &[left, right])?;
    let exchanged = g.ty(product).shape.clone();
    let folded = fold_batch(g, [left, right], &exchanged, caps)?;
    exchange_rows(g, folded.unwrap_or(product)).map(Some)
}

/// Left operands of matmuls with more columns than a matvec has rows. Another matmul of such an operand may share their
/// kernel.
pub(super) fn lefts_of_many_columns(graph: &Graph) -> HashSet<Value> {
    let many = |v: Value| graph.ty(v).shape.dims().last().is_some_and(|columns| !are_few(columns));
    let products = graph.nodes().filter(|(_, node)| node.op == Op::Matmul && many(node.operands[1]));
    products.map(|(_, node)| node.operands[0]).collect()
}

/// The last two axes exchanged: in front of a broadcast along other axes, and by a reshape where one of them has extent 1.
fn exchange_rows(g: &mut Graph, v: Value) -> Result<Value, GraphError> {
    let dims = g.ty(v).shape.dims().to_vec();
    let (rows, columns) = (dims.len() - 2, dims.len() - 1);
    let (source, _) = before_batches(g, v, dims.len());
    if source != v {
        let source = exchange_rows(g, source)?;
        let mut dims = dims;
        dims.swap(rows, columns);
        return g.add(Op::Broadcast(Shape::new(dims)), &[source]);
    }
    if dims[rows].is(1) || dims[columns].is(1) {
        let mut dims = dims;
        dims.swap(rows, columns);
        return g.reshape(v, Shape::new(dims));
    }
    let mut axes: Vec<usize> = (0..dims.len()).collect();
    axes.swap(rows, columns);
    g.permute(v, &axes)
}

/// Rows of the smallest tile of a matmul.
const LEAST_ROWS: i64 = 32;

/// `matmul(a: [.., b, m, k], w: [.., 1, k, n])` -> `matmul(a as [.., 1, b m, k], w)` as `[.., b, m, n]`: one right
/// operand serves the rows of all its batches, so that it is read once. Each result stays the same sum. Broadcasts of the
/// right operand along leading axes are looked through.
fn fold_batch(
    g: &mut Graph,
    [a, right]: [Value; 2],
    result: &Shape,
    caps: &DeviceCaps,
) -> Result<Option<Value>, GraphError> {
    let dims = g.ty(a).shape.dims().to_vec();
    let batch = dims.len() - 2;
    // A batch that only the right operand has, broadcast, stays.
    if dims[..batch] != result.dims()[..batch] {
        return Ok(None);
    }
    let (source, inner) = before_batches(g, right, dims.len());
    // The axes next to the rows.
    let first = (0..batch).rev().take_while(|axis| inner[*axis].is(1)).last().unwrap_or(batch);
    let folded = dims[first..batch].iter().fold(Dim::one(), |n, d| &n * d);
    // Few rows of a symbolic batch are a matvec. Rows of a symbolic number are folded, so that they share the right operand.
    let is_known = dims[batch].as_const().is_some();
    let matvecs = folded.as_const().is_none() && is_known && are_few(&dims[batch]);
    let rows = &folded * &dims[batch];
    // Tiles of rows lie along one axis of the grid, batches along another.
    let fits = rows.max_value() <= LEAST_ROWS * i64::from(caps.max_workgroup_count[1]);
    if folded.is(1) || matvecs || !fits {
        return Ok(None);
    }
    let ones = vec![Dim::one(); batch - first];
    let left = [&dims[..first], &ones, &[rows, dims[batch + 1].clone()]].concat();
    let left = g.reshape(a, Shape::new(left))?;
    let right = g.reshape(source, Shape::new(inner))?;
    let product = g.add(Op::Matmul, &[left, right])?;
    g.reshape(product, result.clone()).map(Some)
}

/// What a matmul's right operand is before it is broadcast along batches, and its extents, of `rank` axes.
fn before_batches(g: &Graph, right: Value, rank: usize) -> (Value, Vec<Dim>) {
    let node = g.node(right.node);
    let dims = g.ty(right).shape.dims();
    if let Op::Broadcast(_) = node.op {
        let source = g.ty(node.operands[0]).shape.dims();
        // An old version of a state may be overwritten before the matmul, which reads its copy.
        let state = matches!(g.op(node.operands[0]), Op::State { .. } | Op::StateUpdate { .. });
        if !state && source.len() >= 2 && source[source.len() - 2..] == dims[rank - 2..] {
            let missing = vec![Dim::one(); rank - source.len()];
            return (node.operands[0], [&missing, source].concat());
        }
    }
    (right, dims.to_vec())
}

/// `permute(matmul(permute(a), b))` -> `matmul(permute(b), a)`, where permutes exchange rows and columns: the transposed product
/// has the same sums of the same products in the same order. The gradient of a weight that the forward pass reads transposed
/// is such a product, and its readers, the optimizer and the norm of all gradients, then read it in order.
///
/// Reshapes that add or drop axes of extent 1 may lie between. `product` is the permute's operand, read by it alone.
pub(super) fn transposed(
    g: &mut Graph,
    axes: &[usize],
    product: Value,
    result: &Shape,
) -> Result<Option<Value>, GraphError> {
    let (inner, outer) = (without_ones(g, product), &g.ty(product).shape);
    let node = g.node(inner.node);
    let (Op::Matmul, [left, right]) = (&node.op, &node.operands[..]) else { return Ok(None) };
    let (left, right) = (*left, *right);
    let Some([rows, columns]) = last_two(outer) else { return Ok(None) };
    // Few rows or columns are a matvec, whose sides have been chosen.
    let is_same = last_two(&node.types[0].shape) == Some([rows, columns]);
    if are_few(rows) || are_few(columns) || !is_same || !exchanges_rows(axes) {
        return Ok(None);
    }
    let Some(source) = before_exchange(g, left) else { return Ok(None) };
    // An old version of a state may be overwritten before the matmul, which reads its copy.
    if matches!(g.op(source), Op::State { .. } | Op::StateUpdate { .. }) {
        return Ok(None);
    }
    // A transposed right operand is read as it lies; weights in blocks are read from the right.
    if before_exchange(g, right).is_some() || matches!(g.op(without_views(g, right)), Op::Dequantize(_)) {
        return Ok(None);
    }
    let mut dims = g.ty(left).shape.dims().to_vec();
    let last = dims.len() - 1;
    dims.swap(last - 1, last);
    let operands = [exchange_rows(g, right)?, g.reshape(source, Shape::new(dims))?];
    let product = g.add(Op::Matmul, &operands)?;
    g.reshape(product, result.clone()).map(Some)
}

/// Products, or reshapes of them, that a permute reads and nothing else. Not of a left operand that other products read,
/// which may share a kernel.
pub(super) fn read_by_one_permute(graph: &Graph) -> HashSet<Value> {
    let products = graph.nodes().filter(|(_, node)| node.op == Op::Matmul);
    let mut lefts: HashMap<Value, u32> = HashMap::new();
    for (_, node) in products {
        *lefts.entry(node.operands[0]).or_default() += 1;
    }
    let mut users = vec![0_u32; graph.len()];
    let read =
        graph.nodes().flat_map(|(_, node)| &node.operands).chain(graph.outputs().iter().map(|o| &o.value));
    for value in read {
        users[value.node.index()] += 1;
    }
    let is_alone = |of: &Value| {
        let mut v = *of;
        while users[v.node.index()] == 1 && matches!(graph.op(v), Op::Reshape(_)) {
            v = graph.node(v.node).operands[0];
        }
        let node = graph.node(v.node);
        users[v.node.index()] == 1 && node.op == Op::Matmul && lefts.get(&node.operands[0]) == Some(&1)
    };
    let permuted =
        graph.nodes().filter(|(_, node)| matches!(node.op, Op::Permute(_))).map(|(_, n)| n.operands[0]);
    permuted.filter(is_alone).collect()
}

fn last_two(shape: &Shape) -> Option<[&Dim; 2]> {
    match shape.dims() {
        [.., rows, columns] => Some([rows, columns]),
        _ => None,
    }
}

/// Whether a permute exchanges the last two axes and nothing else.
fn exchanges_rows(axes: &[usize]) -> bool {
    let rank = axes.len();
    rank >= 2
        && axes.iter().enumerate().all(|(to, from)| match rank - 1 - to {
            0 => *from + 2 == rank,
            1 => *from + 1 == rank,
            _ => *from == to,
        })
}

/// What `v` is before its rows and columns are exchanged, if they are.
fn before_exchange(g: &Graph, v: Value) -> Option<Value> {
    let inner = without_ones(g, v);
    let is_same = last_two(&g.ty(inner).shape) == last_two(&g.ty(v).shape);
    match g.op(inner) {
        Op::Permute(axes) if is_same && exchanges_rows(axes) => Some(g.node(inner.node).operands[0]),
        _ => None,
    }
}

/// What `v` is before reshapes that add or drop axes of extent 1.
fn without_ones(g: &Graph, v: Value) -> Value {
    let long = |v: Value| g.ty(v).shape.dims().iter().filter(|n| !n.is(1)).cloned().collect::<Vec<Dim>>();
    let mut v = v;
    while matches!(g.op(v), Op::Reshape(_)) && long(g.node(v.node).operands[0]) == long(v) {
        v = g.node(v.node).operands[0];
    }
    v
}

fn without_views(g: &Graph, v: Value) -> Value {
    let mut v = v;
    while matches!(g.op(v), Op::Reshape(_) | Op::Permute(_) | Op::Broadcast(_)) {
        v = g.node(v.node).operands[0];
    }
    v
}
