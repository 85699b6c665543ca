//! Which operands of a kernel its results may overwrite in place, once nobody else reads the operand (*donation*).
//!
//! Invocations of one dispatch run in any order, so an element may be overwritten only by the invocation that alone
//! reads it, and only after its last read:
//!
//! * Result `r` is written at position `i` by the invocation of `i`. Operand `p` may be read at position `i` alone:
//!   the index maps of all reads of `p` in the kernel equal the index map of the write.
//! * Elements have one width, so that position `i` names the same bytes in both.
//! * A map kernel computes its results in order, element by element. Reads of `p` for a later result would see what was
//!   written for an earlier one, so `r` is the last result that reads `p`.

use crate::access::param_reads;
use crate::form::{Form, MapForm, form, output_root};
use crate::fusion::Fusion;
use crate::graph::{Graph, Value};
use crate::index::{Atoms, Index};
use crate::op::Op;

/// Pairs `(result, operand)` of a fusion: the result may be written where the operand lies.
///
/// Only map kernels have any: in the others, invocations read elements that others write.
pub fn in_place(fusion: &Fusion) -> Vec<(u32, u32)> {
    let body = &fusion.body;
    let Ok(Form::Map(MapForm { numel })) = form(fusion.kind, body) else { return vec![] };
    let mut atoms = Atoms::default();
    let position = atoms.free(&numel);
    // Of each operand: the last result that reads it, and whether all reads are at the position that is written.
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
        // A state's new version lies where the state does.
        let is_update = output_root(body, output) != value;
        let width = body.ty(value).dtype.size();
        if !is_update && width.is_some() && width == body.params()[param].dtype.size() {
            found.push((output as u32, param as u32));
        }
    }
    found
}

/// The operands that the element at `position` of an output reads, and where; of an update, what chooses its rows too.
fn reads_of(body: &Graph, output: usize, position: &Index, atoms: &mut Atoms) -> Vec<(Value, Index)> {
    let at = atoms.unflatten(position, &body.ty(output_root(body, output)).shape);
    param_reads(body, body.outputs()[output].value, &at, atoms)
}
