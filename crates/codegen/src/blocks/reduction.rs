//! Reductions over a workgroup, a subgroup or one invocation: the loop in which each invocation accumulates, and the
//! reduction across invocations.

use tallow_ir::form::{Rows, passes};
use tallow_ir::index::Index;
use tallow_ir::{DType, DeviceCaps, Dim, Graph, NodeId, Op, ReduceKind};

use super::reduce_functions::{Accumulator, Used, better, combine, identity};
use super::row_loop::{ReduceScope, RowLoop};
use super::split_rows;
use crate::emit::{Anchor, Emitter, Expr};
use crate::error::CodegenError;
use crate::glsl::Glsl;
use crate::scalar;

/// As [`emit_loop`], for row `row`. Adjacent elements are read in vectors of `group`, which is the same in the whole
/// kernel because a buffer's load functions have one width.
pub(crate) fn emit(
    e: &mut Emitter<'_>,
    used: &mut Used,
    reduces: &[(NodeId, Rows)],
    row: &Index,
    scope: ReduceScope,
    group: u32,
) -> Result<(), CodegenError> {
    let Some((_, rows)) = reduces.first() else { return Ok(()) };
    let inner = rows.inner();
    let row_loop = match inner.div_exact(&Dim::constant(group.into())) {
        Some(groups) => RowLoop::groups(e, row, &groups, group, scope),
        None => RowLoop::each(e, row, &inner, scope),
    };
    emit_loop(e, used, reduces, &row_loop)?;
    e.group = None;
    Ok(())
}

/// Emits the passes over the row of `row_loop`, or over its columns, and binds each reduction to the variable that
/// holds its result.
///
/// Reductions that do not depend on each other share a pass, so a row is read only as often as dependencies require.
pub(crate) fn emit_loop(
    e: &mut Emitter<'_>,
    used: &mut Used,
    reduces: &[(NodeId, Rows)],
    row_loop: &RowLoop,
) -> Result<(), CodegenError> {
    let pass_of = passes(e.body, reduces);
    for pass in 1..=pass_of.iter().copied().max().unwrap_or(0) {
        let now: Vec<&(NodeId, Rows)> =
            reduces.iter().zip(&pass_of).filter(|(_, p)| **p == pass).map(|(r, _)| r).collect();
        let accumulators = accumulate(e, &now, row_loop)?;
        finish(e, used, &accumulators, row_loop)?;
    }
    Ok(())
}

/// Emits the loop in which each invocation accumulates its elements of a row, for the reductions `now` of one pass.
pub(crate) fn accumulate(
    e: &mut Emitter<'_>,
    now: &[&(NodeId, Rows)],
    row_loop: &RowLoop,
) -> Result<Vec<Accumulator>, CodegenError> {
    let mut accumulators = vec![];
    for (id, _) in now {
        let (kind, ty, dtype) = describe(e.body, *id, e.caps)?;
        let name = e.fresh_name("acc");
        row_loop.declare(e, ty, &name, &identity(kind, ty, dtype));
        if kind.is_arg() {
            row_loop.declare(e, Glsl::Uint, &format!("{name}_at"), "0xffffffffu");
        }
        accumulators.push(Accumulator { id: *id, kind, ty, dtype, name });
    }
    row_loop.each_step(e, None, |e| {
        row_loop.each_of_group(e, |e| {
            for (acc, (_, rows)) in accumulators.iter().zip(now) {
                let at = rows.at(&row_loop.row, &row_loop.i, &mut e.atoms);
                let x = e.value(e.body.node(acc.id).operands[0], &at)?.text;
                let value = acc.value(row_loop);
                if acc.kind.is_arg() {
                    let test = better(acc.kind, acc.ty, &x, &value, e.uses());
                    let at = acc.position(row_loop);
                    let i = e.index(&row_loop.i)?.text;
                    e.line(format!("if ({test} || {at} == 0xffffffffu) {{ {value} = {x}; {at} = {i}; }}"));
                } else {
                    let sum = combine(acc.kind, acc.ty, &value, &x, e.uses());
                    e.line(format!("{value} = {sum};"));
                }
            }
            Ok(())
        })
    })?;
    Ok(accumulators)
}

/// Emits the reduction across invocations; every participating invocation receives the result.
pub(crate) fn finish(
    e: &mut Emitter<'_>,
    used: &mut Used,
    accumulators: &[Accumulator],
    row_loop: &RowLoop,
) -> Result<(), CodegenError> {
    if let Some(parts) = row_loop.parts {
        split_rows::combine(e, used, row_loop, parts, accumulators)?;
    }
    for acc in accumulators {
        let (id, kind, name) = (acc.id, acc.kind, e.fresh_name("r"));
        let comment = format!("%{} = {}", id.0, e.body.node_text(id));
        let text = acc.reduced(e, used, row_loop)?;
        let (result, text) = match kind.is_arg() {
            true => (Glsl::Uint, text),
            false => (acc.ty, scalar::held(acc.dtype, text, e.uses())),
        };
        let result = e.uses().ty(result);
        // The position in an empty row is 0.
        let nothing = (kind.is_arg() && row_loop.inner.min_value() < 1)
            .then(|| format!("{0} = {0} == 0xffffffffu ? 0u : {0};", row_loop.column(&name)));
        if let (Some(columns), Some(row)) = (row_loop.columns_at_once(), row_loop.column_variable()) {
            e.line(format!("{result} {name}[{columns}];  // {comment}"));
            row_loop.each_column(e, |e| {
                e.line(format!("{} = {text};", row_loop.column(&name)));
                e.lines(nothing);
                Ok(())
            })?;
            e.anchors.insert(id, Anchor::Group { array: name, row });
        } else {
            e.line(format!("{result} {name} = {text};  // {comment}"));
            e.lines(nothing);
            let depth = e.depth();
            e.anchors.insert(id, Anchor::Var(Expr { text: name, depth }));
        }
    }
    Ok(())
}

/// Whether a subgroup operation can compute this reduction.
pub(crate) fn has_subgroup_op(e: &Emitter<'_>, id: NodeId) -> bool {
    is_by_subgroup(e, id) && describe(e.body, id, e.caps).is_ok_and(|(kind, ..)| !kind.is_arg())
}

/// Whether subgroup operations can compute this reduction, one or several. 64-bit ones need a separate device feature.
pub(crate) fn is_by_subgroup(e: &Emitter<'_>, id: NodeId) -> bool {
    e.caps.subgroup_arithmetic && describe(e.body, id, e.caps).is_ok_and(|(_, ty, _)| ty.bytes() == 4)
}

fn describe(body: &Graph, id: NodeId, caps: &DeviceCaps) -> Result<(ReduceKind, Glsl, DType), CodegenError> {
    let node = body.node(id);
    let Op::Reduce { kind, .. } = &node.op else { return Err(CodegenError::Node(body.node_text(id))) };
    let dtype = body.ty(node.operands[0]).dtype;
    let ty = Glsl::of(dtype, caps).ok_or_else(|| CodegenError::Dtype { what: body.node_text(id), dtype })?;
    Ok((*kind, ty, dtype))
}
