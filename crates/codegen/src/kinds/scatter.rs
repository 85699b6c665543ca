//! Scatter: atomically combines values into computed positions of a buffer that already holds the target.
//!
//! Directly, each element of the source is one atomic in global memory. Where many elements have few targets, the
//! workgroups combine them in [`copies`] of the target first.

mod copies;

use minijinja::context;
use tallow_ir::form::SingleForm;
use tallow_ir::{DType, Dim, Node, Op, ScatterKind, cost};

use crate::assemble::{finish, floor_pow2};
use crate::emit::Emitter;
use crate::error::CodegenError;
use crate::glsl::Glsl;
use crate::kernel::{Count, Kernel};
use crate::schedule::{Algorithm, Schedule, Split, Tile};
use crate::storage::Atomic;

/// Invocations per workgroup of the direct kernel.
const WORKGROUP: u32 = 256;

/// The candidates: copies where the cost model wants them, and the direct kernel.
pub(crate) fn schedules(e: &Emitter<'_>, form: &SingleForm) -> Vec<Schedule> {
    let direct = Schedule::new(Algorithm::Scatter, WORKGROUP.min(e.caps.max_workgroup_invocations));
    with_copies(e, form).into_iter().chain([direct]).collect()
}

/// The schedule with copies; `None` if the cost model wants none.
fn with_copies(e: &Emitter<'_>, form: &SingleForm) -> Option<Schedule> {
    let (caps, node) = (e.caps, e.body.node(form.node));
    // Shared memory has 64-bit atomics on few devices; such scatters are rare.
    if node.types[0].dtype.size() != Some(4) {
        return None;
    }
    let [target, source] = [0, 2].map(|operand| e.body.ty(node.operands[operand]).shape.max_numel());
    let widest = copies::WORKGROUP.min(caps.max_workgroup_invocations).min(caps.max_workgroup_size[0]);
    let wanted = u32::try_from(source).unwrap_or(u32::MAX).clamp(1, widest).next_power_of_two();
    let workgroup = wanted.min(floor_pow2(widest));
    let capacity = caps.shared_memory_bytes / 4;
    let found = cost::scatter_copies(caps, source, target, capacity, workgroup, copies::AT_ONCE * workgroup)?;
    Some(Schedule {
        tile: Tile { m: found.copies, n: found.range, k: 0 },
        split: Split { slices: found.workgroups, above: 0 },
        ..Schedule::new(Algorithm::Scatter, workgroup)
    })
}

pub(crate) fn kernel(
    mut e: Emitter<'_>,
    form: &SingleForm,
    schedule: Schedule,
) -> Result<Kernel, CodegenError> {
    let node = e.body.node(form.node);
    let atomic = atomic(&e, form, node)?;
    if schedule.tile.n > 0 {
        return copies::kernel(e, form, schedule, atomic);
    }
    let [target, source] = [0, 2].map(|operand| e.body.ty(node.operands[operand]).shape.numel());
    let most = |dim: &Dim| u64::try_from(dim.max_value()).unwrap_or(0);
    let merges = node.types[0].dtype.size() == Some(4)
        && e.caps.subgroup_arithmetic
        && cost::is_contended(most(&source), most(&target));
    let (target, count) = (e.dim(&target), e.dim(&source));
    let lines = e.scoped_lines(|e| {
        let i = e.atom(&source, "i");
        let at = e.value(node.operands[1], std::slice::from_ref(&i))?;
        let x = e.value(node.operands[2], &[i])?;
        let result = e.result(0);
        e.buffers[result].atomic = Some(atomic);
        e.line(format!("const uint place = {};", at.text));
        let store = if merges {
            let ty = Glsl::register(node.types[0].dtype).name();
            let store = e.store_element(result, "place", "x");
            format!("{ty} x = {};\n    {}", x.text, merged(e, atomic, "place", &store).join("\n    "))
        } else {
            e.store_element(result, "place", &x.text)
        };
        e.line(format!("if (place < {target}) {{\n    {store}\n}}"));
        Ok(())
    })?;
    let body = lines.join("\n");
    let comment = format!("// %{} = {}", form.node.0, e.body.node_text(form.node));
    let grid = Count::along_x(e.caps, source, schedule.workgroup);
    let holes = context! { body, count, name => "i", comment, tail => () };
    finish(e, schedule, "grid_stride.comp", grid, String::new(), holes)
}

/// The update of one element; an error if the device has none for its type.
fn atomic(e: &Emitter<'_>, form: &SingleForm, node: &Node) -> Result<Atomic, CodegenError> {
    let Op::Scatter(kind) = node.op else {
        return Err(CodegenError::Node(e.body.node_text(form.node)));
    };
    let (caps, dtype) = (e.caps, node.types[0].dtype);
    match (kind, dtype) {
        (ScatterKind::Add, DType::F32 | DType::U32 | DType::I32) => Ok(Atomic::Add),
        (ScatterKind::Max, DType::U32 | DType::I32) => Ok(Atomic::Max),
        (ScatterKind::Add, DType::I64) if caps.int64 && caps.atomic_int64 => Ok(Atomic::Add),
        (ScatterKind::Max, DType::I64) if caps.int64 && caps.atomic_int64 => Ok(Atomic::Max),
        (ScatterKind::Add, DType::F64) if caps.float64 && caps.atomic_int64 => Ok(Atomic::Add),
        _ => Err(CodegenError::Dtype { what: e.body.node_text(form.node), dtype }),
    }
}

/// Lines that run `update`, which combines `x` with the element `at`; once for a subgroup whose active invocations all
/// have the same `at`, with what they combine to. (Of -0 alone this may be 0, which `subgroupAdd` begins with.)
fn merged(e: &mut Emitter<'_>, atomic: Atomic, at: &str, update: &str) -> Vec<String> {
    e.uses().subgroups = true;
    let all = match atomic {
        Atomic::Add => "subgroupAdd",
        Atomic::Max => "subgroupMax",
    };
    vec![
        "bool updates = true;".into(),
        format!("if (subgroupAllEqual({at})) {{"),
        format!("    x = {all}(x);"),
        "    updates = subgroupElect();".into(),
        "}".into(),
        format!("if (updates) {{ {update} }}"),
    ]
}
