//! Runs of a recording: submitted, waited for or not.

use std::sync::Arc;
use std::time::Duration;

use super::device::Counts;
use super::lock;
use super::record::{Recorded, Recording};
use crate::error::{Error, Result};

/// A run that was submitted. Dropping it does not stop the run.
#[must_use = "a run's errors are seen by waiting for it"]
pub struct Handle {
    recorded: Arc<Recorded>,
    /// What the timeline reaches when the run is done.
    pub(super) value: u64,
}

impl Recording {
    /// Submits the recording and returns at once.
    ///
    /// A recording runs once at a time: [`Error::Busy`] while its last run is not done. Runs of different
    /// recordings may be submitted one after the other; they execute in that order, ordered against each
    /// other by their head barriers.
    pub fn submit(&self) -> Result<Handle> {
        let handle = self.submit_transfer()?;
        Counts::add(&self.inner.queue.device.counts.runs, 1);
        Ok(handle)
    }

    /// [`Recording::submit`] for one run of a transfer, which is not counted.
    pub(super) fn submit_transfer(&self) -> Result<Handle> {
        let recorded = &self.inner;
        let mut last_run = lock(&recorded.last_run);
        if !recorded.queue.device.is_done(*last_run)? {
            return Err(Error::Busy);
        }
        // SAFETY: the command buffers are recorded, the last run is done, and `Recorded` waits for the value
        // before it frees them and what they use.
        *last_run = unsafe { recorded.queue.submit(&recorded.command_buffers) }?;
        Ok(Handle { recorded: recorded.clone(), value: *last_run })
    }

    /// Submits the recording and waits until it is done.
    pub fn run(&self) -> Result<()> {
        self.submit()?.wait(None)
    }
}

impl Handle {
    /// Waits until the run is done; [`Error::Timeout`] if it is not done within `limit` (it goes on).
    ///
    /// Under validation anything that the layer reported since the last check is an error here.
    pub fn wait(&self, limit: Option<Duration>) -> Result<()> {
        self.recorded.queue.device.wait(self.value, limit)?;
        self.recorded.queue.device.check_validation()
    }

    /// Whether the run is done.
    pub fn is_done(&self) -> Result<bool> {
        self.recorded.queue.device.is_done(self.value)
    }
}

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Handle({})", self.value)
    }
}
