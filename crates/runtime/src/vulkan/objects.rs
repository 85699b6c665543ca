//! How many Vulkan objects of each kind a device has, so that tests see what is never destroyed.

use std::sync::atomic::{AtomicU64, Ordering};

/// Vulkan objects of a device that exist now, by kind. Layouts come and go with their pipeline, descriptor sets and command
/// buffers with their pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Objects {
    /// Buffers, those that are cached for values to come among them.
    pub buffers: u64,
    /// Allocations of device memory, each of which many buffers may share.
    pub memory: u64,
    /// Compute pipelines, each with its layouts.
    pub pipelines: u64,
    /// Pools of descriptor sets.
    pub descriptor_pools: u64,
    /// Pools of command buffers.
    pub command_pools: u64,
    /// Command buffers.
    pub command_buffers: u64,
    /// Pools of timestamps.
    pub query_pools: u64,
    /// Semaphores.
    pub semaphores: u64,
}

/// Objects of one kind: counted up where one is created, and down where it is destroyed.
#[derive(Default)]
pub(super) struct Count(AtomicU64);

impl Count {
    pub(super) fn created(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn destroyed(&self, number: usize) {
        self.0.fetch_sub(number as u64, Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The kinds that are counted as they come and go; the allocator knows its memory itself.
#[derive(Default)]
pub(super) struct ObjectCounts {
    pub(super) buffers: Count,
    pub(super) pipelines: Count,
    pub(super) descriptor_pools: Count,
    pub(super) command_pools: Count,
    pub(super) command_buffers: Count,
    pub(super) query_pools: Count,
    pub(super) semaphores: Count,
}

impl ObjectCounts {
    /// The counts, beside those of `memory`.
    pub(super) fn read(&self, memory: u64) -> Objects {
        Objects {
            buffers: self.buffers.get(),
            memory,
            pipelines: self.pipelines.get(),
            descriptor_pools: self.descriptor_pools.get(),
            command_pools: self.command_pools.get(),
            command_buffers: self.command_buffers.get(),
            query_pools: self.query_pools.get(),
            semaphores: self.semaphores.get(),
        }
    }
}
