//! Scatter with copies: each workgroup combines a part of the source into its own copy of the target, or of a range of
//! it, in shared memory, and then combines the copy with the target.
//!
//! An invocation combines in a register while the position stays the same, as in sorted indices: the elements of a
//! workgroup are contiguous, so runs of equal positions are longer than its stride.

use minijinja::context;
use tallow_ir::form::SingleForm;
use tallow_ir::{DType, DeviceCaps};

use super::merged;
use crate::assemble::finish;
use crate::emit::Emitter;
use crate::error::CodegenError;
use crate::glsl::Glsl;
use crate::kernel::{Count, Kernel};
use crate::schedule::Schedule;
use crate::storage::{Atomic, FLOAT_ATOMICS};

/// Invocations per workgroup, at most. Fewer and larger workgroups have fewer copies.
pub(super) const WORKGROUP: u32 = 1024;

/// Elements of an invocation whose loads are in flight together. An H100 needs 14 KB in flight on each core (3 TB/s,
/// 600 ns, 132 cores); 1024 invocations have 16 KB.
pub(super) const AT_ONCE: u32 = 4;

/// The elements of a copy in shared memory.
struct Elements {
    ty: &'static str,
    /// What combines with any value to that value.
    neutral: &'static str,
    /// Whether element `k` is no longer neutral. Only then it can change the target.
    touched: String,
    /// The value of element `k`.
    value: &'static str,
}

impl Elements {
    fn of(atomic: Atomic, dtype: DType, caps: &DeviceCaps) -> Elements {
        let swaps = atomic.swaps(dtype, caps.atomic_float_add_shared);
        let (ty, neutral, value) = match (atomic, dtype) {
            // Negative zero: 0 + -0 is 0, and -0 + -0 is -0.
            (_, DType::F32) if swaps => ("uint", "0x80000000u", "uintBitsToFloat(part[k])"),
            (_, DType::F32) => ("float", "uintBitsToFloat(0x80000000u)", "part[k]"),
            (Atomic::Add, DType::I32) => ("int", "0", "part[k]"),
            (Atomic::Max, DType::I32) => ("int", "int(0x80000000u)", "part[k]"),
            (Atomic::Add | Atomic::Max, _) => ("uint", "0u", "part[k]"),
        };
        let touched = match ty {
            "float" => "floatBitsToUint(part[k]) != 0x80000000u".into(),
            _ => format!("part[k] != {neutral}"),
        };
        Elements { ty, neutral, touched, value }
    }
}

pub(super) fn kernel(
    mut e: Emitter<'_>,
    form: &SingleForm,
    schedule: Schedule,
    atomic: Atomic,
) -> Result<Kernel, CodegenError> {
    let node = e.body.node(form.node);
    let dtype = node.types[0].dtype;
    let [target, source] = [0, 2].map(|operand| e.body.ty(node.operands[operand]).shape.numel());
    let native = e.caps.atomic_float_add_shared;
    let elements = Elements::of(atomic, dtype, e.caps);
    if dtype == DType::F32 && !atomic.swaps(dtype, native) {
        e.extensions.insert(FLOAT_ATOMICS);
    }
    let ty = Glsl::register(dtype).name();
    let (target_text, count) = (e.dim(&target), e.dim(&source));
    let mut element = |operand: usize| {
        e.scope(|e| {
            let i = e.atom(&source, "i");
            Ok(e.value(node.operands[operand], &[i])?.text)
        })
    };
    let ((place, place_lines), (x, x_lines)) = (element(1)?, element(2)?);
    let result = e.result(0);
    e.buffers[result].atomic = Some(atomic);
    let store = e.store_element(result, "low + k", elements.value);
    let update = atomic.update(dtype, native, "part[at]");
    let update = match e.caps.subgroup_arithmetic {
        true => merged(&mut e, atomic, "at", &update).join("\n"),
        false => update,
    };
    let both = match atomic {
        Atomic::Add => "total + values[k]",
        Atomic::Max => "max(total, values[k])",
    };
    let comment = format!("%{} = {}", form.node.0, e.body.node_text(form.node));
    let Elements { ty: part, neutral, touched, .. } = elements;
    let [place_lines, x_lines] = [place_lines, x_lines].map(|lines| lines.join("\n"));
    let holes = context! {
        range => schedule.tile.n, at_once => AT_ONCE, step => AT_ONCE * schedule.workgroup, type => ty, part, neutral,
        touched, target => target_text, count, place, place_lines, x, x_lines, both, update, store, comment,
    };
    let slices = schedule.split.slices.min(e.caps.max_workgroup_count[0]);
    let grid = [
        Count { value: source, per: AT_ONCE * schedule.workgroup, limit: slices },
        Count::along(e.caps, 1, target, schedule.tile.n),
        Count::constant(1),
    ];
    finish(e, schedule, "scatter_copies.comp", grid, String::new(), holes)
}
