//! What the bus between a device and the host's memory delivers.

use crate::error::Result;
use crate::record::{BarrierKind, RecordCommand, RecordOptions, RecordSpec, Timing};
use crate::vulkan::{Context, MemoryUse, Recording};

/// Bytes of a copy that is timed: 1 ms at 32 GB/s.
const BYTES: u64 = 32 << 20;

/// Copies that are timed after the first, which may wake up the bus.
const COPIES: usize = 3;

impl Context {
    /// Bytes per second that the device copies from the host's memory to its own, by its own clock: the best of a few
    /// copies. `None` where they are the same memory, or the device writes no timestamps.
    ///
    /// # Errors
    /// When memory runs out or the device fails.
    pub fn bus_bandwidth(&self) -> Result<Option<f64>> {
        if self.caps().unified_memory || self.caps().timestamp_period_ps == 0 {
            return Ok(None);
        }
        let source = self.buffer("bus source", BYTES, MemoryUse::Host)?;
        let target = self.buffer("bus target", BYTES, MemoryUse::Device)?;
        let copy =
            RecordCommand::Copy { source: 0, source_offset: 0, target: 1, target_offset: 0, bytes: BYTES };
        let commands =
            vec![RecordCommand::Barrier(BarrierKind::Head), copy, RecordCommand::Barrier(BarrierKind::Tail)];
        let options = RecordOptions { timing: Timing::Run, ..RecordOptions::default() };
        let recording = Recording::new(self, &RecordSpec { commands }, &[], &[source, target], options)?;
        recording.run()?;
        let mut best = u64::MAX;
        for _ in 0..COPIES {
            recording.run()?;
            best = best.min(recording.run_time()?);
        }
        Ok(Some(BYTES as f64 * 1e9 / best.max(1) as f64))
    }
}
