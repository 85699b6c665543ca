//! Short rows: one invocation reduces a whole row, or several whose elements overlap.

use tallow_ir::form::{RowForm, Rows};
use tallow_ir::index::Index;
use tallow_ir::{Dim, cost};

use super::Mapping;
use crate::assemble::floor_pow2;
use crate::blocks::row_group::{RowGroup, RowGroups};
use crate::blocks::row_loop::{ReduceScope, RowLoop};
use crate::emit::Emitter;
use crate::schedule::Schedule;

/// Longest row (elements) that one invocation reduces. A workgroup per row would leave most invocations idle, and add
/// the reduction across them.
const SHORT_ROW: i64 = 16;

/// The same for rows with strided elements, such as columns and pooling windows. Elements of adjacent rows are then
/// contiguous, and adjacent invocations read them with coalesced loads.
const SHORT_STRIDED_ROW: i64 = 64;

/// Fewest and most invocations per workgroup where each reduces short rows. A device starts about one workgroup a clock,
/// one at a time (H200: 1650 a microsecond): 64 invocations that each reduce one window take less time than their start.
const WORKGROUP: (u32, u32) = (64, 256);

/// Most nodes of the body that the unrolled loop of an invocation evaluates: 32 for each of 256 elements, 16 of which are
/// instructions in a convolution with padding. These take 64 KiB of the 128 KiB of an instruction cache (H200).
const MOST_UNROLLED: usize = 8192;

/// Rows or groups that an invocation reduces one after the other, as a tuning candidate.
const IN_TURN: u32 = 4;

/// Whether one invocation reduces a whole row.
pub(super) fn is_short(form: &RowForm) -> bool {
    let limit = |rows: &Rows| {
        let first = rows.shape.rank() - rows.axes.len();
        if rows.axes.iter().copied().eq(first..rows.shape.rank()) { SHORT_ROW } else { SHORT_STRIDED_ROW }
    };
    let limit = form.reduces.iter().map(|(_, rows)| limit(rows)).min().unwrap_or(0);
    form.inner.as_const().is_some_and(|n| (1..=limit).contains(&n))
}

/// How invocations reduce short rows, of which `along_row` adjacent elements are loaded as one vector.
pub(super) fn mapping(e: &Emitter<'_>, form: &RowForm, along_row: u32) -> Mapping {
    let row_groups = if along_row == 1 { RowGroups::of(e.body, form) } else { RowGroups::default() };
    let row_group = row_groups.best(most_rows(e, form));
    let workgroup = workgroup(e, form, row_group);
    Mapping { row_group, row_groups, ..Mapping::new(ReduceScope::Invocation, workgroup, along_row) }
}

/// The tuning candidates, the cost model's default first: one row per invocation, the group that shares most, and fewer
/// workgroups, whose invocations reduce several rows or groups one after the other.
pub(super) fn schedules(e: &Emitter<'_>, form: &RowForm, mapping: &Mapping) -> Vec<Schedule> {
    let first = mapping.schedule();
    let mut all = vec![first];
    for row_group in [RowGroup::ONE, mapping.row_groups.best(u32::MAX)] {
        let workgroup = workgroup(e, form, row_group);
        let other = Mapping { row_group, ..Mapping::new(mapping.scope, workgroup, mapping.group) }.schedule();
        if !all.contains(&other) {
            all.push(other);
        }
    }
    if most_rows(e, form) >= IN_TURN * mapping.row_group.size {
        all.push(Schedule { tiles_per_workgroup: IN_TURN, ..first });
    }
    all
}

/// The loop over the elements of a row, or of a group of rows: unrolled if the code stays small. Coordinates in a window
/// are then constants, and what adjacent windows share is computed once.
pub(super) fn row_loop(e: &mut Emitter<'_>, row: &Index, inner: &Dim, row_group: RowGroup) -> RowLoop {
    let mut row_loop = RowLoop::rows(e, row, inner, row_group);
    let nodes = row_group.size as usize * e.body.len();
    row_loop.steps = row_loop.steps_each(e.caps).filter(|steps| *steps as usize * nodes <= MOST_UNROLLED);
    row_loop
}

/// Rows that an invocation may reduce: as many as leave four waves of the largest workgroups. These are half of the
/// invocations that an H200 holds at once (131072 of 270336); loads of several rows are in flight in each.
fn most_rows(e: &Emitter<'_>, form: &RowForm) -> u32 {
    let rows = u32::try_from(form.rows.max_value()).unwrap_or(u32::MAX);
    rows / cost::workgroups_of_waves(e.caps, 4).saturating_mul(WORKGROUP.1)
}

/// Invocations per workgroup where each reduces short rows: as many as leave four waves of workgroups.
fn workgroup(e: &Emitter<'_>, form: &RowForm, row_group: RowGroup) -> u32 {
    let rows = u32::try_from(form.rows.max_value()).unwrap_or(u32::MAX);
    let (least, most) = WORKGROUP;
    let wanted = floor_pow2(rows / row_group.size / cost::workgroups_of_waves(e.caps, 4));
    wanted.clamp(least, most).min(e.caps.max_workgroup_invocations)
}
