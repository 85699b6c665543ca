//! Moves bytes between the host and memory that it cannot reach.
//!
//! A ring of host buffers, each with a command buffer of its own: while the device copies out of one, the
//! host fills the next. A transfer is over when the function returns, but for uploads to blocks; it is ordered after
//! everything that was submitted before it, and before everything that is submitted after.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use ash::vk;

use super::barrier::Scope;
use super::buffer::{Buffer, MemoryUse};
use super::error::vulkan;
use super::pool::Block;
use super::queue::Queue;
use crate::error::Result;

/// Bytes of one host buffer; large enough that the cost of a submission does not show.
pub(super) const SLOT_BYTES: u64 = 8 << 20;
pub(super) const SLOTS: usize = 4;

/// The ring.
pub(super) struct Staging {
    slots: Vec<Slot>,
    next: usize,
    pool: vk::CommandPool,
    queue: Arc<Queue>,
}

struct Slot {
    buffer: Arc<Buffer>,
    commands: vk::CommandBuffer,
    /// Timeline value at which the slot is free.
    free_at: u64,
}

/// Waits for the device when a transfer is left, however it is left: the buffers may be freed after.
struct WaitOnDrop<'a>(&'a Queue);

impl Drop for WaitOnDrop<'_> {
    fn drop(&mut self) {
        // A device that fails here is lost, and then nothing is copied any more.
        let _ = self.0.wait_for_all();
    }
}

/// Everything that may have happened or may happen to a buffer.
const ANYTHING: Scope = Scope {
    stages: vk::PipelineStageFlags::ALL_COMMANDS,
    access: vk::AccessFlags::from_raw(
        vk::AccessFlags::MEMORY_READ.as_raw() | vk::AccessFlags::MEMORY_WRITE.as_raw(),
    ),
};
const TRANSFER: Scope = Scope {
    stages: vk::PipelineStageFlags::TRANSFER,
    access: vk::AccessFlags::from_raw(
        vk::AccessFlags::TRANSFER_READ.as_raw() | vk::AccessFlags::TRANSFER_WRITE.as_raw(),
    ),
};
const HOST_READ: Scope = Scope { stages: vk::PipelineStageFlags::HOST, access: vk::AccessFlags::HOST_READ };

impl Staging {
    /// Makes the ring; its memory is taken when the first transfer needs it.
    pub(super) fn new(queue: &Arc<Queue>) -> Result<Staging> {
        let device = &queue.device;
        let info = vk::CommandPoolCreateInfo::default()
            .flags(vk::CommandPoolCreateFlags::RESET_COMMAND_BUFFER)
            .queue_family_index(device.queue_family);
        // SAFETY: the family is the one that the device was created with.
        let pool = unsafe { device.raw.create_command_pool(&info, None) }
            .map_err(|code| vulkan("vkCreateCommandPool", code))?;
        device.counts.objects.command_pools.created();
        Ok(Staging { slots: Vec::new(), next: 0, pool, queue: queue.clone() })
    }

    /// Copies `data` into `target`; `progress` hears the bytes copied into the ring so far.
    pub(super) fn upload(
        &mut self,
        target: &Buffer,
        offset: u64,
        data: &[u8],
        progress: &mut dyn FnMut(u64),
    ) -> Result<()> {
        let queue = self.queue.clone();
        let guard = WaitOnDrop(&queue);
        let mut done = 0_u64;
        for chunk in data.chunks(SLOT_BYTES as usize) {
            let index = self.free_slot()?;
            self.slots[index].buffer.write_in_parallel(0, chunk)?;
            let region = vk::BufferCopy::default().dst_offset(offset + done).size(chunk.len() as u64);
            let source = self.slots[index].buffer.handle();
            self.submit(index, |raw, commands| {
                // SAFETY: the command buffer is being recorded; the caller checked the range of `target`,
                // and `guard` keeps this function from ending before the copy.
                unsafe { raw.cmd_copy_buffer(commands, source, target.handle(), &[region]) };
            })?;
            done += chunk.len() as u64;
            progress(done);
        }
        queue.wait_for_all()?;
        drop(guard);
        Ok(())
    }

    /// Copies `data` to the start of `target` without waiting for the device, but for a free slot. The pool of a block waits
    /// before it gives the memory back.
    pub(super) fn upload_to_block(&mut self, target: &Block, data: &[u8]) -> Result<()> {
        let mut done = 0_u64;
        for chunk in data.chunks(SLOT_BYTES as usize) {
            let index = self.free_slot()?;
            self.slots[index].buffer.write_in_parallel(0, chunk)?;
            let region = vk::BufferCopy::default().dst_offset(done).size(chunk.len() as u64);
            let source = self.slots[index].buffer.handle();
            self.submit(index, |raw, commands| {
                // SAFETY: the command buffer is being recorded; a block has room for the data that it was taken for,
                // and its pool keeps it.
                unsafe { raw.cmd_copy_buffer(commands, source, target.buffer().handle(), &[region]) };
            })?;
            done += chunk.len() as u64;
        }
        Ok(())
    }

    /// Copies bytes of `source` into `data`.
    pub(super) fn download(&mut self, source: &Buffer, offset: u64, data: &mut [u8]) -> Result<()> {
        let queue = self.queue.clone();
        let _guard = WaitOnDrop(&queue);
        let mut in_flight: VecDeque<(usize, Range<usize>)> = VecDeque::new();
        let mut start = 0;
        while start < data.len() || !in_flight.is_empty() {
            if start < data.len() && in_flight.len() < SLOTS {
                let end = data.len().min(start + SLOT_BYTES as usize);
                let index = self.free_slot()?;
                let region =
                    vk::BufferCopy::default().src_offset(offset + start as u64).size((end - start) as u64);
                let target = self.slots[index].buffer.handle();
                self.submit(index, |raw, commands| {
                    // SAFETY: as in `upload`.
                    unsafe { raw.cmd_copy_buffer(commands, source.handle(), target, &[region]) };
                })?;
                in_flight.push_back((index, start..end));
                start = end;
            } else if let Some((index, range)) = in_flight.pop_front() {
                self.queue.device.wait(self.slots[index].free_at, None)?;
                self.slots[index].buffer.read_in_parallel(0, &mut data[range])?;
            }
        }
        Ok(())
    }

    /// Fills a range, in whole words, with one pattern.
    pub(super) fn fill(&mut self, target: &Buffer, offset: u64, bytes: u64, value: u32) -> Result<()> {
        let queue = self.queue.clone();
        let _guard = WaitOnDrop(&queue);
        let index = self.free_slot()?;
        self.submit(index, |raw, commands| {
            // SAFETY: as in `upload`; offset and size are multiples of 4.
            unsafe { raw.cmd_fill_buffer(commands, target.handle(), offset, bytes, value) };
        })?;
        queue.wait_for_all()
    }

    /// The queue of its transfers.
    pub(super) fn queue(&self) -> &Arc<Queue> {
        &self.queue
    }

    /// The host's buffer of a slot.
    pub(super) fn slot(&self, index: usize) -> &Arc<Buffer> {
        &self.slots[index].buffer
    }

    /// Keeps a slot until the timeline reaches `value`.
    pub(super) fn in_use_until(&mut self, index: usize, value: u64) {
        self.slots[index].free_at = value;
    }

    /// The next slot of the ring, when the device is done with it.
    pub(super) fn free_slot(&mut self) -> Result<usize> {
        let index = self.next;
        if index == self.slots.len() {
            let slot = self.new_slot()?;
            self.slots.push(slot);
        }
        self.next = (index + 1) % SLOTS;
        self.queue.device.wait(self.slots[index].free_at, None)?;
        Ok(index)
    }

    fn new_slot(&self) -> Result<Slot> {
        let name = format!("staging {}", self.slots.len());
        // Cached memory serves both directions.
        let buffer = Buffer::new(&self.queue.device, &name, SLOT_BYTES, MemoryUse::Readback)?;
        let info = vk::CommandBufferAllocateInfo::default()
            .command_pool(self.pool)
            .level(vk::CommandBufferLevel::PRIMARY)
            .command_buffer_count(1);
        // SAFETY: the pool belongs to the ring, and `&mut self` of the callers keeps other threads from it.
        let commands = unsafe { self.queue.device.raw.allocate_command_buffers(&info) }
            .map_err(|code| vulkan("vkAllocateCommandBuffers", code))?[0];
        self.queue.device.counts.objects.command_buffers.created();
        Ok(Slot { buffer, commands, free_at: 0 })
    }

    /// Records one transfer between barriers into a free slot's command buffer, and submits it.
    fn submit(&mut self, index: usize, transfer: impl FnOnce(&ash::Device, vk::CommandBuffer)) -> Result<()> {
        let device = &self.queue.device;
        let commands = self.slots[index].commands;
        let begin = vk::CommandBufferBeginInfo::default().flags(vk::CommandBufferUsageFlags::ONE_TIME_SUBMIT);
        // SAFETY: `free_slot` waited for the slot, so its command buffer is not in use; beginning resets it.
        // The slot's buffer lives as long as the ring, which waits before it is dropped.
        let value = unsafe {
            device
                .raw
                .begin_command_buffer(commands, &begin)
                .map_err(|code| vulkan("vkBeginCommandBuffer", code))?;
            device.record_barrier(commands, ANYTHING, TRANSFER);
            transfer(&device.raw, commands);
            device.record_barrier(commands, TRANSFER, ANYTHING);
            device.record_barrier(commands, TRANSFER, HOST_READ);
            device.raw.end_command_buffer(commands).map_err(|code| vulkan("vkEndCommandBuffer", code))?;
            self.queue.submit(&[commands])?
        };
        self.slots[index].free_at = value;
        Ok(())
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // Uploads to blocks were not waited for. A device that fails here is lost, and then nothing is copied any more.
        let _ = self.queue.wait_for_all();
        let counts = &self.queue.device.counts.objects;
        counts.command_buffers.destroyed(self.slots.len());
        counts.command_pools.destroyed(1);
        // SAFETY: no transfer is under way.
        unsafe { self.queue.device.raw.destroy_command_pool(self.pool, None) };
    }
}
