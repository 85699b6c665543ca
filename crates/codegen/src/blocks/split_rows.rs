//! Split reduction of rows, for few long rows where one workgroup per row would leave most of the device idle.
//!
//! Each workgroup reduces its part of a row and writes a partial. The last workgroup to finish combines the partials.
//! No workgroup waits for another. The result does not depend on which one is last, since each partial has a fixed
//! slot.
//!
//! Few long columns are split in the same way; a workgroup then reduces its part of several adjacent columns.

use tallow_ir::form::{RowForm, bindings};

use super::last_workgroup;
use super::reduce_functions::{Accumulator, Used};
use super::row_loop::{ReduceScope, RowLoop};
use crate::assemble::floor_pow2;
use crate::emit::Emitter;
use crate::error::CodegenError;
use crate::glsl::Glsl;

/// Fewest invocations of a workgroup that reduces a part of a row.
const WORKGROUP: u32 = 256;

/// Fewest elements per invocation in a part of a column. For parts of rows see `form::split`.
const ELEMENTS: i64 = 16;

/// Fewest parts per column that are worth a split, and most parts of all column tiles together. 256 workgroups of 512
/// invocations fill half of the largest devices.
const PARTS: (i64, i64) = (4, 256);

/// How a row or a tile of columns is split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RowSplit {
    /// Workgroups per row, at most as many as a workgroup has invocations; or per tile of columns, at most as many as a
    /// workgroup has slices.
    pub parts: u32,
    /// Invocations of a workgroup.
    pub workgroup: u32,
}

impl RowSplit {
    /// The split of a kernel's rows. `None` where one workgroup is as fast, or where an output needs the result of a
    /// whole row inside the row.
    pub fn of(e: &Emitter<'_>, form: &RowForm) -> Option<RowSplit> {
        let parts = form.slices()?;
        let most = floor_pow2(e.caps.max_workgroup_invocations);
        let parts = parts.min(most);
        let split = RowSplit { parts, workgroup: parts.next_power_of_two().max(WORKGROUP).min(most) };
        possible(e, form, i64::from(split.parts) * i64::from(split.workgroup)).then_some(split)
    }

    /// The split of columns in `tiles` tiles, one tile per workgroup. A workgroup has `slices` slices, and an
    /// invocation reduces `group` adjacent columns.
    pub fn of_columns(
        e: &Emitter<'_>,
        form: &RowForm,
        tiles: u32,
        workgroup: u32,
        slices: u32,
        group: u32,
    ) -> Option<RowSplit> {
        form.rows.as_const()?;
        let inner = form.inner.max_value();
        let each = ELEMENTS * i64::from(slices) / i64::from(group.max(1));
        let parts = (inner / each.max(1)).min(PARTS.1 / i64::from(tiles.max(1))).min(i64::from(slices));
        if parts < PARTS.0 || tiles > e.caps.max_workgroup_count[1] {
            return None;
        }
        let split = RowSplit { parts: u32::try_from(parts).ok()?, workgroup };
        possible(e, form, parts * i64::from(slices)).then_some(split)
    }
}

/// Whether a split is possible: outputs depend only on results of whole rows, and bindings for the partials are
/// available. The loop variable overshoots the row by less than `step`, the elements that one iteration of all parts
/// covers; it must not overflow 32 bits.
fn possible(e: &Emitter<'_>, form: &RowForm, step: i64) -> bool {
    let bindings = bindings(e.body, e.caps) + form.partial_bindings();
    form.is_single_pass_reduction(e.body)
        && bindings <= u64::from(e.caps.max_storage_buffers)
        && form.inner.max_value().saturating_add(step) <= i64::from(u32::MAX)
}

/// Emits the combination of partials. All but the last workgroup of a row return there. In the last one, invocation `p`
/// then holds the partial of part `p` for each reduction; with columns, slice `p` does so for each column.
pub(crate) fn combine(
    e: &mut Emitter<'_>,
    used: &mut Used,
    row_loop: &RowLoop,
    parts: u32,
    accumulators: &[Accumulator],
) -> Result<(), CodegenError> {
    let (place, one, inside, count) = match row_loop.scope {
        ReduceScope::Slices(_) => {
            ("slice", "gl_LocalInvocationIndex == 0u", row_loop.inside.as_deref(), "tile")
        }
        ReduceScope::Workgroup(_) | ReduceScope::Subgroup | ReduceScope::Invocation => {
            ("lane", "lane == 0u", None, "row")
        }
    };
    // Invocations past the last column repeat the last one and write nothing.
    let inside = inside.map(|inside| format!(" && {inside}")).unwrap_or_default();
    let first = format!("{place} == 0u{inside}");
    let add = |used: &mut Used, ty| {
        used.partials.push(ty);
        format!("parts{}", used.partials.len() - 1)
    };
    let mut again = vec![];
    for acc in accumulators {
        let (values, partial) = (add(used, acc.ty), e.fresh_name("p"));
        row_loop.each_column(e, |e| {
            let at = place_of(&e.index(&row_loop.row)?.text, parts, "part");
            let (value, reduced) = (acc.value(row_loop), acc.reduced(e, used, row_loop)?);
            if acc.kind.is_arg() {
                let (position, positions) = (acc.position(row_loop), add(used, Glsl::Uint));
                e.line(format!("const uint {partial} = {reduced};"));
                // One invocation holds the position, or all hold the "none" value.
                e.line(format!("if ({position} == {partial}{inside}) {values}[{at}] = {value};"));
                e.line(format!("if ({first}) {positions}[{at}] = {partial};"));
                again.push((position, positions, "0xffffffffu".to_string()));
            } else {
                let ty = e.uses().ty(acc.ty);
                e.line(format!("const {ty} {partial} = {reduced};"));
                e.line(format!("if ({first}) {values}[{at}] = {partial};"));
            }
            again.push((value, values, acc.identity()));
            Ok(())
        })?;
    }
    e.lines(last_workgroup::elect(one, count, &format!("{parts}u")));
    row_loop.each_column(e, |e| {
        let at = place_of(&e.index(&row_loop.row)?.text, parts, place);
        for (variable, values, nothing) in again {
            e.line(format!("{variable} = {place} < {parts}u ? {values}[{at}] : {nothing};"));
        }
        Ok(())
    })
}

/// The index of a row's partial in its buffer; `part` is an expression.
fn place_of(row: &str, parts: u32, part: &str) -> String {
    match row {
        "0u" => part.to_string(),
        row if row.contains(' ') => format!("({row}) * {parts}u + {part}"),
        row => format!("{row} * {parts}u + {part}"),
    }
}

/// Adds the buffers of the partials of all rows, and returns their declarations.
pub(crate) fn declare(e: &mut Emitter<'_>, form: &RowForm, split: RowSplit, partials: &[Glsl]) -> String {
    let rows = u64::try_from(form.rows.max_value()).unwrap_or(0).max(1);
    let mut lines = vec![];
    for (i, ty) in partials.iter().enumerate() {
        lines.push(last_workgroup::partials(e, &format!("parts{i}"), *ty, rows * u64::from(split.parts)));
    }
    // One counter per row, or per tile of columns.
    lines.push(last_workgroup::counters(e, rows));
    lines.join("\n")
}
