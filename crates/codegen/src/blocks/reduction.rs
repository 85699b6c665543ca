//! Reductions over a workgroup, a subgroup or one invocation: the loop in which each invocation accumulates, and the
//! reduction across invocations.

use tallow_ir::form::{Rows, passes};
use tallow_ir::index::Index;
use tallow_ir::{DType, DeviceCaps, Dim, Graph, NodeId, Op, ReduceKind};

use super::reduce_functions::{Accumulator, Used, better, combine, identity};
use super::row_loop::{RowLoop, Share};
use super::split_rows;
use crate::emit::{Anchor, Emitter, Expr};
use crate::error::CodegenError;
use crate::glsl::Glsl;
use crate::scalar;

/// Emits the passes over one row and binds each reduction to the variable that holds its result. Adjacent elements are
/// read in vectors of `group`, the same number in the whole kernel because a buffer's load functions have one width.
pub(crate) fn emit(
    e: &mut Emitter<'_>,
    used: &mut Used,
    reduces: &[(NodeId, Rows)],
    row: &Index,
    share: Share,
    group: u32,
) -> Result<(), CodegenError> {
    let Some((_, rows)) = reduces.first() else { return Ok(()) };
    let inner = rows.inner();
    let walk = match inner.div_exact(&Dim::constant(group.into())) {
        Some(groups) => RowLoop::groups(e, row, &groups, group, share),
        None => RowLoop::each(e, row, &inner, share),
    };
    emit_walk(e, used, reduces, &walk)?;
    e.group = None;
    Ok(())
}

/// Emits the passes over the row of `walk` (or over its group of columns) and binds each reduction to the variable that
/// holds its result.
///
/// Reductions of one level share a loop, so a row is read only as often as their dependencies require.
pub(crate) fn emit_walk(
    e: &mut Emitter<'_>,
    used: &mut Used,
    reduces: &[(NodeId, Rows)],
    walk: &RowLoop,
) -> Result<(), CodegenError> {
    let levels = passes(e.body, reduces);
    for level in 1..=levels.iter().copied().max().unwrap_or(0) {
        let now: Vec<&(NodeId, Rows)> =
            reduces.iter().zip(&levels).filter(|(_, l)| **l == level).map(|(r, _)| r).collect();
        let own = accumulate(e, &now, walk)?;
        finish(e, used, &own, walk)?;
    }
    Ok(())
}

/// The accumulators of an invocation before the workgroup-wide reduction.
pub(crate) type Own = Vec<Accumulator>;

/// Emits the loop in which each invocation accumulates its elements of a row, for reductions that do not depend on each
/// other.
pub(crate) fn accumulate(
    e: &mut Emitter<'_>,
    now: &[&(NodeId, Rows)],
    walk: &RowLoop,
) -> Result<Own, CodegenError> {
    let mut own = vec![];
    for (id, _) in now {
        let (kind, ty, dtype) = describe(e.body, *id, e.caps)?;
        let name = e.fresh_name("acc");
        walk.declare(e, ty, &name, &identity(kind, ty, dtype));
        if kind.is_arg() {
            walk.declare(e, Glsl::Uint, &format!("{name}_at"), "0xffffffffu");
        }
        own.push(Accumulator { id: *id, kind, ty, dtype, name });
    }
    walk.each_step(e, None, |e| {
        walk.each_of_group(e, |e| {
            for (acc, (_, rows)) in own.iter().zip(now) {
                let at = rows.at(&walk.row, &walk.i, &mut e.atoms);
                let x = e.value(e.body.node(acc.id).operands[0], &at)?.text;
                let value = acc.value(walk);
                if acc.kind.is_arg() {
                    let test = better(acc.kind, acc.ty, &x, &value, e.uses());
                    let at = acc.position(walk);
                    let i = e.index(&walk.i)?.text;
                    e.line(format!("if ({test} || {at} == 0xffffffffu) {{ {value} = {x}; {at} = {i}; }}"));
                } else {
                    let sum = combine(acc.kind, acc.ty, &value, &x, e.uses());
                    e.line(format!("{value} = {sum};"));
                }
            }
            Ok(())
        })
    })?;
    Ok(own)
}

/// Emits the reduction across invocations; every participating invocation receives the result.
pub(crate) fn finish(
    e: &mut Emitter<'_>,
    used: &mut Used,
    own: &[Accumulator],
    walk: &RowLoop,
) -> Result<(), CodegenError> {
    if let Some(parts) = walk.parts {
        split_rows::combine(e, used, walk, parts, own)?;
    }
    for acc in own {
        let (id, kind, name) = (acc.id, acc.kind, e.fresh_name("r"));
        let comment = format!("%{} = {}", id.0, e.body.node_text(id));
        let text = acc.reduced(e, used, walk)?;
        let (result, text) = match kind.is_arg() {
            true => (Glsl::Uint, text),
            false => (acc.ty, scalar::held(acc.dtype, text, e.uses())),
        };
        let result = e.uses().ty(result);
        // The position in an empty row is 0.
        let nothing = (kind.is_arg() && walk.inner.min_value() < 1)
            .then(|| format!("{0} = {0} == 0xffffffffu ? 0u : {0};", walk.column(&name)));
        if let Some(columns) = walk.columns_at_once() {
            e.line(format!("{result} {name}[{columns}];  // {comment}"));
            walk.each_column(e, |e| {
                e.line(format!("{} = {text};", walk.column(&name)));
                e.lines(nothing);
                Ok(())
            })?;
            e.anchors.insert(id, Anchor::Group { array: name });
        } else {
            e.line(format!("{result} {name} = {text};  // {comment}"));
            e.lines(nothing);
            let depth = e.depth();
            e.anchors.insert(id, Anchor::Var(Expr { text: name, depth }));
        }
    }
    Ok(())
}

/// Whether a reduction can use subgroup operations.
pub(crate) fn by_subgroup(e: &Emitter<'_>, id: NodeId) -> bool {
    e.caps.subgroup_arithmetic
        && describe(e.body, id, e.caps).is_ok_and(|(kind, ty, _)| !kind.is_arg() && ty.bytes() == 4)
}

fn describe(body: &Graph, id: NodeId, caps: &DeviceCaps) -> Result<(ReduceKind, Glsl, DType), CodegenError> {
    let node = body.node(id);
    let Op::Reduce { kind, .. } = &node.op else { return Err(CodegenError::Node(body.node_text(id))) };
    let dtype = body.ty(node.operands[0]).dtype;
    let ty = Glsl::of(dtype, caps).ok_or_else(|| CodegenError::Dtype { what: body.node_text(id), dtype })?;
    Ok((*kind, ty, dtype))
}
