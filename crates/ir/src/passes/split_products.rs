//! Splits a matmul whose result is read in slices of columns that elementwise ops combine, so that these become its
//! epilogue.
//!
//! In `h = x w; h[..n] * silu(h[n..])`, an epilogue computes each element from one column of `h`, so the product of the
//! halves would be a kernel of its own. Two matmuls of one left operand share a kernel, and its epilogue
//! combines their columns:
//!
//! - `slice(matmul(x, w), columns) = matmul(x, slice(w, columns))`: each result is the same sum.
//! - `slice(f(a, b), columns) = f(slice(a, columns), slice(b, columns))` for elementwise `f`, such as a bias, and for a
//!   reshape that keeps the columns.
//!
//! The slices are equally long and do not overlap, and nothing else reads the result: the products stay the same. Narrow
//! slices stay, since each would be a tile of its own. So do those that are concatenated again, as a rotary embedding
//! does: an epilogue computes these from a tile of the whole product.

use std::collections::{BTreeSet, HashMap};

use crate::caps::DeviceCaps;
use crate::form::MATVEC_MAX_ROWS;
use crate::graph::{Graph, GraphError, Node, NodeId, Value};
use crate::op::Op;
use crate::rewrite::rebuild;
use crate::shape::Shape;

/// Most elementwise ops between a matmul and its slices, and between the slices and what combines them.
const LONGEST_CHAIN: usize = 16;

/// Fewest columns of a slice: half of the smallest tile.
const LEAST_COLUMNS: i64 = 32;

/// The pass.
pub fn run(graph: &Graph, _: &DeviceCaps) -> Result<Graph, GraphError> {
    let mut graph = graph.clone();
    // Each round moves slices above one op.
    for _ in 0..LONGEST_CHAIN {
        // Without what nobody reads any more: users decide.
        graph = rebuild(&graph, |_, _, _| Ok(None))?;
        let split = candidates(&graph);
        if split.is_empty() {
            break;
        }
        let is_split = |value: Value| split.contains(&value.node);
        graph = rebuild(&graph, |new, node, operands| match &node.op {
            Op::Slice { .. } if is_split(node.operands[0]) => sliced(new, node, operands[0]).map(Some),
            _ => Ok(None),
        })?;
    }
    Ok(graph)
}

/// The slice of a matmul or an elementwise op, computed from slices of its operands.
fn sliced(graph: &mut Graph, slice: &Node, of: Value) -> Result<Value, GraphError> {
    let Node { op, mut operands, .. } = graph.node(of.node).clone();
    let Op::Slice { start, len, .. } = &slice.op else { return Ok(of) };
    let first = if op == Op::Matmul { operands.len() - 1 } else { 0 };
    for operand in &mut operands[first..] {
        let axis = graph.ty(*operand).shape.rank() - 1;
        *operand = graph.add(Op::Slice { axis, start: start.clone(), len: len.clone() }, &[*operand])?;
    }
    match op {
        Op::Reshape(_) => graph.add(Op::Reshape(slice.types[0].shape.clone()), &operands),
        op => graph.add(op, &operands),
    }
}

/// Whether a reshape keeps the last axis.
fn keeps_columns(graph: &Graph, node: &Node) -> bool {
    let last = |shape: &Shape| shape.dims().last().cloned();
    let columns = last(&graph.ty(node.operands[0]).shape);
    columns.is_some() && columns == last(&node.types[0].shape)
}

/// The nodes whose slices are to be computed from slices of their operands.
fn candidates(graph: &Graph) -> BTreeSet<NodeId> {
    let users = graph.users();
    let outputs: BTreeSet<NodeId> = graph.outputs().iter().map(|output| output.value.node).collect();
    let mut found = BTreeSet::new();
    for (id, _) in graph.nodes() {
        if outputs.contains(&id) || users[id.index()].len() < 2 {
            continue;
        }
        let slices: BTreeSet<NodeId> = users[id.index()].iter().copied().collect();
        if are_apart(graph, id, &slices)
            && ends_in_product(graph, &users, id)
            && are_combined(graph, &users, &slices)
        {
            found.insert(id);
        }
    }
    found
}

/// Whether all of `slices` are slices of columns of node `id`, equally long and without overlap.
fn are_apart(graph: &Graph, id: NodeId, slices: &BTreeSet<NodeId>) -> bool {
    let rank = graph.ty(id.into()).shape.rank();
    let range = |slice: &NodeId| match &graph.node(*slice).op {
        Op::Slice { axis, start, len } if axis + 1 == rank => Some((start.as_const()?, len.as_const()?)),
        _ => None,
    };
    let Some(mut ranges) = slices.iter().map(range).collect::<Option<Vec<(i64, i64)>>>() else {
        return false;
    };
    ranges.sort_unstable();
    if ranges.iter().any(|(_, len)| *len < LEAST_COLUMNS) {
        return false;
    }
    ranges.len() > 1
        && ranges.windows(2).all(|pair| pair[0].1 == pair[1].1 && pair[0].0 + pair[0].1 <= pair[1].0)
}

/// Whether a matmul has so few rows that its kernel depends on the size of the right operand.
fn is_few_rows(graph: &Graph, node: &Node) -> bool {
    let dims = graph.ty(node.operands[0]).shape.dims();
    dims[dims.len() - 2].as_const().is_some_and(|rows| rows <= MATVEC_MAX_ROWS)
}

/// Whether node `id` is a matmul whose right operand is not read from blocks, or computed from one, that nothing else
/// reads, by elementwise ops.
fn ends_in_product(graph: &Graph, users: &[Vec<NodeId>], id: NodeId) -> bool {
    let mut todo = vec![id];
    for _ in 0..LONGEST_CHAIN {
        let Some(id) = todo.pop() else { return false };
        let node = graph.node(id);
        match &node.op {
            Op::Matmul => return !has_blocks(graph, node.operands[1]) && !is_few_rows(graph, node),
            op if matches!(op, Op::Elementwise(_) | Op::Cast(_))
                || (matches!(op, Op::Reshape(_)) && keeps_columns(graph, node)) =>
            {
                let only_here = |v: &&Value| users[v.node.index()].iter().all(|user| *user == id);
                todo.extend(node.operands.iter().filter(only_here).map(|v| v.node));
            }
            _ => {}
        }
    }
    false
}

/// Whether a value is read from quantized blocks, whose kernels want whole weights.
fn has_blocks(graph: &Graph, value: Value) -> bool {
    let mut value = value;
    loop {
        let node = graph.node(value.node);
        match &node.op {
            Op::Dequantize(_) => return true,
            op if op.is_view() || matches!(op, Op::Cast(_)) => value = node.operands[0],
            _ => return false,
        }
    }
}

/// Whether elementwise ops combine two of `slices`, and nothing concatenates what they make of them.
fn are_combined(graph: &Graph, users: &[Vec<NodeId>], slices: &BTreeSet<NodeId>) -> bool {
    let mut from: HashMap<NodeId, NodeId> = slices.iter().map(|slice| (*slice, *slice)).collect();
    let mut todo: Vec<(NodeId, usize)> = slices.iter().map(|slice| (*slice, 0)).collect();
    let mut combined = false;
    while let Some((id, length)) = todo.pop() {
        let slice = from[&id];
        for user in &users[id.index()] {
            if matches!(graph.node(*user).op, Op::Concat { .. }) {
                return false;
            }
            let passes = matches!(graph.node(*user).op, Op::Elementwise(_) | Op::Cast(_) | Op::Reshape(_));
            if length >= LONGEST_CHAIN || !passes {
                continue;
            }
            match from.get(user) {
                Some(other) => combined |= *other != slice,
                None => {
                    from.insert(*user, slice);
                    todo.push((*user, length + 1));
                }
            }
        }
    }
    combined
}
