//! The prologue of a matvec: reductions over its rows of activations, which may be register-cached.

use tallow_ir::Dim;
use tallow_ir::index::Index;

use super::operands::left_at;
use super::plan::{Matvec, Source};
use crate::blocks::reduce_functions::Used;
use crate::blocks::row_loop::{ReduceScope, RowLoop};
use crate::blocks::{reduction, register_cache};
use crate::emit::{Anchor, Emitter};
use crate::error::CodegenError;
use crate::glsl::Glsl;

/// Activations per 16-byte vector load of f32.
pub(crate) const QUAD: u32 = 4;

/// Emits the reductions over each row of the left operand, read `group` elements at a time. Every workgroup repeats
/// them.
pub(crate) fn prologue(
    e: &mut Emitter<'_>,
    used: &mut Used,
    mv: &Matvec<'_>,
    (group, cached): (u32, Option<&RowLoop>),
) -> Result<(), CodegenError> {
    let (form, m) = (mv.form, mv.m);
    let scope = ReduceScope::Workgroup(mv.workgroup);
    if form.prologue.is_empty() {
        return Ok(());
    }
    if let Some(row_loop) = cached {
        return row_loop.in_groups(e, |e| reduction::emit_loop(e, used, &form.prologue, row_loop));
    }
    if m == 1 {
        return reduction::emit(e, used, &form.prologue, &Index::default(), scope, group);
    }
    let arrays: Vec<String> = form.prologue.iter().map(|_| e.fresh_name("rows")).collect();
    for ((id, _), array) in form.prologue.iter().zip(&arrays) {
        let dtype = e.body.node(*id).types[0].dtype;
        let ty = Glsl::of(dtype, e.caps)
            .ok_or_else(|| CodegenError::Dtype { what: e.body.node_text(*id), dtype })?;
        let ty = e.uses().ty(ty);
        e.line(format!("{ty} {array}[{m}];"));
    }
    let rows = mv.rows.clone().unwrap_or(format!("{m}u"));
    e.block(&format!("for (uint m = 0u; m < {rows}; ++m)"), |e| {
        let row = e.atom(&form.m, "m");
        reduction::emit(e, used, &form.prologue, &row, scope, group)?;
        for ((id, _), array) in form.prologue.iter().zip(&arrays) {
            if let Some(Anchor::Var(v)) = e.anchors.get(id).cloned() {
                e.line(format!("{array}[m] = {};", v.text));
            }
        }
        Ok(())
    })?;
    for ((id, _), array) in form.prologue.iter().zip(arrays) {
        e.anchors.insert(*id, Anchor::Rows { array });
    }
    Ok(())
}

/// Maximum number of elements of a row that an invocation register-caches. With two groups of eight to quantize, a
/// workgroup of 1024 uses so many registers that no other fits on its SM. (H200, 4096 x 14336 of Q4_0 back to back,
/// where some invocations have a second group: 9.4 us with both cached, 7.9 one after the other. With a barrier,
/// caching both saves 0.5 us.)
const MAX_CACHED: i64 = 8;

/// Register-caches the row from which the prologue and the staged activations are computed, in groups of `group`.
/// These loads are issued before all others, because everything depends on them. Returns the loop over the cached row;
/// `None` unless there is one row, evenly divided over the workgroup and within the limit.
pub(crate) fn cache_row(
    e: &mut Emitter<'_>,
    mv: &Matvec<'_>,
    group: u32,
) -> Result<Option<RowLoop>, CodegenError> {
    let (form, workgroup) = (mv.form, mv.workgroup);
    let lhs = match mv.source {
        Source::Memory => return Ok(None),
        Source::Floats => Some(form.lhs),
        Source::Bytes(value) => Some(value),
        Source::Blocks(_) => None,
    };
    let (Some(1), Some(k)) = (form.m.as_const(), form.k.as_const()) else { return Ok(None) };
    let even = k % i64::from(workgroup * group) == 0;
    // The prologue may reduce rows of another length.
    let same = form.prologue.iter().all(|(_, rows)| rows.inner() == form.k);
    if !(even && same) || k > MAX_CACHED * i64::from(workgroup) {
        return Ok(None);
    }
    let (row, groups) = (Index::default(), Dim::constant(k / i64::from(group)));
    let mut row_loop = RowLoop::groups(e, &row, &groups, group, ReduceScope::Workgroup(workgroup));
    let mut roots = vec![];
    if let Some(lhs) = lhs {
        roots.push((lhs, left_at(e, form, &mv.batch, &row, &row_loop.i)));
    }
    for (id, rows) in &form.prologue {
        roots.push((e.body.node(*id).operands[0], rows.at(&row, &row_loop.i, &mut e.atoms)));
    }
    register_cache::load(e, &mut row_loop, roots)?;
    e.group = None;
    Ok(row_loop.steps.is_some().then_some(row_loop))
}
