//! Compute pipelines: one kernel each, storage buffers 0..n in set 0, push constants.

use std::sync::Arc;

use ash::vk;
use rayon::prelude::*;

use super::device::{Counts, Device};
use super::pipeline_cache::PipelineCache;
use super::pipeline_handles::{PipelineDesc, PipelineHandles};
use crate::error::Result;
use crate::record::PipelineShape;

/// A compute pipeline and its layouts.
pub struct Pipeline {
    pub(super) handles: PipelineHandles,
    shape: PipelineShape,
    device: Arc<Device>,
}

impl Pipeline {
    /// The name that it was created with.
    pub fn name(&self) -> &str {
        &self.shape.name
    }

    /// What it binds.
    pub fn shape(&self) -> &PipelineShape {
        &self.shape
    }

    /// The device that it belongs to.
    pub(super) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    fn new(device: &Arc<Device>, cache: vk::PipelineCache, desc: &PipelineDesc<'_>) -> Result<Arc<Pipeline>> {
        let handles = PipelineHandles::create(device.for_pipelines(), cache, desc)?;
        device.counts.objects.pipelines.created();
        device.name(handles.pipeline, desc.name);
        Counts::add(&device.counts.pipelines_created, 1);
        let name = desc.name.to_string();
        let shape = PipelineShape { name, bindings: desc.bindings, push_bytes: desc.push_bytes };
        Ok(Arc::new(Pipeline { handles, shape, device: device.clone() }))
    }
}

impl Drop for Pipeline {
    fn drop(&mut self) {
        self.device.counts.objects.pipelines.destroyed(1);
        // SAFETY: recordings hold an `Arc` until they are done, so nothing uses the pipeline.
        unsafe { self.handles.destroy(&self.device.raw) };
    }
}

impl std::fmt::Debug for Pipeline {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pipeline({}, {} bindings)", self.shape.name, self.shape.bindings)
    }
}

/// Creates pipelines in parallel; they come back in the order of `descs`.
pub(super) fn create_all(
    device: &Arc<Device>,
    cache: &PipelineCache,
    descs: &[PipelineDesc<'_>],
) -> Result<Vec<Arc<Pipeline>>> {
    let handle = cache.handle;
    let one = |desc| Pipeline::new(device, handle, desc);
    let pipelines = match descs {
        // Not on rayon's pool, which may be busy for seconds: see `compile_spirv`.
        [desc] => one(desc).map(|pipeline| vec![pipeline]),
        _ => descs.par_iter().map(one).collect(),
    };
    // What the layer says of a module explains a refusal better than the driver does.
    device.check_validation()?;
    pipelines
}
