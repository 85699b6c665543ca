//! One workgroup a row: passes with reductions, then a loop that writes.

use minijinja::context;
use tallow_ir::form::{RowForm, RowOutput, output_root};

use super::{Parts, finish, floor_pow2, reduction};
use crate::emit::Emitter;
use crate::kernel::{CodegenError, Count, Kernel};

/// Invocations for rows of `inner` elements: four elements each, at least one subgroup, at most 256.
fn workgroup_size(e: &Emitter<'_>, inner: i64) -> u32 {
    let wanted = u32::try_from(inner / 4).unwrap_or(u32::MAX).clamp(1, 256).next_power_of_two();
    let most = floor_pow2(e.caps.max_workgroup_invocations.min(256));
    wanted.clamp(floor_pow2(e.caps.subgroup_size.max(8)).min(most), most)
}

pub(crate) fn kernel(mut e: Emitter<'_>, form: &RowForm) -> Result<Kernel, CodegenError> {
    let workgroup = workgroup_size(&e, form.inner.max_value());
    let rows = e.dim(&form.rows);
    let mut used = reduction::Used::default();
    e.open();
    let row = e.atom(&form.rows, "row");
    reduction::emit(&mut e, &mut used, &form.reduces, &row, workgroup)?;
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
        e.close_block(&format!("for (uint i = lane; i < {end}; i += {workgroup}u)"));
    }
    if of_kind(RowOutput::Row).next().is_some() {
        e.open();
        for output in of_kind(RowOutput::Row) {
            let shape = e.body.ty(output_root(e.body, output)).shape.clone();
            let at = e.atoms.unflatten(&row, &shape);
            e.store(output as u32, buffers[output], &at)?;
        }
        e.close_block("if (lane == 0u)");
    }
    let body = e.close().join("\n");
    let limit = e.caps.max_workgroup_count[0];
    let parts = Parts {
        kind: "row",
        template: "row.comp",
        workgroup,
        grid: [Count { value: form.rows.clone(), per: 1, limit }, Count::constant(1), Count::constant(1)],
        functions: used.render(workgroup, e.caps)?,
        text: body.clone(),
        holes: context! { body => body, rows => rows },
    };
    finish(e, parts)
}
