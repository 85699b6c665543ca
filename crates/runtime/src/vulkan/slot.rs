//! A command buffer of the stream with all that its commands use.

use std::sync::Arc;

use ash::vk;

use super::buffer::{Buffer, MemoryUse};
use super::device::Device;
use super::error::vulkan;
use super::pipeline::Pipeline;
use super::replay::Replay;
use super::sequence::Sequence;
use super::steps::{SetLists, allocate_sets, descriptor_pool};
use crate::error::Result;

/// Bytes of a slot's upload buffer, for symbol tables and small uploads.
pub(super) const HOST_BYTES: u64 = 256 << 10;

/// Bytes of a slot's readback buffer, for small downloads.
pub(super) const BACK_BYTES: u64 = 64 << 10;

/// Sets of a descriptor pool, and descriptors per set. A sequence that needs more gets a larger pool.
const POOL_SETS: u32 = 256;
const POOL_DESCRIPTORS: u32 = 8;

/// Alignment of tables and uploads in a slot's upload buffer: no device requires more for descriptors.
pub(super) const ALIGNMENT: u64 = 256;

/// A command buffer with all resources that its commands use.
pub(super) struct Slot {
    pub(super) pool: vk::CommandPool,
    pub(super) commands: vk::CommandBuffer,
    /// The last pool is in use; those before are full.
    pub(super) descriptors: Vec<vk::DescriptorPool>,
    pub(super) host: Arc<Buffer>,
    pub(super) host_used: u64,
    pub(super) back: Arc<Buffer>,
    pub(super) back_used: u64,
    /// Timeline value at which the device is done with it.
    pub(super) free_at: u64,
    pub(super) dispatches: usize,
    pub(super) buffers: Vec<Arc<Buffer>>,
    pub(super) pipelines: Vec<Arc<Vec<Arc<Pipeline>>>>,
    /// Recordings that its commands execute.
    pub(super) replays: Vec<Arc<Replay>>,
}

impl Slot {
    pub(super) fn new(device: &Arc<Device>) -> Result<Slot> {
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
        let descriptors =
            descriptor_pool(device, POOL_SETS, POOL_SETS * POOL_DESCRIPTORS).inspect_err(|_| {
                // SAFETY: as above.
                unsafe { device.raw.destroy_command_pool(pool, None) };
            })?;
        device.counts.objects.command_pools.created();
        device.counts.objects.command_buffers.created();
        Ok(Slot {
            pool,
            commands,
            descriptors: vec![descriptors],
            host,
            host_used: 0,
            back,
            back_used: 0,
            free_at: 0,
            dispatches: 0,
            buffers: vec![],
            pipelines: vec![],
            replays: vec![],
        })
    }

    /// Restarts the command buffer, once the device is done with it.
    pub(super) fn begin(&mut self, device: &Arc<Device>) -> Result<()> {
        device.wait(self.free_at, None)?;
        self.buffers.clear();
        self.pipelines.clear();
        self.replays.clear();
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
    pub(super) fn put(&mut self, bytes: &[u8]) -> Result<u64> {
        let start = self.host_used;
        self.host.write(start, bytes)?;
        self.host_used = (start + bytes.len() as u64).next_multiple_of(ALIGNMENT);
        Ok(start)
    }

    /// Allocates descriptor sets for a sequence.
    pub(super) fn sets(&mut self, device: &Device, sequence: &Sequence, lists: &mut SetLists) -> Result<()> {
        if sequence.sets.is_empty() {
            lists.sets.clear();
            return Ok(());
        }
        match self.descriptors.last().map(|pool| allocate_sets(device, sequence, *pool, lists)) {
            Some(Ok(())) => return Ok(()),
            None | Some(Err(vk::Result::ERROR_OUT_OF_POOL_MEMORY | vk::Result::ERROR_FRAGMENTED_POOL)) => {}
            Some(Err(code)) => return Err(vulkan("vkAllocateDescriptorSets", code)),
        }
        let sets = POOL_SETS.max(sequence.sets.len() as u32);
        let pool = descriptor_pool(device, sets, (POOL_SETS * POOL_DESCRIPTORS).max(sequence.descriptors))?;
        self.descriptors.push(pool);
        allocate_sets(device, sequence, pool, lists).map_err(|code| vulkan("vkAllocateDescriptorSets", code))
    }
}
