//! Planning a graph without a device: the memory that running it takes, from the device's capabilities alone.

use tallow_codegen::{Copies, Options, compile_with};
use tallow_ir::caps::DeviceCaps;
use tallow_ir::schedule::BufferKind;
use tallow_ir::{Graph, TensorType};

use crate::error::{Error, Result};
use crate::executable::verified;

/// The memory that one executable takes on a Vulkan device, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryPlan {
    /// The arena for intermediate values, as [`ExecStats::arena_bytes`](crate::ExecStats::arena_bytes) reports it.
    pub arena: u64,
    /// Weights in the device's layout, as [`ExecStats::weight_bytes`](crate::ExecStats::weight_bytes) reports them.
    /// Executables that are bound to the same weights share them. Weights that kernels read in another order count twice.
    pub weights: u64,
    /// States, which executables may share likewise.
    pub states: u64,
    /// Inputs, outputs, symbol values and codebooks.
    pub other: u64,
    /// Levels: sets of kernels that run side by side, of which each waits for the one before it. This is no memory.
    pub levels: usize,
}

/// Compiles a graph for a device with these capabilities as far as its memory plan; shaders and weights are not needed.
///
/// The plan is the one of [`Device::compile`](crate::Device::compile) unless kernels were tuned, which may take others.
///
/// # Errors
/// When the graph is invalid or needs what such a device lacks.
pub fn plan_memory(graph: &Graph, caps: &DeviceCaps) -> Result<MemoryPlan> {
    plan_memory_within(graph, caps, None)
}

/// As [`plan_memory`], with at most `budget` bytes in the arena; see [`Remat`](crate::Remat).
///
/// # Errors
/// As [`plan_memory`], and when the budget is too small.
pub fn plan_memory_within(graph: &Graph, caps: &DeviceCaps, budget: Option<u64>) -> Result<MemoryPlan> {
    plan(graph, caps, budget).map(|(plan, _)| plan)
}

/// As [`plan_memory`], with the name and the bytes of each weight. A copy in another order is an entry of its own, whose
/// name begins with the weight's.
///
/// # Errors
/// As [`plan_memory`].
pub fn plan_memory_by_weight(graph: &Graph, caps: &DeviceCaps) -> Result<(MemoryPlan, Vec<(String, u64)>)> {
    plan(graph, caps, None)
}

fn plan(graph: &Graph, caps: &DeviceCaps, budget: Option<u64>) -> Result<(MemoryPlan, Vec<(String, u64)>)> {
    let choose = &mut |_: &Graph| tallow_codegen::Schedules::default();
    let options = Options { copies: Copies::Once, budget };
    let module = compile_with(&verified(graph)?, caps, &options, choose, &mut |_, _| {})
        .map_err(|e| Error::Device(e.to_string()))?;
    let mut weights = vec![];
    let mut plan = MemoryPlan {
        arena: module.plan.arena.bytes,
        levels: module.plan.levels.len(),
        ..MemoryPlan::default()
    };
    for (buffer, slot) in module.program.buffers.iter().zip(&module.plan.arena.slots) {
        match buffer.kind {
            // What is never accessed has no slot, and memory of its own.
            BufferKind::Arena | BufferKind::Scratch { .. } if slot.is_some() => {}
            BufferKind::Arena | BufferKind::Scratch { .. } => plan.other += buffer.bytes,
            BufferKind::Input(_) | BufferKind::Output(_) | BufferKind::Symbols | BufferKind::Codebooks => {
                plan.other += buffer.bytes;
            }
            BufferKind::Weight(w) => {
                weights.push((module.weights[w as usize].name.clone(), resident_bytes(buffer.bytes)));
            }
            BufferKind::State(_) => plan.states += resident_bytes(buffer.bytes),
        }
    }
    // What is copied stays, since whoever binds it has it.
    for copy in &module.weight_copies {
        if weights.iter().all(|(name, _)| *name != copy.source) {
            weights.push((copy.source.clone(), device_bytes(&copy.source_ty)));
        }
    }
    plan.weights = weights.iter().map(|(_, bytes)| *bytes).sum();
    Ok((plan, weights))
}

/// Bytes that a weight or a state of this type takes on a Vulkan device.
pub fn device_bytes(ty: &TensorType) -> u64 {
    resident_bytes(ty.max_bytes())
}

/// The size of a buffer that stays: whole vectors of sixteen bytes, which wide loads read.
fn resident_bytes(bytes: u64) -> u64 {
    bytes.max(1).checked_next_multiple_of(16).unwrap_or(u64::MAX)
}
