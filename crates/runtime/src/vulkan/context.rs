//! Context: the entry point of the runtime, which owns a device, its memory and its pipelines.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use tallow_ir::caps::DeviceCaps;
use tallow_quant::Format;

use super::buffer::{Buffer, MemoryUse};
use super::copies::Copies;
use super::device::{self, Counters, Counts, Device};
use super::fragment_layout;
use super::lock;
use super::pipeline::{self, Pipeline};
use super::pipeline_cache::{PipelineCache, PipelineCacheState};
use super::pipeline_handles::PipelineDesc;
use super::pool::Pool;
use super::queue::Queue;
use super::record::Recording;
use super::repack;
use super::staging::Staging;
use crate::error::{Error, Result};
use crate::options::RuntimeOptions;
use crate::record::{RecordOptions, RecordSpec};
use crate::tuner::{self, Tuner};

/// Bytes between two progress reports where no staging copy is needed.
const MAPPED_STEP: usize = 8 << 20;

/// An open device, shared between threads; everything created from it keeps it open.
pub struct Context {
    staging: Mutex<Option<Staging>>,
    /// The kernel that repacks blocks, created by the first upload of blocks.
    repack: Mutex<Option<Arc<Pipeline>>>,
    /// The codebooks of block formats, created for the first kernel that reads them.
    codebooks: Mutex<Option<Arc<Buffer>>>,
    /// Copies of weights that executables use.
    copies: Copies,
    cache: PipelineCache,
    /// The autotuner, once tuning was enabled, and whether it is enabled now.
    tuner: OnceLock<Tuner>,
    tuning: AtomicBool,
    cache_dir: Option<PathBuf>,
    cache_uuid: [u8; 16],
    /// Number of pipelines created when the cache file was last written.
    pipelines_saved: AtomicU64,
    /// The device's capabilities, including those that need an open device to query.
    caps: DeviceCaps,
    pool: Arc<Pool>,
    queue: Arc<Queue>,
}

impl Context {
    /// Opens the device that the options name, or the best one.
    pub fn new(options: &RuntimeOptions) -> Result<Arc<Context>> {
        let opened = device::open(options)?;
        let dir: Option<&Path> = options.cache_dir.as_deref();
        let cache = PipelineCache::open(&opened.device, dir, opened.cache_uuid)?;
        let queue = Queue::new(opened.device);
        let mut context = Context {
            staging: Mutex::new(None),
            repack: Mutex::new(None),
            codebooks: Mutex::new(None),
            copies: Copies::default(),
            cache,
            tuner: OnceLock::new(),
            tuning: AtomicBool::new(false),
            cache_dir: options.cache_dir.clone(),
            cache_uuid: opened.cache_uuid,
            pipelines_saved: AtomicU64::new(0),
            caps: queue.device.caps.clone(),
            pool: Pool::new(&queue),
            queue,
        };
        context.caps.coopmat_fragment_layout = fragment_layout::known(&context.pool, &context.cache);
        context.set_tuning(options.tune);
        Ok(Arc::new(context))
    }

    /// The device's capabilities, without what the options disable.
    pub fn caps(&self) -> &DeviceCaps {
        &self.caps
    }

    /// Whether waiting spins and so occupies a CPU core: [`Wait::Poll`](crate::options::Wait::Poll).
    pub fn polls(&self) -> bool {
        self.device().polls()
    }

    /// Counters of the context's activity so far.
    pub fn counters(&self) -> Counters {
        self.device().counters()
    }

    /// State of the pipeline cache file when the context was created.
    pub fn pipeline_cache_state(&self) -> &PipelineCacheState {
        &self.cache.state
    }

    /// Enables or disables tuning of graphs that are compiled from now on; [`RuntimeOptions::tune`] is the initial
    /// state.
    pub fn set_tuning(&self, on: bool) {
        if on {
            self.tuner.get_or_init(|| {
                Tuner::open(self.cache_dir.as_deref(), &tuner::Device::new(self.caps(), self.cache_uuid))
            });
        }
        self.tuning.store(on, Ordering::Relaxed);
    }

    /// The autotuner, if tuning is enabled.
    pub fn tuner(&self) -> Option<&Tuner> {
        self.tuner.get().filter(|_| self.tuning.load(Ordering::Relaxed))
    }

    /// Creates the pipeline for block uploads, so that no upload waits for rayon.
    pub(crate) fn prepare_uploads(&self) -> Result<()> {
        self.repack_pipeline().map(|_| ())
    }

    /// Bytes of memory allocated for buffers, including staging.
    pub fn allocated_bytes(&self) -> u64 {
        lock(&self.device().allocator).generate_report().total_allocated_bytes
    }

    /// Size of the device's own memory in bytes, of which other programs may use a part.
    pub fn memory_bytes(&self) -> u64 {
        self.device().memory_bytes
    }

    /// Creates a storage buffer of `bytes` bytes, at least one; its contents are undefined.
    pub fn buffer(&self, name: &str, bytes: u64, memory: MemoryUse) -> Result<Arc<Buffer>> {
        self.pool.buffer(name, bytes, memory)
    }

    /// Creates pipelines in parallel; returns them in the order of `descs`.
    pub fn create_pipelines(&self, descs: &[PipelineDesc<'_>]) -> Result<Vec<Arc<Pipeline>>> {
        pipeline::create_all(self.device(), &self.cache, descs)
    }

    /// Writes the pipeline cache file, if pipelines were created since the last write and the driver's cache grew.
    pub fn save_pipeline_cache(&self) -> Result<()> {
        let created = self.counters().pipelines_created;
        if self.pipelines_saved.swap(created, Ordering::Relaxed) != created {
            self.cache.save()?;
        }
        Ok(())
    }

    /// Copies `data` to `target` from byte `offset` on; blocks until done.
    ///
    /// The copy runs after everything submitted before.
    pub fn upload(&self, target: &Buffer, offset: u64, data: &[u8]) -> Result<()> {
        self.upload_with_progress(target, offset, data, &mut |_, _| {})
    }

    /// As [`Context::upload`], with progress: bytes done so far and the total.
    pub fn upload_with_progress(
        &self,
        target: &Buffer,
        offset: u64,
        data: &[u8],
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<()> {
        self.check_owner(target)?;
        let total = data.len() as u64;
        target.check_range(offset, total)?;
        if target.is_mapped() {
            self.queue.wait_for_all()?;
            let mut done = 0;
            for chunk in data.chunks(MAPPED_STEP) {
                target.write_in_parallel(offset + done, chunk)?;
                done += chunk.len() as u64;
                progress(done, total);
            }
        } else {
            self.with_staging(|staging| {
                staging.upload(target, offset, data, &mut |done| progress(done, total))
            })?;
        }
        Counts::add(&self.device().counts.bytes_uploaded, total);
        self.device().check_validation()
    }

    /// Uploads `data`, blocks of `format` in a file's layout, and repacks them on the device to the layout that kernels
    /// read ([`tallow_quant::repack`]); blocks until done. `progress` receives the bytes done so far and the total.
    ///
    /// The upload runs after everything submitted before.
    ///
    /// # Errors
    /// When `data` is not whole blocks, `target` is too small, or the device fails.
    pub fn upload_blocks(
        &self,
        target: &Arc<Buffer>,
        format: Format,
        data: &[u8],
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<()> {
        self.check_owner(target)?;
        let (spec, total) = (format.spec(), data.len() as u64);
        let refuse =
            |reason| Error::BadBuffer { name: target.name().to_string(), bytes: target.size(), reason };
        let blocks = data.len() / spec.block_bytes;
        if blocks * spec.block_bytes != data.len() {
            return Err(refuse(format!("{total} bytes are no whole blocks of {format}")));
        }
        let planes = tallow_quant::repacked_bytes(format, blocks.saturating_mul(spec.block_elements));
        target.check_range(0, planes as u64)?;
        let Some(run_bytes) = repack::run_bytes(self.caps(), spec) else {
            let planes = tallow_quant::repack(format, data).map_err(|e| refuse(e.to_string()))?;
            return self
                .upload_with_progress(target, 0, &planes, &mut |done, _| progress(done.min(total), total));
        };
        let pipeline = self.repack_pipeline()?;
        self.with_staging(|staging| {
            let progress = &mut |done| progress(done, total);
            staging.upload_blocks(&pipeline, target, format, data, run_bytes, progress)
        })?;
        Counts::add(&self.device().counts.bytes_uploaded, total);
        self.device().check_validation()
    }

    /// The kernel that repacks blocks. It is created without the lock, so that no rayon thread waits for one that needs
    /// rayon. If another thread was faster, its pipeline is used.
    fn repack_pipeline(&self) -> Result<Arc<Pipeline>> {
        let known = lock(&self.repack).clone();
        match known {
            Some(pipeline) => Ok(pipeline),
            None => {
                let made = repack::pipeline(self.device(), &self.cache)?;
                Ok(lock(&self.repack).get_or_insert(made).clone())
            }
        }
    }

    /// The copies of weights that executables use.
    pub(crate) fn weight_copies(&self) -> &Copies {
        &self.copies
    }

    /// The codebooks of block formats, as in [`tallow_quant::codebooks`]: one buffer shared by all kernels.
    pub(crate) fn codebooks(&self) -> Result<Arc<Buffer>> {
        let mut cached = lock(&self.codebooks);
        if let Some(buffer) = &*cached {
            return Ok(buffer.clone());
        }
        let data = tallow_quant::codebooks();
        let buffer = self.buffer("codebooks", data.len() as u64, MemoryUse::Device)?;
        self.upload(&buffer, 0, &data)?;
        Ok(cached.insert(buffer).clone())
    }

    /// Copies from byte `offset` of `source` into `data`, after everything submitted before; blocks until done.
    pub fn download(&self, source: &Buffer, offset: u64, data: &mut [u8]) -> Result<()> {
        self.check_owner(source)?;
        source.check_range(offset, data.len() as u64)?;
        if source.is_mapped() && source.is_cached() {
            self.queue.wait_for_all()?;
            source.read_in_parallel(offset, data)?;
        } else {
            self.with_staging(|staging| staging.download(source, offset, data))?;
        }
        Counts::add(&self.device().counts.bytes_downloaded, data.len() as u64);
        self.device().check_validation()
    }

    /// Fills `bytes` bytes from `offset` on with a 32-bit pattern; both are multiples of 4.
    pub fn fill(&self, target: &Buffer, offset: u64, bytes: u64, value: u32) -> Result<()> {
        self.check_owner(target)?;
        target.check_range(offset, bytes)?;
        if !offset.is_multiple_of(4) || !bytes.is_multiple_of(4) {
            let reason = format!("a fill of {bytes} bytes at {offset} is not in whole words");
            return Err(Error::BadBuffer { name: target.name().to_string(), bytes: target.size(), reason });
        }
        if bytes > 0 {
            self.with_staging(|staging| staging.fill(target, offset, bytes, value))?;
        }
        self.device().check_validation()
    }

    /// Waits for all submitted work and accepts no more: later runs, transfers and allocations get [`Error::Closed`].
    /// Existing results can still be read.
    pub fn close(&self) -> Result<()> {
        self.queue.close()
    }

    /// Frees the staging memory for transfers; the next transfer allocates it again.
    pub fn release_staging(&self) {
        // Every transfer finishes before it releases the lock.
        *lock(&self.staging) = None;
    }

    /// Waits until everything that was submitted is done.
    pub fn wait_idle(&self) -> Result<()> {
        self.queue.wait_for_all()?;
        self.device().check_validation()
    }

    /// Validation layer messages since the last call or the last error from it.
    pub fn take_validation_errors(&self) -> Vec<String> {
        self.device().take_validation_errors()
    }

    pub(super) fn queue(&self) -> &Arc<Queue> {
        &self.queue
    }

    pub(super) fn device(&self) -> &Arc<Device> {
        &self.queue.device
    }

    pub(super) fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    pub(super) fn with_staging(&self, transfer: impl FnOnce(&mut Staging) -> Result<()>) -> Result<()> {
        let mut staging = lock(&self.staging);
        let staging = match &mut *staging {
            Some(staging) => staging,
            none => none.insert(Staging::new(&self.queue)?),
        };
        transfer(staging)
    }

    fn check_owner(&self, buffer: &Buffer) -> Result<()> {
        if Arc::ptr_eq(buffer.device(), self.device()) {
            return Ok(());
        }
        let reason = "it belongs to another context".to_string();
        Err(Error::BadBuffer { name: buffer.name().to_string(), bytes: buffer.size(), reason })
    }
}

impl Recording {
    /// Records `spec` over the given pipelines and buffers, which it keeps alive.
    ///
    /// Buffers that no command binds may be listed too: kernels may reach them by address. Under validation
    /// a hazard between two commands of the list is reported here.
    pub fn new(
        context: &Context,
        spec: &RecordSpec,
        pipelines: &[Arc<Pipeline>],
        buffers: &[Arc<Buffer>],
        options: RecordOptions,
    ) -> Result<Recording> {
        let recording = Recording::of_transfer(context.queue(), spec, pipelines, buffers, options)?;
        Counts::add(&context.device().counts.recordings, 1);
        Ok(recording)
    }
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Context({})", self.caps().name)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // Work in flight and the device hold each other alive: closing breaks the cycle.
        lock(&self.queue.stream).close(self.device());
        if let Err(error) = self.save_pipeline_cache() {
            tracing::warn!("pipelines are not kept: {error}");
        }
    }
}
