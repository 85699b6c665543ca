//! The commands and descriptors of a sequence, for the stream's command buffer and for a recording of its own.

use ash::vk;

use super::barrier::Scope;
use super::bound::Place;
use super::device::Device;
use super::error::vulkan;
use super::sequence::{Sequence, Step};
use crate::error::Result;
use crate::record::Grid;
use crate::reuse::emptied;

const ALL_STAGES: vk::PipelineStageFlags = vk::PipelineStageFlags::from_raw(
    vk::PipelineStageFlags::COMPUTE_SHADER.as_raw()
        | vk::PipelineStageFlags::DRAW_INDIRECT.as_raw()
        | vk::PipelineStageFlags::TRANSFER.as_raw(),
);
const WRITES: vk::AccessFlags = vk::AccessFlags::from_raw(
    vk::AccessFlags::SHADER_WRITE.as_raw() | vk::AccessFlags::TRANSFER_WRITE.as_raw(),
);
/// Everything appended or submitted before.
pub(super) const BEFORE: Scope = Scope { stages: ALL_STAGES, access: WRITES };
/// Everything after.
pub(super) const AFTER: Scope = Scope {
    stages: ALL_STAGES,
    access: vk::AccessFlags::from_raw(
        WRITES.as_raw()
            | vk::AccessFlags::SHADER_READ.as_raw()
            | vk::AccessFlags::TRANSFER_READ.as_raw()
            | vk::AccessFlags::INDIRECT_COMMAND_READ.as_raw(),
    ),
};
pub(super) const KERNELS: Scope =
    Scope { stages: vk::PipelineStageFlags::COMPUTE_SHADER, access: vk::AccessFlags::SHADER_WRITE };
pub(super) const COPIED: Scope =
    Scope { stages: vk::PipelineStageFlags::TRANSFER, access: vk::AccessFlags::TRANSFER_WRITE };
pub(super) const HOST_READ: Scope =
    Scope { stages: vk::PipelineStageFlags::HOST, access: vk::AccessFlags::HOST_READ };

/// A pool of so many sets with so many descriptors together.
pub(super) fn descriptor_pool(device: &Device, sets: u32, descriptors: u32) -> Result<vk::DescriptorPool> {
    let sizes = [vk::DescriptorPoolSize::default()
        .ty(vk::DescriptorType::STORAGE_BUFFER)
        .descriptor_count(descriptors.max(1))];
    let info = vk::DescriptorPoolCreateInfo::default().max_sets(sets.max(1)).pool_sizes(&sizes);
    // SAFETY: the device is live, the sizes are not zero.
    let pool = unsafe { device.raw.create_descriptor_pool(&info, None) }
        .map_err(|code| vulkan("vkCreateDescriptorPool", code))?;
    device.counts.objects.descriptor_pools.created();
    Ok(pool)
}

/// Lists of descriptor sets and what is written to them. One sequence after the other uses their memory.
#[derive(Default)]
pub(super) struct SetLists {
    layouts: Vec<vk::DescriptorSetLayout>,
    infos: Vec<vk::DescriptorBufferInfo>,
    /// Always empty between calls.
    writes: Vec<vk::WriteDescriptorSet<'static>>,
    /// The sets that were allocated last.
    pub(super) sets: Vec<vk::DescriptorSet>,
}

/// Allocates descriptor sets for a sequence that has some, from a pool that no other thread uses.
pub(super) fn allocate_sets(
    device: &Device,
    sequence: &Sequence,
    pool: vk::DescriptorPool,
    lists: &mut SetLists,
) -> std::result::Result<(), vk::Result> {
    let SetLists { layouts, sets, .. } = lists;
    let of_set = |(pipeline, _): &(usize, _)| sequence.pipelines[*pipeline].handles.set_layout;
    layouts.clear();
    layouts.extend(sequence.sets.iter().map(of_set));
    sets.clear();
    sets.resize(layouts.len(), vk::DescriptorSet::null());
    let info = vk::DescriptorSetAllocateInfo::default().descriptor_pool(pool).set_layouts(layouts);
    let raw = &device.raw;
    // SAFETY: the pool is live and used by one thread, the layouts are live, and there is room for as many sets as layouts.
    unsafe { (raw.fp_v1_0().allocate_descriptor_sets)(raw.handle(), &info, sets.as_mut_ptr()) }.result()
}

/// Writes the descriptors of all sets of a sequence, which were allocated last, with one call.
pub(super) fn write_sets(device: &Device, sequence: &Sequence, lists: &mut SetLists, places: &[Place]) {
    let SetLists { infos, sets, writes, .. } = lists;
    infos.clear();
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
    let mut all = emptied(std::mem::take(writes));
    all.extend(sets.iter().zip(&sequence.sets).map(|(set, (_, ranges))| {
        let (own, others) = rest.split_at(ranges.len());
        rest = others;
        vk::WriteDescriptorSet::default()
            .dst_set(*set)
            .dst_binding(0)
            .descriptor_type(vk::DescriptorType::STORAGE_BUFFER)
            .buffer_info(own)
    }));
    // SAFETY: the sets are new, so no command uses them yet; consecutive bindings of one type may be written at once;
    // the ranges are within live buffers (`check`).
    unsafe { device.raw.update_descriptor_sets(&all, &[]) };
    *writes = emptied(all);
}

/// Records the dispatches of a sequence and the barriers between them. `known` gives the workgroups at an offset of a
/// buffer, if they are known: a direct dispatch starts sooner than one that reads them.
///
/// # Safety
/// `commands` is being recorded by this thread alone. Pipelines, `sets` and the buffers of `places` stay until the device
/// is done with it, and the sequence was checked against them.
pub(super) unsafe fn record_steps(
    device: &Device,
    commands: vk::CommandBuffer,
    sequence: &Sequence,
    sets: &[vk::DescriptorSet],
    places: &[Place],
    known: impl Fn(usize, u64) -> Option<[u32; 3]>,
) {
    let (raw, point) = (&device.raw, vk::PipelineBindPoint::COMPUTE);
    for step in &sequence.steps {
        let (pipeline, set, grid) = match step {
            Step::Barrier => {
                // SAFETY: the caller's promise.
                unsafe { device.record_barrier(commands, KERNELS, AFTER) };
                continue;
            }
            Step::Dispatch { pipeline, set, grid } => (&sequence.pipelines[*pipeline], set, grid),
        };
        // SAFETY: the caller's promise; layouts and limits were checked when the sequence was made.
        unsafe {
            raw.cmd_bind_pipeline(commands, point, pipeline.handles.pipeline);
            if let Some(set) = set {
                let sets = [sets[*set]];
                raw.cmd_bind_descriptor_sets(commands, point, pipeline.handles.layout, 0, &sets, &[]);
            }
            match grid {
                Grid::Direct([x, y, z]) => raw.cmd_dispatch(commands, *x, *y, *z),
                Grid::Indirect { buffer, offset } => match known(*buffer, *offset) {
                    Some([x, y, z]) => raw.cmd_dispatch(commands, x, y, z),
                    None => {
                        let Place { handle, start, .. } = places[*buffer];
                        raw.cmd_dispatch_indirect(commands, handle, start + offset);
                    }
                },
            }
        }
    }
}
