//! Timestamps around dispatches.
//!
//! A dispatch is bracketed by two timestamps, each written when all earlier work is done. Between two
//! dispatches with a barrier in between the difference is the time of the kernel alone; of dispatches that
//! run at the same time the first shows what it takes and the others what they add. The times of all
//! dispatches therefore never add up to more than the run.

use std::sync::Arc;

use ash::vk;

use super::device::{Barriers, Device};
use super::error::vulkan;
use crate::error::{Error, Result};

/// The query pool of a recording.
pub(super) struct Timestamps {
    pool: vk::QueryPool,
    labels: Vec<String>,
    device: Arc<Device>,
}

impl Timestamps {
    /// A pool for one pair per label; an error where the queue writes no timestamps.
    pub(super) fn new(device: &Arc<Device>, labels: Vec<String>) -> Result<Timestamps> {
        if device.caps.timestamp_period_ps == 0 {
            return Err(Error::NoTimings { reason: "the device writes no timestamps, or they are disabled" });
        }
        let info = vk::QueryPoolCreateInfo::default()
            .query_type(vk::QueryType::TIMESTAMP)
            .query_count((2 * labels.len()).max(1) as u32);
        // SAFETY: the device is live, the count is not zero.
        let pool = unsafe { device.raw.create_query_pool(&info, None) }
            .map_err(|code| vulkan("vkCreateQueryPool", code))?;
        Ok(Timestamps { pool, labels, device: device.clone() })
    }

    /// Records the reset of all queries.
    ///
    /// # Safety
    /// The command buffer is being recorded.
    pub(super) unsafe fn reset(&self, commands: vk::CommandBuffer) {
        let count = (2 * self.labels.len()).max(1) as u32;
        // SAFETY: the caller's promise; the pool is live as long as the recording.
        unsafe { self.device.raw.cmd_reset_query_pool(commands, self.pool, 0, count) };
    }

    /// Records the timestamp before (`after` false) or after a dispatch.
    ///
    /// # Safety
    /// The command buffer is being recorded, and `dispatch` counts the dispatches with labels.
    pub(super) unsafe fn write(&self, commands: vk::CommandBuffer, dispatch: usize, after: bool) {
        let query = (2 * dispatch + usize::from(after)) as u32;
        let raw = &self.device.raw;
        // SAFETY: the caller's promise; the query was reset when the command buffer began.
        unsafe {
            match &self.device.barriers {
                Barriers::First => {
                    let stage = vk::PipelineStageFlags::BOTTOM_OF_PIPE;
                    raw.cmd_write_timestamp(commands, stage, self.pool, query);
                }
                Barriers::Core2 => {
                    let stage = vk::PipelineStageFlags2::ALL_COMMANDS;
                    raw.cmd_write_timestamp2(commands, stage, self.pool, query);
                }
                Barriers::Extension2(functions) => {
                    let stage = vk::PipelineStageFlags2::ALL_COMMANDS;
                    functions.cmd_write_timestamp2(commands, stage, self.pool, query);
                }
            }
        }
    }

    /// Label and nanoseconds of every dispatch of a run that is done.
    pub(super) fn read(&self) -> Result<Vec<(String, u64)>> {
        let mut ticks = vec![0_u64; 2 * self.labels.len()];
        if ticks.is_empty() {
            return Ok(Vec::new());
        }
        // SAFETY: `ticks` has one 64-bit place for each query.
        unsafe {
            self.device.raw.get_query_pool_results(self.pool, 0, &mut ticks, vk::QueryResultFlags::TYPE_64)
        }
        .map_err(|code| match code {
            vk::Result::NOT_READY => Error::NoTimings { reason: "the recording has not run yet" },
            other => vulkan("vkGetQueryPoolResults", other),
        })?;
        let (period, mask) = self.device.timestamps;
        Ok(self
            .labels
            .iter()
            .zip(ticks.chunks_exact(2))
            .map(|(label, pair)| {
                // The counter may wrap at its valid bits.
                let elapsed = pair[1].wrapping_sub(pair[0]) & mask;
                (label.clone(), (elapsed as f64 * period).round() as u64)
            })
            .collect())
    }
}

impl Drop for Timestamps {
    fn drop(&mut self) {
        // SAFETY: the recording that owns this waited for its runs.
        unsafe { self.device.raw.destroy_query_pool(self.pool, None) };
    }
}
