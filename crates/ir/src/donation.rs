//! Buffer donation: which operands of a kernel its results may overwrite in place, once nothing else reads the operand.
//!
//! Invocations of a dispatch run in any order. An element may therefore be overwritten only by the invocation that
//! alone reads it, after its last read:
//!
//! * Invocation `i` writes element `i` of result `r`. It alone may read element `i` of operand `p`: the index maps of
//!   all reads of `p` equal the index map of the write.
//! * Both have the same element width, so that element `i` occupies the same bytes.
//! * A map kernel computes its results in order. A later result would read the overwritten `p`, so `r` must be the last
//!   result that reads `p`.
//! * A row kernel whose workgroups (or invocations) each reduce whole rows computes all reductions of a row before it stores
//!   any of its elements. They may therefore read `p` anywhere in the row. Rows must not share a vector of 16 bytes, which
//!   one invocation loads or stores.

use crate::access::param_reads;
use crate::form::{Form, MapForm, RowForm, RowOutput, form, output_root};
use crate::fusion::Fusion;
use crate::graph::{Graph, Value};
use crate::index::{Atoms, Index};
use crate::op::Op;

/// Pairs `(result, operand)` of a fusion: the result may be written into the operand's buffer.
///
/// Only map and row kernels have any: in the others, invocations read elements that other invocations write.
pub fn in_place(fusion: &Fusion) -> Vec<(u32, u32)> {
    match form(fusion.kind, &fusion.body) {
        Ok(Form::Map(form)) => map_in_place(&fusion.body, &form),
        Ok(Form::Row(form)) => row_in_place(&fusion.body, &form),
        Ok(_) | Err(_) => vec![],
    }
}

fn map_in_place(body: &Graph, form: &MapForm) -> Vec<(u32, u32)> {
    let mut atoms = Atoms::default();
    let position = atoms.free(&form.numel);
    // Per operand: the last result that reads it, and whether all reads are at the written position.
    let mut reads: Vec<Option<(usize, bool)>> = vec![None; body.params().len()];
    for output in 0..body.outputs().len() {
        for written in form.positions(body, output, &position) {
            let all = reads_of(body, output, &written, &mut atoms);
            note(body, &mut reads, output, &all, &position);
        }
    }
    let pairs = reads.iter().enumerate().filter_map(|(param, read)| Some((param, (*read)?)));
    let in_place = pairs.filter(|(_, (_, only_here))| *only_here);
    let found = in_place.map(|(param, (output, _))| (output as u32, param as u32));
    found.filter(|pair| has_width(body, *pair)).collect()
}

/// Notes reads of params for an output, the last one that reads them so far, beside whether all are at `position`.
fn note(
    body: &Graph,
    reads: &mut [Option<(usize, bool)>],
    output: usize,
    all: &[(Value, Index)],
    position: &Index,
) {
    for (param, at) in all {
        let Op::Param { index, .. } = body.op(*param) else { continue };
        let Some(read) = reads.get_mut(*index as usize) else { continue };
        let only_here = read.is_none_or(|(_, only_here)| only_here);
        *read = Some((output, only_here && at == position));
    }
}

/// Whether elements of a result have the width of an operand's, and it is no update of a state: its new version always
/// replaces the old one in place.
fn has_width(body: &Graph, (output, param): (u32, u32)) -> bool {
    let value = body.outputs()[output as usize].value;
    let width = body.ty(value).dtype.size();
    let is_update = output_root(body, output as usize) != value;
    !is_update && width.is_some() && width == body.params()[param as usize].dtype.size()
}

fn row_in_place(body: &Graph, form: &RowForm) -> Vec<(u32, u32)> {
    let mut atoms = Atoms::default();
    let (row, i) = (atoms.free(&form.rows), atoms.free(&form.inner));
    let at = form.domain.at(&row, &i, &mut atoms);
    let position = atoms.flatten(&at, &form.domain.shape);
    let inner = |output: &usize| form.outputs[*output] == RowOutput::Inner;
    let outputs: Vec<usize> = (0..form.outputs.len()).filter(inner).collect();
    let Some(first) = outputs.first() else { return vec![] };
    let mut reads: Vec<Option<(usize, bool)>> = vec![None; body.params().len()];
    for (reduce, rows) in &form.reduces {
        let at = rows.at(&row, &i, &mut atoms);
        let all = param_reads(body, body.node(*reduce).operands[0], &at, &mut atoms);
        // As if for the first output, before which all reductions are done.
        note(body, &mut reads, *first, &all, &position);
    }
    for output in outputs {
        let all = reads_of(body, output, &position, &mut atoms);
        note(body, &mut reads, output, &all, &position);
    }
    // Results per row are computed after the elements are stored.
    let mut read_after = vec![];
    for output in (0..form.outputs.len()).filter(|output| !inner(output)) {
        read_after.extend(reads_of(body, output, &row, &mut atoms).into_iter().map(|(param, _)| param));
    }
    let is_read_after = |param: usize| {
        read_after
            .iter()
            .any(|value| matches!(body.op(*value), Op::Param { index, .. } if *index as usize == param))
    };
    let has_whole_vectors = |param: usize| {
        let bytes = body.params()[param].dtype.size().zip(form.inner.as_const());
        bytes.is_some_and(|(width, inner)| (inner * width as i64) % 16 == 0)
    };
    let pairs = reads.iter().enumerate().filter_map(|(param, read)| Some((param, (*read)?)));
    let in_place = pairs
        .filter(|(param, (_, only_here))| *only_here && !is_read_after(*param) && has_whole_vectors(*param));
    let found = in_place.map(|(param, (output, _))| (output as u32, param as u32));
    found.filter(|pair| has_width(body, *pair)).collect()
}

/// Operands and positions that the element at `position` of an output reads; for a state update also its row indices.
fn reads_of(body: &Graph, output: usize, position: &Index, atoms: &mut Atoms) -> Vec<(Value, Index)> {
    let at = atoms.unflatten(position, &body.ty(output_root(body, output)).shape);
    param_reads(body, body.outputs()[output].value, &at, atoms)
}
