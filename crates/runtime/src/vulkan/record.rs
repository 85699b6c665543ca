//! From a checked command list to a command buffer, once.
//!
//! [`Recording::new`] checks the whole list, makes descriptor sets with exact ranges, and then translates
//! command by command. Nothing is decided here: no command is added, left out or moved, and what is counted
//! is counted beside the Vulkan call.

use std::sync::{Arc, Mutex};

use ash::vk;

use super::barrier::Scope;
use super::buffer::Buffer;
use super::descriptor::DescriptorSets;
use super::device::Device;
use super::error::vulkan;
use super::lock;
use super::pipeline::Pipeline;
use super::queue::Queue;
use super::timestamp::Timestamps;
use crate::error::{Error, Result};
use crate::record::{BarrierKind, Grid, RecordCommand, RecordCounts, RecordOptions, RecordSpec, Timing};

/// A recorded command list with all that it uses; run by [`Recording::submit`].
pub struct Recording {
    pub(super) inner: Arc<Recorded>,
}

/// What a recording and the handles of its runs share.
pub(super) struct Recorded {
    pub(super) queue: Arc<Queue>,
    pub(super) command_buffers: Vec<vk::CommandBuffer>,
    /// Timeline value of the last run; 0 before the first.
    pub(super) last_run: Mutex<u64>,
    pub(super) timestamps: Option<Timestamps>,
    counts: RecordCounts,
    pool: vk::CommandPool,
    // Kept alive for the commands that use them; freed after `Drop::drop` has waited.
    sets: DescriptorSets,
    _pipelines: Vec<Arc<Pipeline>>,
    _buffers: Vec<Arc<Buffer>>,
}

impl Recording {
    /// [`Recording::new`] for one run of a transfer, which is not counted.
    pub(super) fn of_transfer(
        queue: &Arc<Queue>,
        spec: &RecordSpec,
        pipelines: &[Arc<Pipeline>],
        buffers: &[Arc<Buffer>],
        options: RecordOptions,
    ) -> Result<Recording> {
        let device = &queue.device;
        check_owners(device, pipelines, buffers)?;
        let shapes: Vec<_> = pipelines.iter().map(|pipeline| pipeline.shape().clone()).collect();
        let sizes: Vec<_> = buffers.iter().map(|buffer| buffer.size()).collect();
        spec.check(&shapes, &sizes, &device.caps)?;

        let sets = DescriptorSets::new(device, spec, pipelines, buffers)?;
        let timestamps = match options.timing {
            Timing::Off => None,
            Timing::Run => Some(Timestamps::new(device, None)?),
            Timing::Dispatches => Some(Timestamps::new(device, Some(labels(spec)))?),
        };
        let info = vk::CommandPoolCreateInfo::default().queue_family_index(device.queue_family);
        // SAFETY: the family is the one that the device was created with.
        let pool = unsafe { device.raw.create_command_pool(&info, None) }
            .map_err(|code| vulkan("vkCreateCommandPool", code))?;
        // From here on dropping the value destroys pool, queries and sets.
        let mut recorded = Recorded {
            queue: queue.clone(),
            command_buffers: Vec::new(),
            last_run: Mutex::new(0),
            timestamps,
            counts: RecordCounts { descriptor_sets: sets.count, ..RecordCounts::default() },
            pool,
            sets,
            _pipelines: pipelines.to_vec(),
            _buffers: buffers.to_vec(),
        };
        device.counts.objects.command_pools.created();
        recorded.record(spec, pipelines, buffers, options)?;
        device.check_validation()?;
        Ok(Recording { inner: Arc::new(recorded) })
    }

    /// What was recorded.
    pub fn counts(&self) -> RecordCounts {
        self.inner.counts
    }

    /// Label and time in nanoseconds of every dispatch of the last run, which must be done.
    pub fn timings(&self) -> Result<Vec<(String, u64)>> {
        self.done_timestamps()?.dispatches()
    }

    /// Nanoseconds from before the first to after the last dispatch, copy or fill of the last run, which must be
    /// done.
    pub fn run_time(&self) -> Result<u64> {
        self.done_timestamps()?.run()
    }

    fn done_timestamps(&self) -> Result<&Timestamps> {
        let last_run = *lock(&self.inner.last_run);
        let Some(timestamps) = &self.inner.timestamps else {
            return Err(Error::NoTimings { reason: "the recording was made without timestamps" });
        };
        if last_run == 0 {
            return Err(Error::NoTimings { reason: "the recording has not run yet" });
        }
        if !self.inner.queue.device.is_done(last_run)? {
            return Err(Error::Busy);
        }
        Ok(timestamps)
    }
}

impl std::fmt::Debug for Recording {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Recording({:?})", self.inner.counts)
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        let last_run = *lock(&self.last_run);
        // A device that fails here is lost, and then nothing runs any more.
        let _ = self.queue.device.wait(last_run, None);
        let counts = &self.queue.device.counts.objects;
        counts.command_buffers.destroyed(self.command_buffers.len());
        counts.command_pools.destroyed(1);
        // SAFETY: no run is in flight; destroying the pool frees its command buffers.
        unsafe { self.queue.device.raw.destroy_command_pool(self.pool, None) };
    }
}

/// Everything must belong to the device that records.
fn check_owners(device: &Arc<Device>, pipelines: &[Arc<Pipeline>], buffers: &[Arc<Buffer>]) -> Result<()> {
    let reason = || "it belongs to another context".to_string();
    if let Some(other) = pipelines.iter().find(|pipeline| !Arc::ptr_eq(pipeline.device(), device)) {
        return Err(Error::BadPipeline { name: other.name().to_string(), reason: reason() });
    }
    if let Some(other) = buffers.iter().find(|buffer| !Arc::ptr_eq(buffer.device(), device)) {
        let (name, bytes) = (other.name().to_string(), other.size());
        return Err(Error::BadBuffer { name, bytes, reason: reason() });
    }
    Ok(())
}

fn labels(spec: &RecordSpec) -> Vec<String> {
    spec.commands
        .iter()
        .filter_map(|command| match command {
            RecordCommand::Dispatch { label, .. } => Some(label.clone()),
            RecordCommand::Barrier(_) | RecordCommand::Copy { .. } | RecordCommand::Fill { .. } => None,
        })
        .collect()
}

impl Recorded {
    fn record(
        &mut self,
        spec: &RecordSpec,
        pipelines: &[Arc<Pipeline>],
        buffers: &[Arc<Buffer>],
        options: RecordOptions,
    ) -> Result<()> {
        let scopes = Scopes::of(spec);
        let split_after = options.split_after.unwrap_or(usize::MAX).max(1);
        let mut in_this_buffer = 0;
        let mut commands = self.begin()?;
        if let Some(timestamps) = &self.timestamps {
            // SAFETY: the command buffer is being recorded.
            unsafe { timestamps.reset(commands) };
        }
        let is_work = |command: &RecordCommand| !matches!(command, RecordCommand::Barrier(_));
        let first = spec.commands.iter().position(is_work);
        let last = spec.commands.iter().rposition(is_work);
        for (position, command) in spec.commands.iter().enumerate() {
            if Some(position) == first {
                self.run_timestamp(commands, false);
            }
            match command {
                RecordCommand::Dispatch { pipeline, grid, push, label: _, bindings: _ } => {
                    if in_this_buffer == split_after {
                        self.end(commands)?;
                        commands = self.begin()?;
                        in_this_buffer = 0;
                    }
                    in_this_buffer += 1;
                    let set = self.sets.of_command[position];
                    self.dispatch(commands, &pipelines[*pipeline], set, push, grid, buffers);
                }
                RecordCommand::Barrier(kind) => self.barrier(commands, *kind, scopes),
                RecordCommand::Copy { source, source_offset, target, target_offset, bytes } => {
                    let region = [vk::BufferCopy::default()
                        .src_offset(*source_offset)
                        .dst_offset(*target_offset)
                        .size(*bytes)];
                    let (source, target) = (buffers[*source].handle(), buffers[*target].handle());
                    // SAFETY: the list was checked: both ranges lie in live buffers and do not overlap.
                    unsafe { self.queue.device.raw.cmd_copy_buffer(commands, source, target, &region) };
                    self.counts.copies += 1;
                }
                RecordCommand::Fill { buffer, offset, bytes, value } => {
                    let target = buffers[*buffer].handle();
                    // SAFETY: the list was checked: the range lies in a live buffer, in whole words.
                    unsafe {
                        self.queue.device.raw.cmd_fill_buffer(commands, target, *offset, *bytes, *value)
                    };
                    self.counts.fills += 1;
                }
            }
            if Some(position) == last {
                self.run_timestamp(commands, true);
            }
        }
        self.end(commands)
    }

    /// The timestamp at the start or the end of a run that is timed as a whole.
    fn run_timestamp(&self, commands: vk::CommandBuffer, after: bool) {
        if let Some(timestamps) = self.timestamps.as_ref().filter(|t| !t.times_dispatches()) {
            // SAFETY: the command buffer is being recorded, and there is one pair.
            unsafe { timestamps.write(commands, 0, after) };
        }
    }

    fn begin(&mut self) -> Result<vk::CommandBuffer> {
        let info = vk::CommandBufferAllocateInfo::default()
            .command_pool(self.pool)
            .level(vk::CommandBufferLevel::PRIMARY)
            .command_buffer_count(1);
        // SAFETY: the pool belongs to this recording, and `&mut self` keeps other threads from it.
        let allocated = unsafe { self.queue.device.raw.allocate_command_buffers(&info) }
            .map_err(|code| vulkan("vkAllocateCommandBuffers", code))?;
        let commands = allocated[0];
        // SAFETY: the command buffer is new. It is submitted again and again, but never while it runs, so it
        // needs no usage flag.
        unsafe {
            self.queue.device.raw.begin_command_buffer(commands, &vk::CommandBufferBeginInfo::default())
        }
        .map_err(|code| vulkan("vkBeginCommandBuffer", code))?;
        self.command_buffers.push(commands);
        self.queue.device.counts.objects.command_buffers.created();
        self.counts.command_buffers += 1;
        Ok(commands)
    }

    fn end(&self, commands: vk::CommandBuffer) -> Result<()> {
        // SAFETY: the command buffer is being recorded.
        unsafe { self.queue.device.raw.end_command_buffer(commands) }
            .map_err(|code| vulkan("vkEndCommandBuffer", code))
    }

    fn dispatch(
        &mut self,
        commands: vk::CommandBuffer,
        pipeline: &Pipeline,
        set: Option<vk::DescriptorSet>,
        push: &[u8],
        grid: &Grid,
        buffers: &[Arc<Buffer>],
    ) {
        let raw = &self.queue.device.raw;
        let number = self.counts.dispatches;
        let timed = self.timestamps.as_ref().filter(|t| t.times_dispatches());
        // SAFETY: the command buffer is being recorded; pipeline, set and buffers are live and kept alive;
        // the set fits the layout; push constants and grid were checked against layout and limits.
        unsafe {
            raw.cmd_bind_pipeline(commands, vk::PipelineBindPoint::COMPUTE, pipeline.handles.pipeline);
            if let Some(set) = set {
                let point = vk::PipelineBindPoint::COMPUTE;
                raw.cmd_bind_descriptor_sets(commands, point, pipeline.handles.layout, 0, &[set], &[]);
            }
            if !push.is_empty() {
                let stage = vk::ShaderStageFlags::COMPUTE;
                raw.cmd_push_constants(commands, pipeline.handles.layout, stage, 0, push);
            }
            if let Some(timestamps) = timed {
                timestamps.write(commands, number, false);
            }
            match grid {
                Grid::Direct([x, y, z]) => raw.cmd_dispatch(commands, *x, *y, *z),
                Grid::Indirect { buffer, offset } => {
                    raw.cmd_dispatch_indirect(commands, buffers[*buffer].handle(), *offset);
                }
            }
            if let Some(timestamps) = timed {
                timestamps.write(commands, number, true);
            }
        }
        self.counts.dispatches += 1;
        self.counts.indirect_dispatches += usize::from(matches!(grid, Grid::Indirect { .. }));
    }

    fn barrier(&mut self, commands: vk::CommandBuffer, kind: BarrierKind, scopes: Scopes) {
        let (from, to) = scopes.barrier(kind);
        // SAFETY: the command buffer is being recorded; the stages exist on a compute queue.
        unsafe { self.queue.device.record_barrier(commands, from, to) };
        *match kind {
            BarrierKind::Head => &mut self.counts.barriers_head,
            BarrierKind::Between => &mut self.counts.barriers_between,
            BarrierKind::Tail => &mut self.counts.barriers_tail,
        } += 1;
    }
}

/// The stages and accesses that a command list has.
#[derive(Clone, Copy)]
struct Scopes {
    reads: Scope,
    writes: Scope,
}

impl Scopes {
    fn of(spec: &RecordSpec) -> Scopes {
        let mut stages = vk::PipelineStageFlags::COMPUTE_SHADER;
        let mut reads = vk::AccessFlags::SHADER_READ;
        let mut writes = vk::AccessFlags::SHADER_WRITE;
        let indirect = spec
            .commands
            .iter()
            .any(|command| matches!(command, RecordCommand::Dispatch { grid: Grid::Indirect { .. }, .. }));
        if indirect {
            stages |= vk::PipelineStageFlags::DRAW_INDIRECT;
            reads |= vk::AccessFlags::INDIRECT_COMMAND_READ;
        }
        if spec.has_transfers() {
            stages |= vk::PipelineStageFlags::TRANSFER;
            reads |= vk::AccessFlags::TRANSFER_READ;
            writes |= vk::AccessFlags::TRANSFER_WRITE;
        }
        Scopes { reads: Scope { stages, access: reads }, writes: Scope { stages, access: writes } }
    }

    /// What a barrier waits for, and what waits for it.
    ///
    /// Earlier reads need no access flag: they are ordered by the execution dependency between the stages.
    fn barrier(self, kind: BarrierKind) -> (Scope, Scope) {
        let later = Scope { stages: self.reads.stages, access: self.reads.access | self.writes.access };
        match kind {
            // The run before may be another recording, whose copies and grids this one does not know.
            BarrierKind::Head => {
                let stages = vk::PipelineStageFlags::HOST
                    | vk::PipelineStageFlags::COMPUTE_SHADER
                    | vk::PipelineStageFlags::DRAW_INDIRECT
                    | vk::PipelineStageFlags::TRANSFER;
                let access = vk::AccessFlags::HOST_WRITE
                    | vk::AccessFlags::SHADER_WRITE
                    | vk::AccessFlags::TRANSFER_WRITE;
                (Scope { stages, access }, later)
            }
            BarrierKind::Between => (self.writes, later),
            BarrierKind::Tail => {
                let host = Scope { stages: vk::PipelineStageFlags::HOST, access: vk::AccessFlags::HOST_READ };
                (self.writes, host)
            }
        }
    }
}
