//! Which updates of states a kernel can make.
//!
//! A kernel may read the state that it updates where the invocation that writes an element is the only one that reads it:
//! a map whose reads of the state are all at the element that is written. The new element must depend on the old one, so
//! that it is stored after the old one was read, in whatever order results are stored: an optimizer's step is one kernel.

use super::{MapForm, Reason, map, no, output_root};
use crate::access::{anchor_reads, param_reads};
use crate::fusion::FusionKind;
use crate::graph::{Graph, Node, NodeId, Value};
use crate::index::{Atoms, Index};
use crate::op::Op;

/// Checks state updates: each is an output of the kernel, its old version is read where it may be, and its row indices
/// depend on no anchor, because the store reads them.
pub(super) fn check(kind: FusionKind, body: &Graph) -> Result<(), Reason> {
    for (id, node) in body.nodes() {
        let Op::StateUpdate { .. } = node.op else { continue };
        if !matches!(body.op(node.operands[0]), Op::Param { .. }) {
            return no("a state update of something that is not an operand of the kernel");
        }
        let is_used = body.nodes().any(|(_, n)| n.operands.iter().any(|v| v.node == id));
        if is_used || !body.outputs().iter().any(|o| o.value.node == id) {
            return no("a state is read in the kernel that updates it");
        }
        if is_read(body, node.operands[0]) && !(kind == FusionKind::Map && reads_what_it_writes(body, node)) {
            return no("a state is read in the kernel that updates it");
        }
        let Some(indices) = node.operands.get(2) else { continue };
        let mut atoms = Atoms::default();
        let at: Vec<Index> = body.ty(*indices).shape.dims().iter().map(|d| atoms.free(d)).collect();
        if let Some((anchor, _)) = anchor_reads(body, *indices, &at, &mut atoms).first() {
            return no(format!("rows are chosen by {}", body.node_text(*anchor)));
        }
    }
    Ok(())
}

/// Whether something else than its update reads the state.
pub(super) fn is_read(body: &Graph, state: Value) -> bool {
    let reads = |(_, node): (NodeId, &Node)| {
        let skip = usize::from(matches!(node.op, Op::StateUpdate { .. }) && node.operands[0] == state);
        node.operands[skip..].contains(&state)
    };
    body.nodes().any(reads) || body.outputs().iter().any(|output| output.value == state)
}

/// Whether the update writes the whole state, each element in the invocation that alone reads it, and from it.
fn reads_what_it_writes(body: &Graph, update: &Node) -> bool {
    let Op::StateUpdate { offsets, rows: None } = &update.op else { return false };
    let (state, source) = (update.operands[0], update.operands[1]);
    if body.ty(state).shape != body.ty(source).shape || !offsets.iter().all(|offset| offset.is(0)) {
        return false;
    }
    let Ok(MapForm { numel }) = map(body) else { return false };
    let mut atoms = Atoms::default();
    let position = atoms.free(&numel);
    let mut depends = false;
    for output in 0..body.outputs().len() {
        let root = output_root(body, output);
        let at = atoms.unflatten(&position, &body.ty(root).shape);
        for (_, read) in param_reads(body, root, &at, &mut atoms).into_iter().filter(|(v, _)| *v == state) {
            if read != position {
                return false;
            }
            depends |= root == source;
        }
    }
    depends
}
