//! The loop of a map kernel, and the states that it updates.

use super::states::{is_read, reads_of, updates, writes_whole};
use super::{Reason, no, output_root};
use crate::dim::Dim;
use crate::graph::{Graph, Value};
use crate::index::{Atoms, Index};
use crate::op::Op;

/// Most elements of a state that one invocation writes: each is a value in a register until all are computed.
const MOST_REPEATS: i64 = 8;

/// Invocation `i` writes element `i` of each output. Of the new version of a state that has several times as many elements, it
/// writes elements `i`, `numel + i`, `2 numel + i` and so on, after it has read all that it reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapForm {
    /// Invocations; elements of each output that is no such state.
    pub numel: Dim,
}

impl MapForm {
    /// The positions of the elements of an output that invocation `i` writes.
    pub fn positions(&self, body: &Graph, output: usize, i: &Index) -> Vec<Index> {
        let repeats = self.repeats(body, output).unwrap_or(1);
        (0..repeats).map(|n| i.offset(&(&self.numel * &Dim::constant(n)))).collect()
    }

    /// Whether an invocation writes several elements of an output.
    pub fn repeats_any(&self, body: &Graph) -> bool {
        (0..body.outputs().len()).any(|output| self.repeats(body, output) != Some(1))
    }

    /// Elements of an output that an invocation writes, if all write as many.
    fn repeats(&self, body: &Graph, output: usize) -> Option<i64> {
        let numel = body.ty(output_root(body, output)).shape.numel();
        if numel == self.numel {
            return Some(1);
        }
        numel.div_exact(&self.numel)?.as_const().filter(|n| (1..=MOST_REPEATS).contains(n))
    }

    /// Whether each invocation alone reads the elements of updated states that it writes: all its reads of such a state are
    /// at positions that it writes. The new version must depend on the old one, so that it is stored after the old one
    /// was read. Only such a state may have more elements than invocations.
    pub(super) fn reads_what_it_writes(&self, body: &Graph) -> bool {
        let outputs = body.outputs().len();
        let mut atoms = Atoms::default();
        let i = atoms.free(&self.numel);
        let mut states: Vec<(Value, i64, bool)> = vec![];
        for output in 0..outputs {
            let Some(repeats) = self.repeats(body, output) else { return false };
            let update = body.node(body.outputs()[output].value.node);
            let state = update.operands.first().copied();
            let read = state.filter(|v| matches!(update.op, Op::StateUpdate { .. }) && is_read(body, *v));
            match read {
                Some(state) if writes_whole(body, update) => states.push((state, repeats, false)),
                Some(_) => return false,
                None if repeats > 1 => return false,
                None => {}
            }
        }
        for output in 0..outputs {
            let (root, value) = (output_root(body, output), body.outputs()[output].value);
            for position in self.positions(body, output, &i) {
                let at = atoms.unflatten(&position, &body.ty(root).shape);
                for (state, repeats, depends) in &mut states {
                    let reads = reads_of(body, (value, &at), *state, &mut atoms);
                    if !reads.iter().all(|read| self.is_written(read, &i, *repeats)) {
                        return false;
                    }
                    *depends |= updates(body, value, *state) && !reads.is_empty();
                }
            }
        }
        states.iter().all(|(_, _, depends)| *depends)
    }

    /// Whether invocation `i` writes the element at `read` of an output of which it writes so many elements.
    fn is_written(&self, read: &Index, i: &Index, repeats: i64) -> bool {
        (0..repeats).any(|n| *read == i.offset(&(&self.numel * &Dim::constant(n))))
    }
}

/// The loop of a map. Where a state is read and written, it may have fewer invocations than the state has elements.
pub(super) fn map(body: &Graph) -> Result<MapForm, Reason> {
    let numels: Vec<Dim> =
        (0..body.outputs().len()).map(|o| body.ty(output_root(body, o)).shape.numel()).collect();
    let first = MapForm { numel: numels[0].clone() };
    match numels.iter().find(|numel| **numel != numels[0]) {
        Some(other) => {
            let least = numels.iter().min_by_key(|numel| numel.max_value()).unwrap_or(other);
            let form = MapForm { numel: least.clone() };
            if form.reads_what_it_writes(body) {
                return Ok(form);
            }
            no(format!("outputs of {} and {other} elements", numels[0]))
        }
        None => {
            let fewer = || along_leading_axes(body).into_iter().find(|form| form.reads_what_it_writes(body));
            let stays = !updates_what_it_reads(body) || first.reads_what_it_writes(body);
            Ok(if stays { first } else { fewer().unwrap_or(first) })
        }
    }
}

/// Whether the kernel reads a state that it updates.
fn updates_what_it_reads(body: &Graph) -> bool {
    let mut updates = body.nodes().filter(|(_, n)| matches!(n.op, Op::StateUpdate { .. }));
    updates.any(|(_, n)| is_read(body, n.operands[0]))
}

/// Loops whose invocations walk along the leading axes of the first output.
fn along_leading_axes(body: &Graph) -> Vec<MapForm> {
    let dims = body.ty(output_root(body, 0)).shape.dims();
    let rest = |axes: usize| dims[axes..].iter().fold(Dim::one(), |n, d| &n * d);
    let is_short = |axes: &usize| {
        let walked = dims[..*axes].iter().map(Dim::as_const).try_fold(1i64, |n, d| n.checked_mul(d?));
        walked.is_some_and(|n| (2..=MOST_REPEATS).contains(&n))
    };
    (1..dims.len()).filter(is_short).map(|axes| MapForm { numel: rest(axes) }).collect()
}
