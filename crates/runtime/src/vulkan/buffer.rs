//! Buffers, and the kinds of memory that they lie in.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, RwLock};

use ash::vk;
use gpu_allocator::MemoryLocation;
use gpu_allocator::vulkan::{Allocation, AllocationCreateDesc, AllocationScheme};

use super::device::{Counts, Device};
use super::error::{allocation, vulkan};
use super::lock;
use crate::error::{Error, Result};
use crate::record::Outputs;

/// What a buffer's memory is for, which decides where it lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MemoryUse {
    /// Kernels read and write it at full speed; the host reaches it through uploads and downloads, unless
    /// host and device share their memory.
    Device,
    /// The host writes it, copies or kernels read it once.
    Upload,
    /// Copies or kernels write it, the host reads it.
    Readback,
    /// The host writes a little before each run, kernels read it often: symbol values, indirect grids.
    Shared,
    /// Kernels read it where the host's memory is, over the bus: what the device's memory has no room for. Where host and
    /// device share their memory, it is as [`MemoryUse::Device`].
    Host,
}

impl MemoryUse {
    /// Every use.
    pub const ALL: [MemoryUse; 5] =
        [MemoryUse::Device, MemoryUse::Upload, MemoryUse::Readback, MemoryUse::Shared, MemoryUse::Host];
}

impl From<Outputs> for MemoryUse {
    fn from(outputs: Outputs) -> MemoryUse {
        match outputs {
            Outputs::Readback => MemoryUse::Readback,
            Outputs::Device => MemoryUse::Device,
            Outputs::Host => MemoryUse::Host,
        }
    }
}

/// A storage buffer. Dropping the last reference frees it, after every recording that uses it is gone.
pub struct Buffer {
    handle: vk::Buffer,
    /// Present until dropped.
    allocation: Option<Allocation>,
    /// The host's view, if the memory is mapped and the use allows it.
    mapped: Option<Mapped>,
    /// Keeps two host threads from touching the bytes at once.
    access: RwLock<()>,
    size: u64,
    memory: MemoryUse,
    cached: bool,
    address: Option<u64>,
    name: String,
    device: Arc<Device>,
}

/// Bytes that are worth a thread.
const PARALLEL_STEP: usize = 1 << 20;

/// Threads that fill the bandwidth of a host's memory.
const MAX_THREADS: usize = 8;

/// Copies bulk data by several threads: one alone does not fill the memory's bandwidth.
///
/// Threads of its own, not rayon's: buffers and staging memory are locked meanwhile, and a thread of rayon's that waits
/// for its part takes up other tasks, perhaps one that wants the same lock.
fn copy_in_parallel(to: &mut [u8], from: &[u8]) {
    let cores = std::thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS);
    let step = from.len().div_ceil(cores).max(PARALLEL_STEP);
    let mut parts = to.chunks_mut(step).zip(from.chunks(step));
    let first = parts.next();
    std::thread::scope(|scope| {
        for (to, from) in parts {
            scope.spawn(|| to.copy_from_slice(from));
        }
        if let Some((to, from)) = first {
            to.copy_from_slice(from);
        }
    });
}

/// First byte of the mapping.
struct Mapped(std::ptr::NonNull<u8>);

// SAFETY: the pointer is an address in a mapping that lives as long as the buffer; every use of it goes
// through `Buffer::access`.
unsafe impl Send for Mapped {}
// SAFETY: as above.
unsafe impl Sync for Mapped {}

impl Buffer {
    /// Creates a buffer of `size` bytes; its contents are undefined.
    pub(super) fn new(device: &Arc<Device>, name: &str, size: u64, memory: MemoryUse) -> Result<Arc<Buffer>> {
        let refuse = |reason: String| Error::BadBuffer { name: name.to_string(), bytes: size, reason };
        device.check_open()?;
        device.check_injected(size)?;
        if size == 0 {
            return Err(refuse("a buffer has at least one byte".to_string()));
        }
        let most = device.caps.max_allocation_bytes;
        if size > most {
            return Err(refuse(format!("the device allocates at most {most} bytes at once")));
        }
        let mut usage = vk::BufferUsageFlags::STORAGE_BUFFER
            | vk::BufferUsageFlags::INDIRECT_BUFFER
            | vk::BufferUsageFlags::TRANSFER_SRC
            | vk::BufferUsageFlags::TRANSFER_DST;
        if device.caps.buffer_device_address {
            usage |= vk::BufferUsageFlags::SHADER_DEVICE_ADDRESS;
        }
        let info =
            vk::BufferCreateInfo::default().size(size).usage(usage).sharing_mode(vk::SharingMode::EXCLUSIVE);
        // SAFETY: the device is live and `info` is complete.
        let handle = unsafe { device.raw.create_buffer(&info, None) }
            .map_err(|code| vulkan("vkCreateBuffer", code))?;
        // From here on dropping the value destroys the handle.
        let mut buffer = Buffer {
            handle,
            allocation: None,
            mapped: None,
            access: RwLock::new(()),
            size,
            memory,
            cached: false,
            address: None,
            name: name.to_string(),
            device: device.clone(),
        };
        // Dropping takes it off again.
        // The host's part first, so that another thread never notes it as the device's.
        if memory == MemoryUse::Host {
            Counts::add(&device.counts.host_bytes, size);
        }
        Counts::add(&device.counts.buffer_bytes, size);
        device.counts.objects.buffers.created();
        buffer.bind_memory()?;
        device.name(handle, name);
        device.counts.note_peak();
        Ok(Arc::new(buffer))
    }

    fn bind_memory(&mut self) -> Result<()> {
        let device = self.device.clone();
        // SAFETY: the buffer belongs to the device.
        let mut requirements = unsafe { device.raw.get_buffer_memory_requirements(self.handle) };
        let unified = device.caps.unified_memory;
        let location = match self.memory {
            MemoryUse::Device if !unified => MemoryLocation::GpuOnly,
            MemoryUse::Host if !unified => {
                // No location of the allocator is this memory on every device: left to choose, it takes the device's own,
                // or cached memory. It takes the one type that is left here.
                requirements.memory_type_bits = device.host_memory(requirements.memory_type_bits);
                MemoryLocation::GpuToCpu
            }
            MemoryUse::Device | MemoryUse::Shared | MemoryUse::Host => MemoryLocation::CpuToGpu,
            // Cached host memory: a processor fills it faster than a write-combined window into the device.
            MemoryUse::Upload | MemoryUse::Readback => MemoryLocation::GpuToCpu,
        };
        let memory = lock(&device.allocator)
            .allocate(&AllocationCreateDesc {
                name: &self.name,
                requirements,
                location,
                linear: true,
                allocation_scheme: AllocationScheme::GpuAllocatorManaged,
            })
            .map_err(|cause| allocation(&format!("buffer {}", self.name), self.size, &cause))?;
        // SAFETY: the memory was allocated for these requirements, the buffer is not bound yet.
        let bound = unsafe { device.raw.bind_buffer_memory(self.handle, memory.memory(), memory.offset()) };
        let reachable = self.memory != MemoryUse::Device || unified;
        self.mapped = memory.mapped_ptr().filter(|_| reachable).map(|pointer| Mapped(pointer.cast()));
        self.cached = memory.memory_properties().contains(vk::MemoryPropertyFlags::HOST_CACHED);
        self.allocation = Some(memory);
        bound.map_err(|code| vulkan("vkBindBufferMemory", code))?;
        if device.caps.buffer_device_address {
            let info = vk::BufferDeviceAddressInfo::default().buffer(self.handle);
            // SAFETY: the feature is enabled, and the buffer has the usage and is bound.
            self.address = Some(unsafe { device.raw.get_buffer_device_address(&info) });
        }
        Ok(())
    }

    /// Size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The name that it was created with.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What its memory is for.
    pub fn memory_use(&self) -> MemoryUse {
        self.memory
    }

    /// Whether the host can `read` and `write` it; always true but for `MemoryUse::Device` on a device
    /// with memory of its own.
    pub fn is_mapped(&self) -> bool {
        self.mapped.is_some()
    }

    /// The address under which shaders reach it, where the device has buffer addresses.
    ///
    /// A kernel that uses the address keeps no buffer alive: list the buffer in the recording.
    pub fn device_address(&self) -> Option<u64> {
        self.address
    }

    /// Copies `data` to byte `offset` on.
    ///
    /// The next run that is submitted sees it. A run that is in flight may see old bytes, new bytes or both.
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        let target = self.host_range(offset, data.len())?;
        let _guard = self.access.write().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: `host_range` proved that the range lies in the mapping, which lives as long as `self`; the
        // lock keeps other host threads out; `data` is ordinary memory, which the mapping never overlaps.
        unsafe { target.copy_from_nonoverlapping(data.as_ptr(), data.len()) };
        Ok(())
    }

    /// Copies from byte `offset` on into `data`.
    ///
    /// Wait for the run that writes the bytes first; its recording needs a tail barrier.
    pub fn read(&self, offset: u64, data: &mut [u8]) -> Result<()> {
        let source = self.host_range(offset, data.len())?;
        let _guard = self.access.read().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: as in `write`.
        unsafe { source.copy_to_nonoverlapping(data.as_mut_ptr(), data.len()) };
        Ok(())
    }

    /// Lets `fill` write bytes `offset..offset + bytes` where they lie, without a copy of them elsewhere. Write each
    /// byte once and in order: the memory may be a write-combined window into the device, which is slow to read.
    ///
    /// What a run in flight sees is as for [`Buffer::write`].
    pub fn write_with<T>(&self, offset: u64, bytes: usize, fill: impl FnOnce(&mut [u8]) -> T) -> Result<T> {
        let target = self.host_range(offset, bytes)?;
        let _guard = self.access.write().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: as in `write`; the lock makes the slice the only way to these bytes on this side.
        let target = unsafe { std::slice::from_raw_parts_mut(target, bytes) };
        Ok(fill(target))
    }

    /// Lets `look` read bytes `offset..offset + bytes` where they lie; see [`Buffer::read`] for when.
    pub fn read_with<T>(&self, offset: u64, bytes: usize, look: impl FnOnce(&[u8]) -> T) -> Result<T> {
        let source = self.host_range(offset, bytes)?;
        let _guard = self.access.read().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: as in `write`; the lock keeps writers on this side away.
        let source = unsafe { std::slice::from_raw_parts(source, bytes) };
        Ok(look(source))
    }

    /// `write` by several threads, for bulk data: one alone does not fill the memory's bandwidth.
    pub(super) fn write_in_parallel(&self, offset: u64, data: &[u8]) -> Result<()> {
        let target = self.host_range(offset, data.len())?;
        let _guard = self.access.write().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: as in `write`; the lock makes the slice the only way to these bytes on this side.
        let target = unsafe { std::slice::from_raw_parts_mut(target, data.len()) };
        copy_in_parallel(target, data);
        Ok(())
    }

    /// `read` by several threads.
    pub(super) fn read_in_parallel(&self, offset: u64, data: &mut [u8]) -> Result<()> {
        let source = self.host_range(offset, data.len())?;
        let _guard = self.access.read().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: as in `write`; the lock keeps writers on this side away.
        let source = unsafe { std::slice::from_raw_parts(source, data.len()) };
        copy_in_parallel(data, source);
        Ok(())
    }

    /// The device that it belongs to.
    pub(super) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    pub(super) fn handle(&self) -> vk::Buffer {
        self.handle
    }

    /// Whether host reads go through the processor's cache; reads of other mappings are slow.
    pub(super) fn is_cached(&self) -> bool {
        self.cached
    }

    /// Fails unless the range lies in the buffer.
    pub(super) fn check_range(&self, offset: u64, bytes: u64) -> Result<()> {
        match offset.checked_add(bytes) {
            Some(end) if end <= self.size => Ok(()),
            Some(_) | None => {
                Err(Error::OutOfBounds { name: self.name.clone(), offset, bytes, size: self.size })
            }
        }
    }

    fn host_range(&self, offset: u64, bytes: usize) -> Result<*mut u8> {
        self.check_range(offset, bytes as u64)?;
        let mapped = self.mapped.as_ref().ok_or_else(|| Error::NotMapped { name: self.name.clone() })?;
        // SAFETY: the mapping spans `size` bytes and `offset` is at most `size`, which fits the address
        // space because it is mapped.
        Ok(unsafe { mapped.0.as_ptr().add(offset as usize) })
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer({}, {} bytes, {:?})", self.name, self.size, self.memory)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.device.counts.buffer_bytes.fetch_sub(self.size, Ordering::Relaxed);
        if self.memory == MemoryUse::Host {
            self.device.counts.host_bytes.fetch_sub(self.size, Ordering::Relaxed);
        }
        self.device.counts.objects.buffers.destroyed(1);
        // SAFETY: recordings and transfers hold an `Arc` until they are done, so nothing uses the buffer.
        unsafe { self.device.raw.destroy_buffer(self.handle, None) };
        if let Some(memory) = self.allocation.take() {
            // The only failure is memory that another allocator gave out.
            let freed = lock(&self.device.allocator).free(memory);
            debug_assert!(freed.is_ok(), "invariant: the memory came from this allocator");
        }
    }
}
