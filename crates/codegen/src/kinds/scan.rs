//! Scan (prefix sum and product): one workgroup per row, which carries its running total from chunk to chunk.

use minijinja::context;
use tallow_ir::form::{Rows, SingleForm};
use tallow_ir::{Op, ScanKind};

use crate::assemble::{finish, floor_pow2};
use crate::emit::{Anchor, Emitter, Expr};
use crate::error::CodegenError;
use crate::glsl::Glsl;
use crate::kernel::{Count, Kernel};
use crate::schedule::{Algorithm, Schedule};

/// Elements per chunk, one per invocation.
const WORKGROUP: u32 = 256;

/// The schedule: one invocation per element of a row, up to [`WORKGROUP`].
pub(crate) fn schedule(e: &Emitter<'_>, form: &SingleForm) -> Schedule {
    let node = e.body.node(form.node);
    let len = match node.op {
        Op::Scan { axis, .. } => node.types[0].shape.dims()[axis].max_value(),
        _ => 1,
    };
    let wanted = u32::try_from(len).unwrap_or(u32::MAX).clamp(1, WORKGROUP).next_power_of_two();
    Schedule::new(Algorithm::Scan, wanted.min(floor_pow2(e.caps.max_workgroup_invocations)))
}

pub(crate) fn kernel(
    mut e: Emitter<'_>,
    form: &SingleForm,
    schedule: Schedule,
) -> Result<Kernel, CodegenError> {
    let node = e.body.node(form.node);
    let Op::Scan { kind, axis } = node.op else {
        return Err(CodegenError::Node(e.body.node_text(form.node)));
    };
    let ty = &node.types[0];
    let unknown = || CodegenError::Dtype { what: e.body.node_text(form.node), dtype: ty.dtype };
    let glsl = Glsl::of(ty.dtype, e.caps).ok_or_else(unknown)?;
    let rows = Rows { shape: ty.shape.clone(), axes: vec![axis] };
    let (count, len) = (rows.rows(), rows.inner());
    let (rows_text, len_text) = (e.dim(&count), e.dim(&len));
    let ((x, x_lines, store), row_lines) = e.scope(|e| {
        let row = e.atom(&count, "row");
        let (x, x_lines) = e.scope(|e| {
            let i = e.atom(&len, "i");
            let at = rows.at(&row, &i, &mut e.atoms);
            Ok(e.value(node.operands[0], &at)?.text)
        })?;
        let result = e.result(0);
        let store = e.scoped_lines(|e| {
            let i = e.atom(&len, "i");
            let at = rows.at(&row, &i, &mut e.atoms);
            let depth = e.depth();
            e.anchors.insert(form.node, Anchor::Var(Expr { text: "total".into(), depth }));
            e.store(0, result, &at)
        })?;
        Ok((x, x_lines.join("\n"), store.join("\n")))
    })?;
    let row_lines = row_lines.join("\n");
    let (sign, identity) = match kind {
        ScanKind::Sum => ("+", 0.0),
        ScanKind::Prod => ("*", 1.0),
    };
    let comment = format!("%{} = {}", form.node.0, e.body.node_text(form.node));
    let holes = context! {
        rows => rows_text, len => len_text, type => glsl.name(), identity => glsl.literal(identity), sign, x, x_lines,
        row_lines, store, comment,
    };
    let grid = Count::along_x(e.caps, count, 1);
    finish(e, schedule, "scan.comp", grid, String::new(), holes)
}
