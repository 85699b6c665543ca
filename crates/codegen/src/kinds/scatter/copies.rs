//! Scatter with copies: each workgroup combines a part of the source in its own copies of the target, or of a range of
//! it, in shared memory, and then combines the copies with the target. Small ranges have several copies, so that
//! invocations seldom wait for one another.
//!
//! An invocation combines in a register while the position stays the same. With sorted indices that is so for runs of
//! equal positions that are longer than a workgroup.

use minijinja::context;
use tallow_ir::form::SingleForm;
use tallow_ir::{DType, DeviceCaps};

use super::merged;
use crate::assemble::finish;
use crate::emit::Emitter;
use crate::error::CodegenError;
use crate::glsl::Glsl;
use crate::kernel::{Count, Kernel};
use crate::schedule::{Schedule, Tile};
use crate::storage::{Atomic, FLOAT_ATOMICS};

/// Invocations per workgroup, at most. Fewer and larger workgroups have fewer copies.
pub(super) const WORKGROUP: u32 = 1024;

/// Elements of an invocation whose loads are in flight together. An H100 needs 14 KB in flight on each core (3 TB/s,
/// 600 ns, 132 cores); 1024 invocations have 16 KB.
pub(super) const AT_ONCE: u32 = 4;

/// The elements of copies in shared memory.
struct Elements {
    ty: &'static str,
    /// What combines with any value to that value.
    neutral: &'static str,
    /// Whether they are the bits of floats.
    bits: bool,
}

impl Elements {
    fn of(atomic: Atomic, dtype: DType, caps: &DeviceCaps) -> Elements {
        let bits = atomic.swaps(dtype, caps.atomic_float_add_shared);
        let (ty, neutral) = match (atomic, dtype) {
            // Negative zero: 0 + -0 is 0, and -0 + -0 is -0.
            (_, DType::F32) if bits => ("uint", "0x80000000u"),
            (_, DType::F32) => ("float", "uintBitsToFloat(0x80000000u)"),
            (Atomic::Add, DType::I32) => ("int", "0"),
            (Atomic::Max, DType::I32) => ("int", "int(0x80000000u)"),
            (Atomic::Add | Atomic::Max, _) => ("uint", "0u"),
        };
        Elements { ty, neutral, bits }
    }

    /// The value of an element of the copies.
    fn value(&self, element: &str) -> String {
        if self.bits { format!("uintBitsToFloat({element})") } else { element.into() }
    }

    /// Whether `x` is not neutral. Only then it can change the target.
    fn changes(&self, dtype: DType) -> String {
        match dtype {
            DType::F32 => "floatBitsToUint(x) != 0x80000000u".into(),
            _ => format!("x != {}", self.neutral),
        }
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
    let store = e.store_element(result, "low + k", "x");
    let Tile { m: copies, n: range, .. } = schedule.tile;
    // Copies lie side by side, an odd number of them: equal positions of different copies are in different banks.
    let element_of = |at: &str, copy: &str| match copies {
        0 | 1 => format!("part[{at}]"),
        copies => format!("part[{at} * {copies}u + {copy}]"),
    };
    let update = atomic.update(dtype, native, &element_of("at", "own"));
    let update = match e.caps.subgroup_arithmetic {
        true => merged(&mut e, atomic, "at", &update).join("\n"),
        false => update,
    };
    let both = |a: &str, b: &str| match atomic {
        Atomic::Add => format!("{a} + {b}"),
        Atomic::Max => format!("max({a}, {b})"),
    };
    let own = if copies > 1 { format!("lane % {copies}u") } else { "0u".into() };
    let comment = format!("%{} = {}", form.node.0, e.body.node_text(form.node));
    let [place_lines, x_lines] = [place_lines, x_lines].map(|lines| lines.join("\n"));
    let holes = context! {
        copies, range, at_once => AT_ONCE, step => AT_ONCE * schedule.workgroup, type => ty, part => elements.ty,
        neutral => elements.neutral, first => elements.value(&element_of("k", "0u")),
        next => both("x", &elements.value(&element_of("k", "c"))),
        changes => elements.changes(dtype), both => both("total", "values[k]"), own, target => target_text, count, place,
        place_lines, x, x_lines, update, store, comment,
    };
    let slices = schedule.split.slices.min(e.caps.max_workgroup_count[0]);
    let grid = [
        Count { value: source, per: AT_ONCE * schedule.workgroup, limit: slices },
        Count::along(e.caps, 1, target, schedule.tile.n),
        Count::constant(1),
    ];
    finish(e, schedule, "scatter_copies.comp", grid, String::new(), holes)
}
