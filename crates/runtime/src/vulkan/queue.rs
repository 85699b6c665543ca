//! Queue: orders everything that is submitted behind what was appended to the stream.

use std::sync::{Arc, Mutex};

use ash::vk;

use super::device::Device;
use super::lock;
use super::stream::Stream;
use crate::error::Result;

/// A device with its stream. Everything that submits work holds an `Arc` of it.
pub(super) struct Queue {
    pub(super) device: Arc<Device>,
    /// Work that is appended to be submitted; locked before the queue of the device.
    pub(super) stream: Mutex<Stream>,
}

impl Queue {
    pub(super) fn new(device: Arc<Device>) -> Arc<Queue> {
        Arc::new(Queue { device, stream: Mutex::default() })
    }

    /// Submits command buffers, each on its own and in this order, behind what was appended to the stream, and returns
    /// the value that the timeline reaches when all are done.
    ///
    /// # Safety
    /// Every command buffer is recorded, not in use by a submission that is not done, and lives, with all
    /// that it uses, until the returned value is reached.
    pub(super) unsafe fn submit(&self, command_buffers: &[vk::CommandBuffer]) -> Result<u64> {
        self.flush()?;
        // SAFETY: the caller's promise.
        unsafe { self.device.submit_alone(command_buffers) }
    }

    /// Submits what was appended to the stream, and returns the timeline's value from which on that and all that was
    /// submitted otherwise is done.
    pub(super) fn flush(&self) -> Result<u64> {
        lock(&self.stream).flush(&self.device)?;
        Ok(self.device.submitted())
    }

    /// Takes no more work, and waits for what there is.
    pub(super) fn close(&self) -> Result<()> {
        let flushed = self.flush();
        self.device.mark_closed();
        flushed?;
        self.wait_for_all()
    }

    /// Waits for everything appended or submitted so far.
    pub(super) fn wait_for_all(&self) -> Result<()> {
        let submitted = self.flush()?;
        self.device.wait(submitted, None)
    }
}
