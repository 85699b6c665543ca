//! States that a kernel updates: who reads them, and where.

use crate::access::param_reads;
use crate::graph::{Graph, Node, NodeId, Value};
use crate::index::{Atoms, Index};
use crate::op::Op;

/// Whether something else than its update reads the state.
pub(super) fn is_read(body: &Graph, state: Value) -> bool {
    let reads = |(_, node): (NodeId, &Node)| {
        let skip = usize::from(matches!(node.op, Op::StateUpdate { .. }) && node.operands[0] == state);
        node.operands[skip..].contains(&state)
    };
    body.nodes().any(reads) || body.outputs().iter().any(|output| output.value == state)
}

/// Whether an output is an update of the state.
pub(super) fn updates(body: &Graph, output: Value, state: Value) -> bool {
    let node = body.node(output.node);
    matches!(node.op, Op::StateUpdate { .. }) && node.operands[0] == state
}

/// Whether the update writes the whole state.
pub(super) fn writes_whole(body: &Graph, update: &Node) -> bool {
    let Op::StateUpdate { offsets, rows: None } = &update.op else { return false };
    body.ty(update.operands[0]).shape == body.ty(update.operands[1]).shape
        && offsets.iter().all(|offset| offset.is(0))
}

/// Positions of `state` that are read for the element `at` of a value, or of an update, except by reductions. What selects the
/// rows of an update counts.
pub(super) fn reads_of(
    body: &Graph,
    (value, at): (Value, &[Index]),
    state: Value,
    atoms: &mut Atoms,
) -> Vec<Index> {
    let all = param_reads(body, value, at, atoms).into_iter();
    all.filter(|(param, _)| *param == state).map(|(_, at)| at).collect()
}
