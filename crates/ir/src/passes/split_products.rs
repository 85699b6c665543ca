//! Splits a matmul whose result is read in slices of columns, so that what reads each slice becomes its epilogue.
//!
//! In `h = x w; h[..n] * silu(h[n..])`, an epilogue computes each element from one column of `h`, so the product of the
//! halves would be a kernel of its own. And an epilogue writes all columns of its product, so what only queries, a part
//! of them, go through would be one too. Matmuls of one left operand share a kernel, in which each has its epilogue:
//!
//! - `slice(matmul(x, w), columns) = matmul(x, slice(w, columns))`: each result is the same sum.
//! - `slice(f(a, b), columns) = f(slice(a, columns), slice(b, columns))` for elementwise `f`, such as a bias, and for a
//!   reshape that keeps the columns.
//!
//! The slices do not overlap, and nothing else reads the result: the products stay the same. Narrow slices of many rows
//! stay, since each would be a tile of its own. So do those that are concatenated again, as a rotary embedding
//! does: an epilogue computes these from a tile of the whole product.

use std::collections::{BTreeSet, HashMap};

use crate::caps::DeviceCaps;
use crate::dim::Dim;
use crate::form::are_few;
use crate::graph::{Graph, GraphError, Node, NodeId, Value};
use crate::op::Op;
use crate::rewrite::rebuild;
use crate::shape::Shape;

/// Most elementwise ops between a matmul and its slices, and between the slices and what combines them.
const LONGEST_CHAIN: usize = 16;

/// Fewest columns of slices that are combined: half of the smallest tile.
const LEAST_COLUMNS: i64 = 32;

/// Columns of a tile of many rows, the largest, and those that a workgroup of a matvec has at least.
const TILE: [i64; 2] = [128, 8];

/// Elements that kernels load at once. A slice of the right operand that starts elsewhere would be read one by one.
const VECTOR: i64 = 8;

/// Slices may take one more tile for each so many tiles of the whole product.
const TILES_PER_SPARE: i64 = 8;

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
        *operand = sliced_operand(graph, *operand, axis, (start, len))?;
    }
    match op {
        Op::Reshape(_) => graph.add(Op::Reshape(slice.types[0].shape.clone()), &operands),
        op => graph.add(op, &operands),
    }
}

/// Elements `start .. start + len` of an axis, sliced before they are transposed and cast. What is cast then has a single
/// reader, whose kernel computes it; read by several matmuls, it would be stored.
fn sliced_operand(
    graph: &mut Graph,
    of: Value,
    axis: usize,
    range: (&Dim, &Dim),
) -> Result<Value, GraphError> {
    let Node { op, operands, .. } = graph.node(of.node).clone();
    let inner = match &op {
        Op::Permute(axes) => axes[axis],
        Op::Cast(_) => axis,
        _ => {
            let (start, len) = (range.0.clone(), range.1.clone());
            return graph.add(Op::Slice { axis, start, len }, &[of]);
        }
    };
    let operand = sliced_operand(graph, operands[0], inner, range)?;
    graph.add(op, &[operand])
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
    let is_candidate = |id: NodeId| {
        let slices: BTreeSet<NodeId> = users[id.index()].iter().copied().collect();
        if outputs.contains(&id) || slices.len() < 2 {
            return false;
        }
        let (Some(lengths), Some(matmul)) =
            (lengths_apart(graph, id, &slices), product_of(graph, &users, id))
        else {
            return false;
        };
        match readers(graph, &users, &slices) {
            Readers::Combine => are_equally_long(&lengths) || fit_tiles(graph, matmul, &lengths),
            Readers::Join => fit_tiles(graph, matmul, &lengths),
            Readers::Rejoin | Readers::Other => false,
        }
    };
    graph.nodes().map(|(id, _)| id).filter(|id| is_candidate(*id)).collect()
}

/// The lengths of `slices`, if all of them are slices of columns of node `id` that do not overlap and start at vectors.
fn lengths_apart(graph: &Graph, id: NodeId, slices: &BTreeSet<NodeId>) -> Option<Vec<i64>> {
    let rank = graph.ty(id.into()).shape.rank();
    let range = |slice: &NodeId| match &graph.node(*slice).op {
        Op::Slice { axis, start, len } if axis + 1 == rank => Some((start.as_const()?, len.as_const()?)),
        _ => None,
    };
    let mut ranges = slices.iter().map(range).collect::<Option<Vec<(i64, i64)>>>()?;
    ranges.sort_unstable();
    let are_apart = ranges.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0);
    let are_vectors = ranges.iter().all(|(start, _)| start % VECTOR == 0);
    (are_apart && are_vectors).then(|| ranges.iter().map(|(_, len)| *len).collect())
}

/// Whether slices are equally long, so that one tile has the same columns of each, and not narrow.
fn are_equally_long(lengths: &[i64]) -> bool {
    lengths.iter().all(|len| *len == lengths[0] && *len >= LEAST_COLUMNS)
}

/// Whether a matmul for each slice takes hardly more tiles than one for all columns.
fn fit_tiles(graph: &Graph, matmul: &Node, lengths: &[i64]) -> bool {
    let tile = TILE[usize::from(is_few_rows(graph, matmul))];
    let tiles = |columns: i64| (columns + tile - 1) / tile;
    let whole = tiles(lengths.iter().sum());
    lengths.iter().map(|len| tiles(*len)).sum::<i64>() <= whole + whole / TILES_PER_SPARE
}

/// Whether a matmul has so few rows that it is a matvec's.
fn is_few_rows(graph: &Graph, matmul: &Node) -> bool {
    let dims = graph.ty(matmul.operands[0]).shape.dims();
    are_few(&dims[dims.len() - 2])
}

/// The matmul that node `id` is, or computed from, by elementwise ops, if nothing else reads it.
fn product_of<'a>(graph: &'a Graph, users: &[Vec<NodeId>], id: NodeId) -> Option<&'a Node> {
    let mut todo = vec![id];
    for _ in 0..LONGEST_CHAIN {
        let id = todo.pop()?;
        let node = graph.node(id);
        match &node.op {
            Op::Matmul => return Some(node),
            op if matches!(op, Op::Elementwise(_) | Op::Cast(_))
                || (matches!(op, Op::Reshape(_)) && keeps_columns(graph, node)) =>
            {
                let only_here = |v: &&Value| users[v.node.index()].iter().all(|user| *user == id);
                todo.extend(node.operands.iter().filter(only_here).map(|v| v.node));
            }
            _ => {}
        }
    }
    None
}

/// What reads slices of a product.
enum Readers {
    /// Some columns of theirs are concatenated again.
    Rejoin,
    /// Elementwise ops combine two of them.
    Combine,
    /// Something that an epilogue may have reads one of them.
    Join,
    /// Only what needs whole rows in memory.
    Other,
}

/// What reads `slices`, also through elementwise ops.
fn readers(graph: &Graph, users: &[Vec<NodeId>], slices: &BTreeSet<NodeId>) -> Readers {
    let mut from: HashMap<NodeId, NodeId> = slices.iter().map(|slice| (*slice, *slice)).collect();
    let mut todo: Vec<(NodeId, usize)> = slices.iter().map(|slice| (*slice, 0)).collect();
    let mut found = Readers::Other;
    while let Some((id, length)) = todo.pop() {
        let slice = from[&id];
        for user in &users[id.index()] {
            let node = graph.node(*user);
            match &node.op {
                Op::Concat { axis } if axis + 1 == node.types[0].shape.rank() => return Readers::Rejoin,
                Op::Elementwise(_) | Op::Cast(_) | Op::Reshape(_) if length < LONGEST_CHAIN => {
                    let is_other = from.get(user).is_some_and(|other| *other != slice);
                    if is_other {
                        found = Readers::Combine;
                    } else if from.insert(*user, slice).is_none() {
                        todo.push((*user, length + 1));
                    }
                }
                _ => {}
            }
            let joins = matches!(
                node.op,
                Op::Elementwise(_) | Op::Cast(_) | Op::Slice { .. } | Op::StateUpdate { .. }
            );
            if joins && matches!(found, Readers::Other) {
                found = Readers::Join;
            }
        }
    }
    found
}
