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

use crate::access::param_reads;
use crate::form::{Form, MapForm, form, output_root};
use crate::fusion::Fusion;
use crate::graph::{Graph, Value};
use crate::index::{Atoms, Index};
use crate::op::Op;

/// Pairs `(result, operand)` of a fusion: the result may be written into the operand's buffer.
///
/// Only map kernels have any: in the others, invocations read elements that other invocations write.
pub fn in_place(fusion: &Fusion) -> Vec<(u32, u32)> {
    let body = &fusion.body;
    let Ok(Form::Map(MapForm { numel })) = form(fusion.kind, body) else { return vec![] };
    let mut atoms = Atoms::default();
    let position = atoms.free(&numel);
    // Per operand: the last result that reads it, and whether all reads are at the written position.
    let mut reads: Vec<Option<(usize, bool)>> = vec![None; body.params().len()];
    for output in 0..body.outputs().len() {
        for (param, at) in reads_of(body, output, &position, &mut atoms) {
            let Op::Param { index, .. } = body.op(param) else { continue };
            let Some(read) = reads.get_mut(*index as usize) else { continue };
            let only_here = read.is_none_or(|(_, only_here)| only_here);
            *read = Some((output, only_here && at == position));
        }
    }
    let mut found = vec![];
    for (param, read) in reads.iter().enumerate() {
        let Some((output, true)) = *read else { continue };
        let value = body.outputs()[output].value;
        // A state's new version always replaces the old one in place.
        let is_update = output_root(body, output) != value;
        let width = body.ty(value).dtype.size();
        if !is_update && width.is_some() && width == body.params()[param].dtype.size() {
            found.push((output as u32, param as u32));
        }
    }
    found
}

/// Operands and positions that the element at `position` of an output reads; for a state update also its row indices.
fn reads_of(body: &Graph, output: usize, position: &Index, atoms: &mut Atoms) -> Vec<(Value, Index)> {
    let at = atoms.unflatten(position, &body.ty(output_root(body, output)).shape);
    param_reads(body, body.outputs()[output].value, &at, atoms)
}
