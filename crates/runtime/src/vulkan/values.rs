//! Values of lazy tensors on the device: blocks that are uploaded, computed by appended sequences, and read.

use std::sync::{Arc, Mutex};

use super::bound::Bound;
use super::buffer::{Buffer, MemoryUse};
use super::context::Context;
use super::device::{Counts, MemoryFigures};
use super::lock;
use super::objects::Objects;
use super::pool::Block;
use super::replay::Replays;
use super::sequence::Sequence;
use super::stream::SMALL_BYTES;
use crate::error::Result;

impl Context {
    /// Device memory for a value of `bytes` bytes, whose contents are undefined. `what` names it in errors.
    ///
    /// # Errors
    /// When memory runs out, also after all that is cached was given back.
    pub fn block(&self, what: &str, bytes: u64) -> Result<Arc<Block>> {
        self.pool().take(what, bytes, None).map(Arc::new)
    }

    /// [`Context::block`], and if it is free the one that was at address `wanted`.
    pub(crate) fn block_at(&self, what: &str, bytes: u64, wanted: Option<usize>) -> Result<Block> {
        self.pool().take(what, bytes, wanted)
    }

    /// A block that holds `data`, for what is appended or submitted from now on. It does not wait for the device.
    ///
    /// # Errors
    /// When memory runs out or the device fails.
    pub fn block_of(&self, what: &str, data: &[u8]) -> Result<Arc<Block>> {
        let bytes = data.len() as u64;
        // Kernels read whole vectors of sixteen bytes.
        let block = self.block(what, bytes.next_multiple_of(16))?;
        if bytes == 0 {
            return Ok(block);
        }
        if block.buffer().is_mapped() && block.is_fresh() {
            block.buffer().write_in_parallel(0, data)?;
        } else if bytes <= SMALL_BYTES {
            lock(&self.queue().stream).upload(self.device(), block.buffer(), data)?;
        } else {
            self.with_staging(|staging| staging.upload_to_block(&block, data))?;
        }
        Counts::add(&self.device().counts.bytes_uploaded, bytes);
        Ok(block)
    }

    /// Copies the first `data.len()` bytes of a block into `data`, as soon as all is done that was appended or submitted
    /// before.
    ///
    /// # Errors
    /// When the device failed, now or earlier.
    pub fn read_block(&self, block: &Block, data: &mut [u8]) -> Result<()> {
        let (device, bytes) = (self.device(), data.len() as u64);
        let buffer = block.buffer();
        buffer.check_range(0, bytes)?;
        if bytes == 0 {
            return Ok(());
        }
        if buffer.is_mapped() && buffer.is_cached() {
            let value = self.queue().flush()?;
            device.wait_briefly(value)?;
            buffer.read_in_parallel(0, data)?;
        } else if bytes <= SMALL_BYTES {
            let (back, start, value) = lock(&self.queue().stream).download(device, buffer, 0, bytes)?;
            device.wait_briefly(value)?;
            back.read(start, data)?;
        } else {
            self.with_staging(|staging| staging.download(buffer, 0, data))?;
        }
        Counts::add(&device.counts.bytes_downloaded, bytes);
        device.check_validation()
    }

    /// Appends a copy of `source`, which has `bytes` bytes, to the start of `target`.
    ///
    /// # Errors
    /// When it does not fit or the device failed.
    pub(crate) fn copy(&self, source: &Bound<'_>, bytes: u64, target: &Block) -> Result<()> {
        target.buffer().check_range(0, bytes)?;
        lock(&self.queue().stream).copy(self.device(), source, target.buffer())?;
        self.device().check_validation()
    }

    /// Appends a sequence over these buffers; `replays` are its own.
    ///
    /// # Errors
    /// When a buffer does not fit or the device failed. Then nothing is appended.
    pub(crate) fn append(
        &self,
        sequence: &Sequence,
        replays: &Mutex<Replays>,
        bound: &[Bound<'_>],
    ) -> Result<()> {
        lock(&self.queue().stream).append(self.device(), sequence, replays, bound)?;
        Counts::add(&self.device().counts.appended, 1);
        self.device().check_validation()
    }

    /// Submits what was appended, without waiting for it.
    ///
    /// # Errors
    /// When the device failed.
    pub fn flush(&self) -> Result<()> {
        self.queue().flush().map(|_| ())
    }

    /// Gives cached blocks back to the driver, once the device is done with them; returns how many bytes they were.
    ///
    /// # Errors
    /// When the device failed.
    pub fn trim(&self) -> Result<u64> {
        self.pool().trim()
    }

    /// What memory is in use, was at most, and is cached, in bytes.
    pub fn memory(&self) -> MemoryFigures {
        let counts = &self.device().counts;
        MemoryFigures {
            in_use: counts.in_use(),
            host: counts.host_bytes.load(std::sync::atomic::Ordering::Relaxed),
            peak: counts.peak_bytes.load(std::sync::atomic::Ordering::Relaxed),
            device_peak: counts.device_peak_bytes.load(std::sync::atomic::Ordering::Relaxed),
            cached: counts.cached_bytes.load(std::sync::atomic::Ordering::Relaxed),
            buffers: counts.objects.buffers.get(),
            budget: self.device().budget(),
        }
    }

    /// How many Vulkan objects of each kind there are.
    pub fn objects(&self) -> Objects {
        let memory = lock(&self.device().allocator).generate_report().blocks.len();
        self.device().counts.objects.read(memory as u64)
    }

    /// Lets so many allocations of device memory succeed and then so many fail, as if memory had run out: for tests of
    /// what programs do then. `None` ends it.
    #[doc(hidden)]
    pub fn fail_allocations(&self, after_and_count: Option<(u64, u64)>) {
        *lock(&self.device().injected) = after_and_count;
    }

    /// A buffer of scratch whose words hold `fill`.
    pub(crate) fn filled(&self, bytes: u64, fill: u32) -> Result<Arc<Buffer>> {
        let bytes = bytes.max(16).next_multiple_of(4);
        let buffer = self.buffer("scratch", bytes, MemoryUse::Device)?;
        self.fill(&buffer, 0, bytes, fill)?;
        Ok(buffer)
    }
}
