//! Sorts short rows by rank: each invocation has one element, and counts the elements of its row that come before it.
//!
//! All compare in shared memory between two barriers, so a row takes as long as one round of comparisons for each of its
//! elements. A merge sort compares less, but waits at two barriers for each doubling of its runs, and has fewer invocations.

use minijinja::context;
use tallow_ir::cost;
use tallow_ir::form::SingleForm;

use super::Sort;
use crate::assemble::finish;
use crate::emit::Emitter;
use crate::error::CodegenError;
use crate::kernel::{Count, Kernel};
use crate::schedule::{Algorithm, Schedule, Tile};

/// Elements of the longest rows.
const LONGEST: i64 = 256;

/// Fewest invocations of a workgroup: those of a subgroup on most devices.
const LEAST_WORKGROUP: u32 = 32;

/// Keys that an invocation compares with its own before it tests for the end of the row.
const AT_ONCE: u32 = 4;

/// Whether rows of `len` elements are sorted by rank.
pub(super) fn fits(e: &Emitter<'_>, len: i64) -> bool {
    (1..=LONGEST).contains(&len) && slots(len) <= e.caps.max_workgroup_invocations
}

/// Slots of a row: a power of two, and whole rounds of comparisons.
fn slots(len: i64) -> u32 {
    (len as u32).next_power_of_two().max(AT_ONCE)
}

/// The schedule: as many rows side by side as leave enough workgroups to fill the device.
pub(super) fn schedule(e: &Emitter<'_>, form: &SingleForm, len: i64) -> Schedule {
    let slots = slots(len);
    let all = e.body.ty(e.body.node(form.node).operands[0]).shape.max_numel();
    let rows = u32::try_from(all / len.max(1) as u64).unwrap_or(u32::MAX).max(1);
    // A larger workgroup adds no parallelism where one thread runs it.
    let wanted = match cost::runs_workgroups_on_one_thread(e.caps) {
        true => 0,
        false => (rows / cost::workgroups_to_fill(e.caps)).max(1).ilog2(),
    };
    let least = (LEAST_WORKGROUP / slots).max(1);
    let most = (LONGEST as u32).min(e.caps.max_workgroup_invocations) / slots;
    let side_by_side = (1u32 << wanted).clamp(least.min(most), most.max(1));
    Schedule {
        tile: Tile { m: side_by_side, n: slots, k: 0 },
        ..Schedule::new(Algorithm::RankSort, slots * side_by_side)
    }
}

/// The kernel for [`schedule`].
pub(super) fn kernel(
    mut e: Emitter<'_>,
    form: &SingleForm,
    sort: &Sort,
    schedule: Schedule,
) -> Result<Kernel, CodegenError> {
    let (side_by_side, slots) = (schedule.tile.m, schedule.tile.n);
    if side_by_side * slots != schedule.workgroup {
        return Err(CodegenError::Node(format!("{}: a row exceeds a workgroup", sort.comment)));
    }
    let stored = e.dim(&sort.sorted.inner());
    let (rows, len) = (e.dim(&sort.rows.rows()), e.dim(&sort.rows.inner()));
    let (x, load) = e.scope(|e| sort.key_at(e, form, "row", "i"))?;
    let store = sort.store(&mut e, form)?;
    let grid = Count::along_x(e.caps, sort.rows.rows(), side_by_side);
    let holes = context! {
        rows, len, stored, x, load => load.join("\n"), store, side_by_side, slots, key => sort.key,
        last => sort.last, at_once => AT_ONCE, comment => &sort.comment,
    };
    finish(e, schedule, "rank_sort.comp", grid, String::new(), holes)
}
