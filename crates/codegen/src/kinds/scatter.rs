//! Scatter: atomically combines values into computed positions of a buffer that already holds the target.

use minijinja::context;
use tallow_ir::form::SingleForm;
use tallow_ir::{DType, DeviceCaps, Op, ScatterKind};

use crate::assemble::finish;
use crate::emit::Emitter;
use crate::error::CodegenError;
use crate::kernel::{Count, Kernel};
use crate::schedule::{Algorithm, Schedule};
use crate::storage::Atomic;

const WORKGROUP: u32 = 256;

/// The schedule; the only candidate.
pub(crate) fn schedule(caps: &DeviceCaps) -> Schedule {
    Schedule::new(Algorithm::Scatter, WORKGROUP.min(caps.max_workgroup_invocations))
}

pub(crate) fn kernel(
    mut e: Emitter<'_>,
    form: &SingleForm,
    schedule: Schedule,
) -> Result<Kernel, CodegenError> {
    let node = e.body.node(form.node);
    let Op::Scatter(kind) = node.op else {
        return Err(CodegenError::Node(e.body.node_text(form.node)));
    };
    let dtype = node.types[0].dtype;
    let atomic = match (kind, dtype) {
        (ScatterKind::Add, DType::F32 | DType::U32 | DType::I32) => Atomic::Add,
        (ScatterKind::Max, DType::U32 | DType::I32) => Atomic::Max,
        (ScatterKind::Add, DType::I64) if e.caps.int64 && e.caps.atomic_int64 => Atomic::Add,
        (ScatterKind::Max, DType::I64) if e.caps.int64 && e.caps.atomic_int64 => Atomic::Max,
        (ScatterKind::Add, DType::F64) if e.caps.float64 && e.caps.atomic_int64 => Atomic::Add,
        _ => return Err(CodegenError::Dtype { what: e.body.node_text(form.node), dtype }),
    };
    let source = e.body.ty(node.operands[2]).shape.numel();
    let (target, count) = (e.dim(&node.types[0].shape.numel()), e.dim(&source));
    let lines = e.scoped_lines(|e| {
        let i = e.atom(&source, "i");
        let at = e.value(node.operands[1], std::slice::from_ref(&i))?;
        let x = e.value(node.operands[2], &[i])?;
        let result = e.result(0);
        e.buffers[result].atomic = Some(atomic);
        e.line(format!("const uint place = {};", at.text));
        let store = e.store_element(result, "place", &x.text);
        e.line(format!("if (place < {target}) {{\n    {store}\n}}"));
        Ok(())
    })?;
    let body = lines.join("\n");
    let comment = format!("// %{} = {}", form.node.0, e.body.node_text(form.node));
    let grid = Count::along_x(e.caps, source, schedule.workgroup);
    let holes = context! { body, count, name => "i", comment };
    finish(e, schedule, "grid_stride.comp", grid, String::new(), holes)
}
