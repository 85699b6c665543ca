//! Descriptor sets: allocated and written once, when a command list is recorded.

use std::collections::HashMap;
use std::sync::Arc;

use ash::vk;

use super::buffer::Buffer;
use super::device::Device;
use super::error::vulkan;
use super::pipeline::Pipeline;
use crate::error::Result;
use crate::record::{BindRange, RecordCommand, RecordSpec};

/// The descriptor sets of a recording, and the pool that owns them.
pub(super) struct DescriptorSets {
    pool: vk::DescriptorPool,
    /// The set of each command, by position; `None` for what binds nothing.
    pub(super) of_command: Vec<Option<vk::DescriptorSet>>,
    /// Number of sets; dispatches of equal shape over equal ranges share one.
    pub(super) count: usize,
    device: Arc<Device>,
}

impl DescriptorSets {
    /// Allocates and writes a set for every dispatch of a checked command list, with exact ranges.
    pub(super) fn new(
        device: &Arc<Device>,
        spec: &RecordSpec,
        pipelines: &[Arc<Pipeline>],
        buffers: &[Arc<Buffer>],
    ) -> Result<DescriptorSets> {
        let mut sets = DescriptorSets {
            pool: vk::DescriptorPool::null(),
            of_command: vec![None; spec.commands.len()],
            count: 0,
            device: device.clone(),
        };
        // Layouts with as many bindings are identically defined, so sets of one fit the other.
        let mut distinct: HashMap<&[BindRange], usize> = HashMap::new();
        let mut layouts = Vec::new();
        let mut users = Vec::new();
        for (position, command) in spec.commands.iter().enumerate() {
            let RecordCommand::Dispatch { pipeline, bindings, .. } = command else { continue };
            if bindings.is_empty() {
                continue;
            }
            let set = *distinct.entry(bindings).or_insert_with(|| {
                layouts.push((pipelines[*pipeline].handles.set_layout, bindings));
                layouts.len() - 1
            });
            users.push((position, set));
        }
        if layouts.is_empty() {
            return Ok(sets);
        }
        let descriptors = layouts.iter().map(|(_, bindings)| bindings.len() as u32).sum();
        let allocated =
            sets.allocate(&layouts.iter().map(|(layout, _)| *layout).collect::<Vec<_>>(), descriptors)?;
        for (set, (_, bindings)) in allocated.iter().zip(&layouts) {
            sets.write(*set, bindings, buffers);
        }
        for (position, set) in users {
            sets.of_command[position] = Some(allocated[set]);
        }
        sets.count = allocated.len();
        Ok(sets)
    }

    fn allocate(
        &mut self,
        layouts: &[vk::DescriptorSetLayout],
        descriptors: u32,
    ) -> Result<Vec<vk::DescriptorSet>> {
        let sizes = [vk::DescriptorPoolSize::default()
            .ty(vk::DescriptorType::STORAGE_BUFFER)
            .descriptor_count(descriptors)];
        let info = vk::DescriptorPoolCreateInfo::default().max_sets(layouts.len() as u32).pool_sizes(&sizes);
        // SAFETY: the device is live, the sizes are not zero.
        self.pool = unsafe { self.device.raw.create_descriptor_pool(&info, None) }
            .map_err(|code| vulkan("vkCreateDescriptorPool", code))?;
        self.device.counts.objects.descriptor_pools.created();
        let info = vk::DescriptorSetAllocateInfo::default().descriptor_pool(self.pool).set_layouts(layouts);
        // SAFETY: the pool was made for exactly these sets, nobody else uses it.
        unsafe { self.device.raw.allocate_descriptor_sets(&info) }
            .map_err(|code| vulkan("vkAllocateDescriptorSets", code))
    }

    fn write(&self, set: vk::DescriptorSet, bindings: &[BindRange], buffers: &[Arc<Buffer>]) {
        let ranges: Vec<_> = bindings
            .iter()
            .map(|range| {
                vk::DescriptorBufferInfo::default()
                    .buffer(buffers[range.buffer].handle())
                    .offset(range.offset)
                    .range(range.bytes)
            })
            .collect();
        let writes = [vk::WriteDescriptorSet::default()
            .dst_set(set)
            .dst_binding(0)
            .descriptor_type(vk::DescriptorType::STORAGE_BUFFER)
            .buffer_info(&ranges)];
        // SAFETY: the set is new, so no command uses it yet; consecutive bindings of one type may be written
        // at once; the ranges lie in live buffers (the list was checked).
        unsafe { self.device.raw.update_descriptor_sets(&writes, &[]) };
    }
}

impl Drop for DescriptorSets {
    fn drop(&mut self) {
        if self.pool == vk::DescriptorPool::null() {
            return;
        }
        self.device.counts.objects.descriptor_pools.destroyed(1);
        // SAFETY: the recording that owns this waited for its runs; destroying the pool frees its sets.
        unsafe { self.device.raw.destroy_descriptor_pool(self.pool, None) };
    }
}
