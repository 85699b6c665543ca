//! Makes sorts of long rows into what workgroups can do: selections, sorted runs and merges.
//!
//! With `t`, the elements that a workgroup sorts:
//! - `slice(argsort(a), 0..k) = argsort(a, first k)`, if nothing reads the other positions. One kernel selects them if
//!   a row has at most `t` elements or `k` is at most `t / 2`.
//! - `argsort(a) = merge(.. merge(argsort(a, runs of t), t) .., 2^(p - 1) t)` for rows of more than `t` and at most
//!   `2^p t` elements. Each merge doubles the runs, until one run is the row.
//!
//! Sorts and merges order equal elements by position, so both sides are equal.

use crate::caps::DeviceCaps;
use crate::graph::{Graph, GraphError, Node, NodeId, Value};
use crate::op::Op;
use crate::rewrite::rebuild;
use crate::sort::{self, SortSpan};

/// The pass.
pub fn run(graph: &Graph, caps: &DeviceCaps) -> Result<Graph, GraphError> {
    let first = first_positions(graph);
    let span_of = |node: &Node, span: SortSpan| {
        let found = first.iter().find(|(id, _)| std::ptr::eq(graph.node(*id), node));
        found.map_or(span, |(_, count)| SortSpan::First(*count))
    };
    rebuild(graph, |new, node, operands| match &node.op {
        Op::ArgSort { axis, descending, span } => {
            split(new, *axis, *descending, span_of(node, *span), operands[0], caps).map(Some)
        }
        Op::Slice { axis, start, len } if start.is(0) && new.ty(operands[0]).shape.dims()[*axis] == *len => {
            Ok(Some(operands[0]))
        }
        _ => Ok(None),
    })
}

/// The sorts of which only the first positions are read, and how many.
fn first_positions(graph: &Graph) -> Vec<(NodeId, u32)> {
    let users = graph.users();
    let is_output = |id: NodeId| graph.outputs().iter().any(|output| output.value.node == id);
    let most = |id: NodeId, axis: usize| {
        let read = users[id.index()].iter().map(|user| match &graph.node(*user).op {
            Op::Slice { axis: of, start, len } if *of == axis && start.is(0) => {
                u32::try_from(len.as_const()?).ok()
            }
            _ => None,
        });
        read.collect::<Option<Vec<u32>>>()?.into_iter().max().filter(|_| !is_output(id))
    };
    let sorts = graph.nodes().filter_map(|(id, node)| match node.op {
        Op::ArgSort { axis, span: SortSpan::All, .. } => Some((id, most(id, axis)?)),
        _ => None,
    });
    sorts.collect()
}

/// The positions of `span`, by kernels that one workgroup per tile can compute.
fn split(
    graph: &mut Graph,
    axis: usize,
    descending: bool,
    span: SortSpan,
    a: Value,
    caps: &DeviceCaps,
) -> Result<Value, GraphError> {
    let (dtype, extent) = (graph.ty(a).dtype, graph.ty(a).shape.dims()[axis].max_value());
    let tile = sort::tile(dtype, caps);
    let (fits, sorted) = match span {
        SortSpan::All => (false, extent),
        SortSpan::Runs(run) => (run <= tile, extent.min(run.into())),
        SortSpan::First(count) => (count <= sort::most_selected(dtype, caps), extent),
    };
    if fits || extent <= i64::from(tile) {
        return graph.add(Op::ArgSort { axis, descending, span }, &[a]);
    }
    let mut order = graph.add(Op::ArgSort { axis, descending, span: SortSpan::Runs(tile) }, &[a])?;
    let runs = std::iter::successors(Some(tile), |run| run.checked_mul(2));
    for run in runs.take_while(|run| i64::from(*run) < sorted) {
        order = graph.add(Op::MergeRuns { axis, descending, run }, &[a, order])?;
    }
    match span {
        SortSpan::All | SortSpan::Runs(_) => Ok(order),
        SortSpan::First(count) => graph.add(Op::Slice { axis, start: 0.into(), len: count.into() }, &[order]),
    }
}
