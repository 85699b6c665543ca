//! One workgroup a row, or one invocation where rows are short: passes with reductions, then a loop that writes.

use minijinja::context;
use tallow_ir::form::{RowForm, RowOutput, Rows, output_root};

use super::reduction::Share;
use super::{Parts, finish, floor_pow2, reduction};
use crate::emit::Emitter;
use crate::kernel::{CodegenError, Count, Kernel};

/// Longest row (elements) that one invocation reduces by itself: a workgroup would leave most of its
/// invocations idle and then wait for their exchange.
const SHORT_ROW: i64 = 16;

/// The same for rows whose elements lie apart, such as columns and the windows of a pool: then it is elements
/// of neighbouring rows that lie side by side, and neighbouring invocations read them together.
const SHORT_STRIDED_ROW: i64 = 64;

/// Invocations of a workgroup that takes a short row each.
const SHORT_ROWS: u32 = 64;

/// Invocations for rows of `inner` elements: four elements each, at least one subgroup, at most 256.
fn workgroup_size(e: &Emitter<'_>, inner: i64) -> u32 {
    let wanted = u32::try_from(inner / 4).unwrap_or(u32::MAX).clamp(1, 256).next_power_of_two();
    let most = floor_pow2(e.caps.max_workgroup_invocations.min(256));
    wanted.clamp(floor_pow2(e.caps.subgroup_size.max(8)).min(most), most)
}

/// Whether one invocation takes a whole row.
fn is_short(form: &RowForm) -> bool {
    let limit = |rows: &Rows| {
        let first = rows.shape.rank() - rows.axes.len();
        if rows.axes.iter().copied().eq(first..rows.shape.rank()) { SHORT_ROW } else { SHORT_STRIDED_ROW }
    };
    let limit = form.reduces.iter().map(|(_, rows)| limit(rows)).min().unwrap_or(0);
    form.inner.as_const().is_some_and(|n| (1..=limit).contains(&n))
}

pub(crate) fn kernel(mut e: Emitter<'_>, form: &RowForm) -> Result<Kernel, CodegenError> {
    let short = is_short(form);
    let workgroup = if short {
        SHORT_ROWS.min(e.caps.max_workgroup_invocations)
    } else {
        workgroup_size(&e, form.inner.max_value())
    };
    let share = if short { Share::Alone } else { Share::Workgroup(workgroup) };
    let rows = e.dim(&form.rows);
    let mut used = reduction::Used::default();
    e.open();
    let row = e.atom(&form.rows, "row");
    reduction::emit(&mut e, &mut used, &form.reduces, &row, share)?;
    let buffers: Vec<usize> = (0..form.outputs.len()).map(|o| e.result(o as u32)).collect();
    let of_kind =
        |kind: RowOutput| form.outputs.iter().enumerate().filter(move |(_, k)| **k == kind).map(|(o, _)| o);
    if of_kind(RowOutput::Inner).next().is_some() {
        e.open();
        let i = e.atom(&form.inner, "i");
        let at = form.domain.at(&row, &i, &mut e.atoms);
        let linear = e.atoms.flatten(&at, &form.domain.shape);
        for output in of_kind(RowOutput::Inner) {
            let shape = e.body.ty(output_root(e.body, output)).shape.clone();
            let at = e.atoms.unflatten(&linear, &shape);
            e.store(output as u32, buffers[output], &at)?;
        }
        let end = e.dim(&form.inner);
        e.close_block(&share.each(&end));
    }
    if of_kind(RowOutput::Row).next().is_some() {
        if !short {
            e.open();
        }
        for output in of_kind(RowOutput::Row) {
            let shape = e.body.ty(output_root(e.body, output)).shape.clone();
            let at = e.atoms.unflatten(&row, &shape);
            e.store(output as u32, buffers[output], &at)?;
        }
        if !short {
            e.close_block("if (lane == 0u)");
        }
    }
    let body = e.close().join("\n");
    let limit = e.caps.max_workgroup_count[0];
    let parts = Parts {
        kind: "row",
        template: if short { "short_rows.comp" } else { "row.comp" },
        workgroup,
        grid: [
            Count { value: form.rows.clone(), per: if short { workgroup } else { 1 }, limit },
            Count::constant(1),
            Count::constant(1),
        ],
        functions: used.render(workgroup, e.caps)?,
        text: body.clone(),
        holes: context! { body => body, rows => rows },
    };
    finish(e, parts)
}
