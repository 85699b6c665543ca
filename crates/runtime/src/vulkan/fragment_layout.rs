//! Which lane holds which elements of a matrix, where kernels want to know: no extension tells it, so the device is asked.

use std::sync::Arc;

use tallow_codegen::{COOPMAT_FRAGMENT_LAYOUT_KERNEL, compile_spirv};
use tallow_ir::caps::DeviceCaps;
use tallow_ir::matrix;

use super::buffer::MemoryUse;
use super::context::Context;
use super::pipeline::{Pipeline, PipelineDesc};
use super::record::Recording;
use crate::error::{Error, Result};
use crate::record::{BarrierKind, BindRange, Grid, RecordCommand, RecordOptions, RecordSpec};

/// The name of the kernel in errors.
const NAME: &str = "coopmat_fragment_layout";

/// Lanes of the subgroup that tells.
const LANES: usize = 32;

/// Whether there are matrices of the size and subgroups of the size that kernels know an order of.
fn wanted(caps: &DeviceCaps) -> bool {
    matrix::side(caps) == Some(16) && caps.scheduled_subgroup_size() == LANES as u32
}

/// What [`DeviceCaps::coopmat_fragment_layout`] says. A device that fails to tell is used without.
pub(super) fn known(context: &Context) -> bool {
    if !wanted(context.caps()) {
        return false;
    }
    let answer = ask(context);
    if let Err(error) = &answer {
        tracing::warn!("{} does not tell how its matrices lie: {error}", context.caps().name);
    }
    answer.unwrap_or(false)
}

/// Each lane loads matrices of their own places and compares.
fn ask(context: &Context) -> Result<bool> {
    let bytes = 4 * LANES as u64;
    let buffer = context.buffer(NAME, bytes, MemoryUse::Readback)?;
    let dispatch = RecordCommand::Dispatch {
        pipeline: 0,
        bindings: vec![BindRange { buffer: 0, offset: 0, bytes }],
        grid: Grid::Direct([1, 1, 1]),
        push: vec![],
        label: NAME.to_string(),
    };
    let barrier = RecordCommand::Barrier;
    let commands = vec![barrier(BarrierKind::Head), dispatch, barrier(BarrierKind::Tail)];
    let (pipelines, buffers) = ([pipeline(context)?], [buffer.clone()]);
    let spec = RecordSpec { commands };
    let recording =
        Recording::of_transfer(context.device(), &spec, &pipelines, &buffers, RecordOptions::default())?;
    recording.submit_transfer()?.wait(None)?;
    let mut found = [0; 4 * LANES];
    buffer.read(0, &mut found)?;
    Ok(found.as_chunks::<4>().0.iter().all(|word| *word == 1u32.to_ne_bytes()))
}

fn pipeline(context: &Context) -> Result<Arc<Pipeline>> {
    let fail = |reason: String| Error::BadPipeline { name: NAME.to_string(), reason };
    let cache = crate::cache_dir::cache_dir();
    let (modules, _) = compile_spirv(&[(NAME, COOPMAT_FRAGMENT_LAYOUT_KERNEL)], cache.as_deref())
        .map_err(|e| fail(e.to_string()))?;
    let spirv = modules.first().ok_or_else(|| fail("it was not compiled".to_string()))?;
    let required_subgroup_size = context.caps().subgroup_size_control.then_some(LANES as u32);
    let desc = PipelineDesc { name: NAME, spirv, bindings: 1, push_bytes: 0, required_subgroup_size };
    let mut made = context.create_pipelines(&[desc])?;
    made.pop().ok_or_else(|| fail("it was not made".to_string()))
}
