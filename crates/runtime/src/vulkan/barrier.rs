//! Memory barriers of command buffers.

use ash::vk;

use super::device::{Barriers, Device};

/// One side of a memory barrier: pipeline stages and kinds of access.
#[derive(Clone, Copy)]
pub(super) struct Scope {
    pub(super) stages: vk::PipelineStageFlags,
    pub(super) access: vk::AccessFlags,
}

impl Device {
    /// Records a global memory barrier, by whichever command the device has.
    ///
    /// # Safety
    /// The command buffer is being recorded on this device's queue family.
    pub(super) unsafe fn record_barrier(&self, commands: vk::CommandBuffer, from: Scope, to: Scope) {
        if let Barriers::First = &self.barriers {
            let barrier =
                [vk::MemoryBarrier::default().src_access_mask(from.access).dst_access_mask(to.access)];
            let flags = vk::DependencyFlags::empty();
            // SAFETY: the caller's promise; stages and accesses fit each other.
            unsafe {
                self.raw.cmd_pipeline_barrier(commands, from.stages, to.stages, flags, &barrier, &[], &[]);
            }
            return;
        }
        // The flags of the first generation have the same bits in the second.
        let stages = |scope: Scope| vk::PipelineStageFlags2::from_raw(u64::from(scope.stages.as_raw()));
        let access = |scope: Scope| vk::AccessFlags2::from_raw(u64::from(scope.access.as_raw()));
        let barrier = [vk::MemoryBarrier2::default()
            .src_stage_mask(stages(from))
            .src_access_mask(access(from))
            .dst_stage_mask(stages(to))
            .dst_access_mask(access(to))];
        let info = vk::DependencyInfo::default().memory_barriers(&barrier);
        // SAFETY: as above; synchronization2 is enabled in both branches that are left.
        unsafe {
            match &self.barriers {
                Barriers::First => {}
                Barriers::Core2 => self.raw.cmd_pipeline_barrier2(commands, &info),
                Barriers::Extension2(functions) => functions.cmd_pipeline_barrier2(commands, &info),
            }
        }
    }
}
