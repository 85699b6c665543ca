//! Timestamps around a run, or around each of its dispatches.
//!
//! A run is bracketed by two timestamps. If dispatches are timed, a dispatch is bracketed by two timestamps, each written when all earlier work is done. Between two
//! dispatches with a barrier in between the difference is the time of the kernel alone; of dispatches that
//! run at the same time the first shows what it takes and the others what they add. The times of all
//! dispatches therefore never add up to more than the run.

use std::sync::Arc;

use ash::vk;

use super::device::{Barriers, Device};
use super::error::vulkan;
use crate::error::{Error, Result};

/// The query pool of a recording: pairs of timestamps, before and after.
pub(super) struct Timestamps {
    pool: vk::QueryPool,
    /// Names of the dispatches that are timed; `None` if one pair is for the whole run.
    labels: Option<Vec<String>>,
    device: Arc<Device>,
}

impl Timestamps {
    /// A pool for one pair per label, or for one pair; an error where the queue writes no timestamps.
    pub(super) fn new(device: &Arc<Device>, labels: Option<Vec<String>>) -> Result<Timestamps> {
        if device.caps.timestamp_period_ps == 0 {
            return Err(Error::NoTimings { reason: "the device writes no timestamps, or they are disabled" });
        }
        let info = vk::QueryPoolCreateInfo::default()
            .query_type(vk::QueryType::TIMESTAMP)
            .query_count(query_count(labels.as_deref()));
        // SAFETY: the device is live, the count is not zero.
        let pool = unsafe { device.raw.create_query_pool(&info, None) }
            .map_err(|code| vulkan("vkCreateQueryPool", code))?;
        device.counts.objects.query_pools.created();
        Ok(Timestamps { pool, labels, device: device.clone() })
    }

    /// Records the reset of all queries.
    ///
    /// # Safety
    /// The command buffer is being recorded.
    pub(super) unsafe fn reset(&self, commands: vk::CommandBuffer) {
        let count = query_count(self.labels.as_deref());
        // SAFETY: the caller's promise; the pool is live as long as the recording.
        unsafe { self.device.raw.cmd_reset_query_pool(commands, self.pool, 0, count) };
    }

    /// True if each dispatch has a pair.
    pub(super) fn times_dispatches(&self) -> bool {
        self.labels.is_some()
    }

    /// Records the timestamp before (`after` false) or after what pair number `pair` times.
    ///
    /// # Safety
    /// The command buffer is being recorded, and there is such a pair.
    pub(super) unsafe fn write(&self, commands: vk::CommandBuffer, pair: usize, after: bool) {
        let query = (2 * pair + usize::from(after)) as u32;
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
    pub(super) fn dispatches(&self) -> Result<Vec<(String, u64)>> {
        let Some(labels) = &self.labels else {
            return Err(Error::NoTimings { reason: "the recording times its run as a whole" });
        };
        let ticks = self.ticks()?;
        let (pairs, _) = ticks.as_chunks::<2>();
        let spans = pairs.iter().map(|[begin, end]| self.nanoseconds(*begin, *end));
        Ok(labels.iter().cloned().zip(spans).collect())
    }

    /// Nanoseconds from the first timestamp of a run that is done to the last; 0 if it times nothing.
    pub(super) fn run(&self) -> Result<u64> {
        let ticks = self.ticks()?;
        Ok(match (ticks.first(), ticks.last()) {
            (Some(first), Some(last)) => self.nanoseconds(*first, *last),
            _ => 0,
        })
    }

    fn nanoseconds(&self, before: u64, after: u64) -> u64 {
        let (period, mask) = self.device.timestamps;
        // The counter may wrap at its valid bits.
        let elapsed = after.wrapping_sub(before) & mask;
        (elapsed as f64 * period).round() as u64
    }

    fn ticks(&self) -> Result<Vec<u64>> {
        let pairs = self.labels.as_ref().map_or(1, Vec::len);
        let mut ticks = vec![0_u64; 2 * pairs];
        if ticks.is_empty() {
            return Ok(ticks);
        }
        // SAFETY: `ticks` has one 64-bit place for each query.
        unsafe {
            self.device.raw.get_query_pool_results(self.pool, 0, &mut ticks, vk::QueryResultFlags::TYPE_64)
        }
        .map_err(|code| match code {
            vk::Result::NOT_READY => Error::NoTimings { reason: "the recording has not run yet" },
            other => vulkan("vkGetQueryPoolResults", other),
        })?;
        Ok(ticks)
    }
}

/// Two for each label, or two; a pool has at least one.
fn query_count(labels: Option<&[String]>) -> u32 {
    labels.map_or(2, |labels| (2 * labels.len()).max(1) as u32)
}

impl Drop for Timestamps {
    fn drop(&mut self) {
        self.device.counts.objects.query_pools.destroyed(1);
        // SAFETY: the recording that owns this waited for its runs.
        unsafe { self.device.raw.destroy_query_pool(self.pool, None) };
    }
}
