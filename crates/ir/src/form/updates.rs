//! Which updates of states a kernel can make.
//!
//! A kernel may read the state that it updates where the invocation that writes an element is the only one that reads it:
//! a map or a row kernel whose reads of the state are all at elements that the same invocation writes. The new element must
//! depend on the old one, so that it is stored after the old one was read, in whatever order results are stored. An
//! optimizer's step is one kernel, and so is a step of a recurrence with a sum over its new state.

use super::map::map;
use super::states::{is_read, reads_of, updates, writes_whole};
use super::{Reason, RowForm, RowOutput, no, output_root, row};
use crate::access::anchor_reads;
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
        if is_read(body, node.operands[0]) && !reads_what_it_writes(kind, body, node) {
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

/// Whether the update writes the whole state, each element in the invocation that alone reads it, and from it.
fn reads_what_it_writes(kind: FusionKind, body: &Graph, update: &Node) -> bool {
    if !writes_whole(body, update) {
        return false;
    }
    match kind {
        FusionKind::Map => map(body).is_ok_and(|form| form.reads_what_it_writes(body)),
        FusionKind::Row => {
            let reduces = body.nodes().filter(|(_, n)| matches!(n.op, Op::Reduce { .. }));
            let reduces: Vec<NodeId> = reduces.map(|(id, _)| id).collect();
            let form = if reduces.is_empty() { no("no reduction") } else { row(body, &reduces) };
            form.is_ok_and(|form| row_reads_what_it_writes(body, &form, update.operands[0]))
        }
        FusionKind::Matvec
        | FusionKind::Matmul
        | FusionKind::Attention
        | FusionKind::Quantize
        | FusionKind::Scan
        | FusionKind::Sort
        | FusionKind::Scatter
        | FusionKind::IndexAdd
        | FusionKind::AttentionGrad
        | FusionKind::Custom => false,
    }
}

/// The loops over a row give an element to the same invocation: those that reduce the row, which come first, and the one that
/// stores elements. Elements of other rows are in other vectors of 16 bytes. What has one element a row is computed after
/// the row is stored, and must not read it again. A reduction over columns is left alone: its kernel reads several columns as
/// one vector.
fn row_reads_what_it_writes(body: &Graph, form: &RowForm, state: Value) -> bool {
    let bytes = body.ty(state).dtype.size().zip(form.inner.as_const());
    let has_whole_vectors = bytes.is_some_and(|(width, inner)| (inner * width as i64) % 16 == 0);
    if !has_whole_vectors || form.is_contiguous_across_rows(body) {
        return false;
    }
    let mut atoms = Atoms::default();
    let (row, i) = (atoms.free(&form.rows), atoms.free(&form.inner));
    let at = form.domain.at(&row, &i, &mut atoms);
    let position = atoms.flatten(&at, &form.domain.shape);
    for (reduce, rows) in &form.reduces {
        let at = rows.at(&row, &i, &mut atoms);
        let reads = reads_of(body, (body.node(*reduce).operands[0], &at), state, &mut atoms);
        if reads.iter().any(|read| *read != position) {
            return false;
        }
    }
    let mut depends = false;
    for (output, kind) in form.outputs.iter().enumerate() {
        let value = body.outputs()[output].value;
        let shape = &body.ty(output_root(body, output)).shape;
        let at = match kind {
            RowOutput::Inner => atoms.unflatten(&position, shape),
            RowOutput::Row => atoms.unflatten(&row, shape),
        };
        let reads = reads_of(body, (value, &at), state, &mut atoms);
        let here = *kind == RowOutput::Inner && reads.iter().all(|read| *read == position);
        if !reads.is_empty() && !here {
            return false;
        }
        depends |= updates(body, value, state) && !reads.is_empty();
    }
    depends
}
