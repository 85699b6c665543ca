//! Fragment layout of cooperative matrices: no extension reports which lane holds which elements, so a kernel checks
//! it.

use std::sync::Arc;

use tallow_codegen::{compile_spirv, coopmat_fragment_layout_kernel};
use tallow_ir::caps::DeviceCaps;
use tallow_ir::matrix::{self, MatrixOperand};

use super::buffer::MemoryUse;
use super::device::Device;
use super::pipeline::{self, Pipeline};
use super::pipeline_cache::PipelineCache;
use super::pipeline_handles::PipelineDesc;
use super::pool::Pool;
use super::record::Recording;
use crate::error::{Error, Result};
use crate::record::{BarrierKind, BindRange, Grid, RecordCommand, RecordOptions, RecordSpec};

/// The kernel's name in errors.
const NAME: &str = "coopmat_fragment_layout";

/// Lanes of the subgroup that checks.
const LANES: usize = 32;

/// The element types of the device's 16x16 matrices, if it has 32-wide subgroups: kernels assume a layout for them.
fn wanted(caps: &DeviceCaps) -> Vec<MatrixOperand> {
    let has = |operand: &MatrixOperand| {
        matrix::coopmat_size(caps, *operand) == Some(16) && caps.scheduled_subgroup_size() == LANES as u32
    };
    MatrixOperand::ALL.into_iter().filter(has).collect()
}

/// The value of [`DeviceCaps::coopmat_fragment_layout`]; false if the check fails to run.
pub(super) fn known(pool: &Pool, cache: &PipelineCache) -> bool {
    let caps = &pool.queue().device.caps;
    let operands = wanted(caps);
    let holds = |operand: &MatrixOperand| {
        let answer = ask(pool, cache, *operand);
        if let Err(error) = &answer {
            tracing::warn!("{} does not tell how its matrices lie: {error}", caps.name);
        }
        answer.unwrap_or(false)
    };
    !operands.is_empty() && operands.iter().all(holds)
}

/// Runs the check: each lane loads matrices whose elements are their positions, and compares them with the expected
/// layout.
fn ask(pool: &Pool, cache: &PipelineCache, operand: MatrixOperand) -> Result<bool> {
    let bytes = 4 * LANES as u64;
    let buffer = pool.buffer(NAME, bytes, MemoryUse::Readback)?;
    let dispatch = RecordCommand::Dispatch {
        pipeline: 0,
        bindings: vec![BindRange { buffer: 0, offset: 0, bytes }],
        grid: Grid::Direct([1, 1, 1]),
        push: vec![],
        label: NAME.to_string(),
    };
    let barrier = RecordCommand::Barrier;
    let commands = vec![barrier(BarrierKind::Head), dispatch, barrier(BarrierKind::Tail)];
    let (pipelines, buffers) = ([pipeline(&pool.queue().device, cache, operand)?], [buffer.clone()]);
    let spec = RecordSpec { commands };
    let recording =
        Recording::of_transfer(pool.queue(), &spec, &pipelines, &buffers, RecordOptions::default())?;
    recording.submit_transfer()?.wait(None)?;
    let mut found = [0; 4 * LANES];
    buffer.read(0, &mut found)?;
    Ok(found.as_chunks::<4>().0.iter().all(|word| *word == 1u32.to_ne_bytes()))
}

fn pipeline(device: &Arc<Device>, cache: &PipelineCache, operand: MatrixOperand) -> Result<Arc<Pipeline>> {
    let fail = |reason: String| Error::BadPipeline { name: NAME.to_string(), reason };
    let glsl = coopmat_fragment_layout_kernel(operand).map_err(|e| fail(e.to_string()))?;
    let dir = crate::cache_dir::cache_dir();
    let (modules, _) =
        compile_spirv(&[(NAME, glsl.as_str())], dir.as_deref()).map_err(|e| fail(e.to_string()))?;
    let spirv = modules.first().ok_or_else(|| fail("it was not compiled".to_string()))?;
    let required_subgroup_size = device.caps.subgroup_size_control.then_some(LANES as u32);
    let desc = PipelineDesc { name: NAME, spirv, bindings: 1, push_bytes: 0, required_subgroup_size };
    let mut made = pipeline::create_all(device, cache, &[desc])?;
    made.pop().ok_or_else(|| fail("it was not made".to_string()))
}
