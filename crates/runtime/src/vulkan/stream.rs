//! Stream: work is appended to one open command buffer and submitted in batches.
//!
//! Lazy evaluation computes many small graphs once each. One submission per graph would leave the device idle between
//! them (16 to 25 us on an H200). One recording per graph would cost the host more than its kernels cost the device. So
//! sequences, small uploads and small downloads are appended to an open command buffer, with descriptor sets and symbol
//! tables that live until it is done. It is submitted (*flushed*) when
//!
//! * the host needs a result,
//! * other work is submitted to the queue, since all work runs in submission order,
//! * it contains [`MOST_DISPATCHES`], or
//! * fewer than two submissions are in flight, so that the device does not become idle.
//!
//! Each append begins with a barrier against all earlier work. Buffers may therefore be freed and reused in the order
//! of appends, without waiting for the device.

use std::sync::Arc;

use ash::vk;

use super::barrier::Scope;
use super::buffer::{Buffer, MemoryUse};
use super::device::Device;
use super::error::vulkan;
use super::pipeline::Pipeline;
use super::sequence::{Sequence, Step};
use crate::error::{Error, Result};
use crate::record::Grid;

/// Command buffers, and so the most submissions in flight.
const SLOTS: usize = 8;

/// A command buffer with this many dispatches is submitted: enough that the gap between two does not matter.
const MOST_DISPATCHES: usize = 128;

/// Bytes of a slot's upload buffer, for symbol tables and small uploads.
const HOST_BYTES: u64 = 256 << 10;

/// Bytes of a slot's readback buffer, for small downloads.
const BACK_BYTES: u64 = 64 << 10;

/// Largest upload or download through a slot; above, a separate transfer costs less than the host's copy.
pub(super) const SMALL_BYTES: u64 = 64 << 10;

/// Sets of a descriptor pool, and descriptors per set. A sequence that needs more gets a larger pool.
const POOL_SETS: u32 = 256;
const POOL_DESCRIPTORS: u32 = 8;

/// Alignment of tables and uploads in a slot's upload buffer: no device requires more for descriptors.
const ALIGNMENT: u64 = 256;

const ALL_STAGES: vk::PipelineStageFlags = vk::PipelineStageFlags::from_raw(
    vk::PipelineStageFlags::COMPUTE_SHADER.as_raw()
        | vk::PipelineStageFlags::DRAW_INDIRECT.as_raw()
        | vk::PipelineStageFlags::TRANSFER.as_raw(),
);
const WRITES: vk::AccessFlags = vk::AccessFlags::from_raw(
    vk::AccessFlags::SHADER_WRITE.as_raw() | vk::AccessFlags::TRANSFER_WRITE.as_raw(),
);
/// Everything appended or submitted before.
const BEFORE: Scope = Scope { stages: ALL_STAGES, access: WRITES };
/// Everything after.
const AFTER: Scope = Scope {
    stages: ALL_STAGES,
    access: vk::AccessFlags::from_raw(
        WRITES.as_raw()
            | vk::AccessFlags::SHADER_READ.as_raw()
            | vk::AccessFlags::TRANSFER_READ.as_raw()
            | vk::AccessFlags::INDIRECT_COMMAND_READ.as_raw(),
    ),
};
const KERNELS: Scope =
    Scope { stages: vk::PipelineStageFlags::COMPUTE_SHADER, access: vk::AccessFlags::SHADER_WRITE };
const COPIED: Scope =
    Scope { stages: vk::PipelineStageFlags::TRANSFER, access: vk::AccessFlags::TRANSFER_WRITE };
const HOST_READ: Scope = Scope { stages: vk::PipelineStageFlags::HOST, access: vk::AccessFlags::HOST_READ };

/// The binding of a sequence's buffer.
pub(crate) enum Bound<'a> {
    /// Memory of a block.
    Block(Pooled<'a>),
    /// Another buffer, held until the device is done with it.
    Buffer(&'a Arc<Buffer>),
    /// These bytes, which are copied.
    Table(&'a [u8]),
}

/// The buffer of a block from an offset on. The block's pool keeps it until the work that uses it is done, so only
/// blocks make this.
pub(crate) struct Pooled<'a> {
    pub(super) buffer: &'a Arc<Buffer>,
    pub(super) offset: u64,
}

impl Bound<'_> {
    /// The buffer, and the offset of the bytes in it.
    fn place(&self) -> Option<(&Arc<Buffer>, u64)> {
        match self {
            Bound::Block(pooled) => Some((pooled.buffer, pooled.offset)),
            Bound::Buffer(buffer) => Some((buffer, 0)),
            Bound::Table(_) => None,
        }
    }
}

/// A buffer as in a descriptor: handle, offset and size in bytes.
#[derive(Clone, Copy)]
struct Place {
    handle: vk::Buffer,
    start: u64,
    bytes: u64,
}

/// The open command buffer and those in flight. It is closed before its queue is dropped.
#[derive(Default)]
pub(super) struct Stream {
    slots: Vec<Slot>,
    /// The slot whose command buffer is open.
    open: Option<usize>,
    next: usize,
    /// Timeline values of the last two flushes, the later one first.
    last: [u64; 2],
}

/// A command buffer with all resources that its commands use.
struct Slot {
    pool: vk::CommandPool,
    commands: vk::CommandBuffer,
    /// The last pool is in use; those before are full.
    descriptors: Vec<vk::DescriptorPool>,
    host: Arc<Buffer>,
    host_used: u64,
    back: Arc<Buffer>,
    back_used: u64,
    /// Timeline value at which the device is done with it.
    free_at: u64,
    dispatches: usize,
    buffers: Vec<Arc<Buffer>>,
    pipelines: Vec<Arc<Vec<Arc<Pipeline>>>>,
}

impl Stream {
    /// Appends a sequence with these buffers.
    pub(super) fn append(
        &mut self,
        device: &Arc<Device>,
        sequence: &Sequence,
        bound: &[Bound<'_>],
    ) -> Result<()> {
        let tables = check(device, sequence, bound)?;
        let slot = self.slot(device, tables, 0)?;
        // Everything that can fail precedes the first command, so that no partial sequence is recorded.
        let mut places = Vec::with_capacity(bound.len());
        for bound in bound {
            places.push(match (bound, bound.place()) {
                (Bound::Table(table), _) => {
                    Place { start: slot.put(table)?, handle: slot.host.handle(), bytes: table.len() as u64 }
                }
                (_, Some((buffer, start))) => {
                    Place { handle: buffer.handle(), start, bytes: buffer.size() - start }
                }
                (_, None) => Place { handle: vk::Buffer::null(), start: 0, bytes: 0 },
            });
        }
        let sets = slot.sets(device, sequence)?;
        write_sets(device, sequence, &sets, &places);
        slot.buffers.extend(bound.iter().filter_map(|bound| match bound {
            Bound::Buffer(buffer) => Some((*buffer).clone()),
            Bound::Block(..) | Bound::Table(_) => None,
        }));
        slot.pipelines.push(sequence.pipelines.clone());
        slot.dispatches += sequence.dispatches;
        device.note_work(&sequence.label);
        let (raw, commands) = (&device.raw, slot.commands);
        // SAFETY: the command buffer is recorded under the stream's lock; pipelines, sets and buffers are live and held
        // until the device is done, by the slot or, for blocks, by their pool; the sequence was checked against layouts
        // and limits, and above against the buffers.
        unsafe {
            device.record_barrier(commands, BEFORE, AFTER);
            for step in &sequence.steps {
                let (pipeline, set, grid) = match step {
                    Step::Barrier => {
                        device.record_barrier(commands, KERNELS, AFTER);
                        continue;
                    }
                    Step::Dispatch { pipeline, set, grid } => (&sequence.pipelines[*pipeline], set, grid),
                };
                let point = vk::PipelineBindPoint::COMPUTE;
                raw.cmd_bind_pipeline(commands, point, pipeline.handles.pipeline);
                if let Some(set) = set {
                    raw.cmd_bind_descriptor_sets(
                        commands,
                        point,
                        pipeline.handles.layout,
                        0,
                        &[sets[*set]],
                        &[],
                    );
                }
                match grid {
                    Grid::Direct([x, y, z]) => raw.cmd_dispatch(commands, *x, *y, *z),
                    Grid::Indirect { buffer, offset } => {
                        let Place { handle, start, .. } = places[*buffer];
                        raw.cmd_dispatch_indirect(commands, handle, start + offset);
                    }
                }
            }
        }
        self.flush_if_due(device)
    }

    /// Appends a copy of all bytes of `source` to the start of `target`, a block.
    pub(super) fn copy(
        &mut self,
        device: &Arc<Device>,
        source: &Bound<'_>,
        target: &Arc<Buffer>,
    ) -> Result<()> {
        let Some((buffer, offset)) = source.place() else { return Ok(()) };
        let slot = self.slot(device, 0, 0)?;
        let bytes = buffer.size() - offset;
        let region = vk::BufferCopy::default().src_offset(offset).size(bytes);
        let commands = slot.commands;
        if let Bound::Buffer(buffer) = source {
            slot.buffers.push((*buffer).clone());
        }
        slot.dispatches += 1;
        // SAFETY: as in `append`; the caller checked that the target is as large as the source.
        unsafe {
            device.record_barrier(commands, BEFORE, AFTER);
            device.raw.cmd_copy_buffer(commands, buffer.handle(), target.handle(), &[region]);
        }
        self.flush_if_due(device)
    }

    /// Appends an upload of at most [`SMALL_BYTES`] bytes to the start of `target`, a block.
    pub(super) fn upload(&mut self, device: &Arc<Device>, target: &Arc<Buffer>, data: &[u8]) -> Result<()> {
        let slot = self.slot(device, data.len() as u64, 0)?;
        let region = vk::BufferCopy::default().src_offset(slot.put(data)?).size(data.len() as u64);
        let (source, commands) = (slot.host.handle(), slot.commands);
        // SAFETY: as in `append`; the caller checked the range.
        unsafe {
            device.record_barrier(commands, BEFORE, AFTER);
            device.raw.cmd_copy_buffer(commands, source, target.handle(), &[region]);
        }
        // No flush: the next append waits for it anyway, and an upload alone has no use.
        Ok(())
    }

    /// Appends a download of at most [`SMALL_BYTES`] bytes of `source`, a block, and flushes. Returns the host memory,
    /// the offset of the bytes in it, and the timeline value at which they are there. The memory is not reused while
    /// the caller holds it.
    pub(super) fn download(
        &mut self,
        device: &Arc<Device>,
        source: &Arc<Buffer>,
        offset: u64,
        bytes: u64,
    ) -> Result<(Arc<Buffer>, u64, u64)> {
        let slot = self.slot(device, 0, bytes)?;
        let start = slot.back_used;
        slot.back_used = (start + bytes).next_multiple_of(16);
        let region = vk::BufferCopy::default().src_offset(offset).dst_offset(start).size(bytes);
        let (back, commands) = (slot.back.clone(), slot.commands);
        // SAFETY: as in `append`; the caller checked the range.
        unsafe {
            device.record_barrier(commands, BEFORE, AFTER);
            device.raw.cmd_copy_buffer(commands, source.handle(), back.handle(), &[region]);
            device.record_barrier(commands, COPIED, HOST_READ);
        }
        let value = self.flush(device)?;
        Ok((back, start, value))
    }

    /// Submits the open command buffer, if there is one. Returns the timeline value at which everything flushed is
    /// done.
    pub(super) fn flush(&mut self, device: &Device) -> Result<u64> {
        let Some(open) = self.open.take() else { return Ok(self.last[0]) };
        let slot = &mut self.slots[open];
        // SAFETY: the command buffer is being recorded; its resources are held until the value is reached.
        let submitted = unsafe {
            match device.raw.end_command_buffer(slot.commands) {
                Ok(()) => device.submit_alone(&[slot.commands]),
                Err(code) => Err(vulkan("vkEndCommandBuffer", code)),
            }
        };
        match submitted {
            Ok(value) => {
                slot.free_at = value;
                self.last = [value, self.last[0]];
                Ok(value)
            }
            // Promised timeline values will never be reached, so nothing may be read from now on.
            Err(error) => Err(device.fail(error)),
        }
    }

    /// Flushes if the command buffer is full, or if the device would become idle.
    fn flush_if_due(&mut self, device: &Device) -> Result<()> {
        let full = self.open.is_some_and(|open| self.slots[open].dispatches >= MOST_DISPATCHES);
        if full || device.is_done(self.last[1])? {
            self.flush(device)?;
        }
        Ok(())
    }

    /// The open slot, with room for `host` bytes of uploads and `back` bytes of downloads.
    fn slot(&mut self, device: &Arc<Device>, host: u64, back: u64) -> Result<&mut Slot> {
        if let Some(open) = self.open {
            let slot = &self.slots[open];
            if slot.host_used + host > HOST_BYTES || slot.back_used + back > BACK_BYTES {
                self.flush(device)?;
            }
        }
        let open = match self.open {
            Some(open) => open,
            None => self.begin(device)?,
        };
        Ok(&mut self.slots[open])
    }

    /// Opens the next command buffer, once the device is done with it.
    fn begin(&mut self, device: &Arc<Device>) -> Result<usize> {
        device.check_open()?;
        let index = self.next;
        if index == self.slots.len() {
            self.slots.push(Slot::new(device)?);
        }
        self.slots[index].begin(device)?;
        self.next = (index + 1) % SLOTS;
        self.open = Some(index);
        Ok(index)
    }

    /// Waits for all work and frees all resources, which otherwise keep the device alive.
    pub(super) fn close(&mut self, device: &Device) {
        // If this fails, the device is lost, and no work runs any more.
        let _ = self.flush(device).and_then(|value| device.wait(value, None));
        self.open = None;
        let counts = &device.counts.objects;
        for slot in self.slots.drain(..) {
            counts.descriptor_pools.destroyed(slot.descriptors.len());
            counts.command_buffers.destroyed(1);
            counts.command_pools.destroyed(1);
            // SAFETY: nothing is in flight; destroying pools frees what was allocated from them.
            unsafe {
                for pool in slot.descriptors {
                    device.raw.destroy_descriptor_pool(pool, None);
                }
                device.raw.destroy_command_pool(slot.pool, None);
            }
        }
    }
}

/// Checks that every buffer belongs to the device and is as large as the sequence needs; returns the bytes of tables.
fn check(device: &Arc<Device>, sequence: &Sequence, bound: &[Bound<'_>]) -> Result<u64> {
    let refuse = |reason| Err(Error::BadCommand { command: 0, reason });
    if bound.len() != sequence.buffers() {
        return refuse(format!("{} buffers of {} are named", bound.len(), sequence.buffers()));
    }
    let mut tables = 0;
    for (number, bound) in bound.iter().enumerate() {
        let need = sequence.need(number);
        if let Bound::Table(table) = bound {
            let bytes = table.len() as u64;
            tables += bytes.next_multiple_of(ALIGNMENT);
            if bytes < need || tables > HOST_BYTES {
                return refuse(format!("a table of {bytes} bytes where {need} are used"));
            }
        }
        let Some((buffer, offset)) = bound.place().filter(|_| need > 0) else { continue };
        let name = buffer.name();
        if !Arc::ptr_eq(buffer.device(), device) {
            return refuse(format!("buffer {name} belongs to another context"));
        }
        if !offset.is_multiple_of(device.caps.storage_offset_alignment) {
            return refuse(format!("buffer {name} is bound at {offset}, which is not aligned"));
        }
        buffer.check_range(offset, if sequence.is_exact() { need } else { 1 })?;
    }
    Ok(tables)
}

/// Writes the descriptors of all sets of a sequence with one call.
fn write_sets(device: &Device, sequence: &Sequence, sets: &[vk::DescriptorSet], places: &[Place]) {
    let mut infos: Vec<vk::DescriptorBufferInfo> = Vec::with_capacity(sequence.descriptors as usize);
    for (_, ranges) in &sequence.sets {
        infos.extend(ranges.iter().map(|range| {
            let Place { handle, start, bytes } = places[range.buffer];
            // For symbolic extents, the sequence has the largest range; the buffer has the size of this run.
            let offset = range.offset.min(bytes.saturating_sub(1));
            let range = range.bytes.min(bytes - offset);
            vk::DescriptorBufferInfo::default().buffer(handle).offset(start + offset).range(range)
        }));
    }
    let mut rest = infos.as_slice();
    let writes: Vec<_> = sets
        .iter()
        .zip(&sequence.sets)
        .map(|(set, (_, ranges))| {
            let (own, others) = rest.split_at(ranges.len());
            rest = others;
            vk::WriteDescriptorSet::default()
                .dst_set(*set)
                .dst_binding(0)
                .descriptor_type(vk::DescriptorType::STORAGE_BUFFER)
                .buffer_info(own)
        })
        .collect();
    // SAFETY: the sets are new, so no command uses them yet; consecutive bindings of one type may be written at once;
    // the ranges are within live buffers (`check`).
    unsafe { device.raw.update_descriptor_sets(&writes, &[]) };
}

impl Slot {
    fn new(device: &Arc<Device>) -> Result<Slot> {
        let host = Buffer::new(device, "stream", HOST_BYTES, MemoryUse::Shared)?;
        let back = Buffer::new(device, "stream back", BACK_BYTES, MemoryUse::Readback)?;
        let info = vk::CommandPoolCreateInfo::default()
            .flags(vk::CommandPoolCreateFlags::TRANSIENT)
            .queue_family_index(device.queue_family);
        // SAFETY: the family is the one that the device was created with.
        let pool = unsafe { device.raw.create_command_pool(&info, None) }
            .map_err(|code| vulkan("vkCreateCommandPool", code))?;
        let info = vk::CommandBufferAllocateInfo::default()
            .command_pool(pool)
            .level(vk::CommandBufferLevel::PRIMARY)
            .command_buffer_count(1);
        // SAFETY: the pool is new and belongs to this slot; it is destroyed if the allocation fails.
        let commands = unsafe {
            device.raw.allocate_command_buffers(&info).map_err(|code| {
                device.raw.destroy_command_pool(pool, None);
                vulkan("vkAllocateCommandBuffers", code)
            })?[0]
        };
        device.counts.objects.command_pools.created();
        device.counts.objects.command_buffers.created();
        Ok(Slot {
            pool,
            commands,
            descriptors: vec![],
            host,
            host_used: 0,
            back,
            back_used: 0,
            free_at: 0,
            dispatches: 0,
            buffers: vec![],
            pipelines: vec![],
        })
    }

    /// Restarts the command buffer, once the device is done with it.
    fn begin(&mut self, device: &Arc<Device>) -> Result<()> {
        device.wait(self.free_at, None)?;
        self.buffers.clear();
        self.pipelines.clear();
        (self.host_used, self.back_used, self.dispatches) = (0, 0, 0);
        if Arc::strong_count(&self.back) > 1 {
            // A thread has not read its download yet, so that buffer is replaced.
            self.back = Buffer::new(device, "stream back", BACK_BYTES, MemoryUse::Readback)?;
        }
        let begin = vk::CommandBufferBeginInfo::default().flags(vk::CommandBufferUsageFlags::ONE_TIME_SUBMIT);
        let counts = &device.counts.objects;
        // SAFETY: the device is done with the slot, and the stream's lock excludes other threads. Of several descriptor
        // pools, the last one is at least as large as the others.
        unsafe {
            let last = self.descriptors.pop();
            for pool in self.descriptors.drain(..) {
                device.raw.destroy_descriptor_pool(pool, None);
                counts.descriptor_pools.destroyed(1);
            }
            self.descriptors.extend(last);
            for pool in &self.descriptors {
                let flags = vk::DescriptorPoolResetFlags::empty();
                device
                    .raw
                    .reset_descriptor_pool(*pool, flags)
                    .map_err(|code| vulkan("vkResetDescriptorPool", code))?;
            }
            device
                .raw
                .reset_command_pool(self.pool, vk::CommandPoolResetFlags::empty())
                .map_err(|code| vulkan("vkResetCommandPool", code))?;
            device
                .raw
                .begin_command_buffer(self.commands, &begin)
                .map_err(|code| vulkan("vkBeginCommandBuffer", code))
        }
    }

    /// Copies bytes into the upload buffer and returns their offset; the caller ensured that there is room.
    fn put(&mut self, bytes: &[u8]) -> Result<u64> {
        let start = self.host_used;
        self.host.write(start, bytes)?;
        self.host_used = (start + bytes.len() as u64).next_multiple_of(ALIGNMENT);
        Ok(start)
    }

    /// New descriptor sets for a sequence.
    fn sets(&mut self, device: &Device, sequence: &Sequence) -> Result<Vec<vk::DescriptorSet>> {
        if sequence.sets.is_empty() {
            return Ok(vec![]);
        }
        let layouts: Vec<_> = sequence
            .sets
            .iter()
            .map(|(pipeline, _)| sequence.pipelines[*pipeline].handles.set_layout)
            .collect();
        let allocate = |pool: vk::DescriptorPool| {
            let info = vk::DescriptorSetAllocateInfo::default().descriptor_pool(pool).set_layouts(&layouts);
            // SAFETY: the pool belongs to this slot, the layouts are live.
            unsafe { device.raw.allocate_descriptor_sets(&info) }
        };
        match self.descriptors.last().map(|pool| allocate(*pool)) {
            Some(Ok(sets)) => return Ok(sets),
            None | Some(Err(vk::Result::ERROR_OUT_OF_POOL_MEMORY | vk::Result::ERROR_FRAGMENTED_POOL)) => {}
            Some(Err(code)) => return Err(vulkan("vkAllocateDescriptorSets", code)),
        }
        let sets = POOL_SETS.max(layouts.len() as u32);
        let sizes = [vk::DescriptorPoolSize::default()
            .ty(vk::DescriptorType::STORAGE_BUFFER)
            .descriptor_count((POOL_SETS * POOL_DESCRIPTORS).max(sequence.descriptors))];
        let info = vk::DescriptorPoolCreateInfo::default().max_sets(sets).pool_sizes(&sizes);
        // SAFETY: the device is live, the sizes are not zero.
        let pool = unsafe { device.raw.create_descriptor_pool(&info, None) }
            .map_err(|code| vulkan("vkCreateDescriptorPool", code))?;
        device.counts.objects.descriptor_pools.created();
        self.descriptors.push(pool);
        allocate(pool).map_err(|code| vulkan("vkAllocateDescriptorSets", code))
    }
}
