//! An open device: its queue, its allocator, its one timeline.
//!
//! All work goes to one queue, and every submission raises one timeline semaphore by one. A value of the
//! timeline therefore stands for everything submitted up to it, and "is it done" is one comparison.

use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use ash::{ext, khr, vk};
use gpu_allocator::vulkan::{Allocator, AllocatorCreateDesc};
use gpu_allocator::{AllocationSizes, AllocatorDebugSettings};
use tallow_ir::caps::DeviceCaps;

use super::caps::{self, Enabled, Queried};
use super::error::vulkan;
use super::instance::Instance;
use super::lock;
use super::memory_types;
use super::objects::ObjectCounts;
use super::physical_device;
use super::pipeline_handles::PipelineDevice;
use crate::error::{Error, Result};
use crate::options::{RuntimeOptions, Wait};

/// What a context has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Counters {
    /// Pipelines created.
    pub pipelines_created: u64,
    /// Command lists recorded.
    pub recordings: u64,
    /// Runs of recordings.
    pub runs: u64,
    /// Submissions to the queue, transfers included.
    pub submits: u64,
    /// Bytes written to device memory through uploads.
    pub bytes_uploaded: u64,
    /// Bytes read back through downloads.
    pub bytes_downloaded: u64,
    /// Sequences appended to the stream.
    pub appended: u64,
}

/// Memory of a device's buffers, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct MemoryFigures {
    /// Taken by buffers that something uses: values, weights, states, arenas, staging.
    pub in_use: u64,
    /// Of these, taken by buffers of [`MemoryUse::Host`](super::MemoryUse::Host): weights that were put in the host's
    /// memory.
    pub host: u64,
    /// The most that was in use at once.
    pub peak: u64,
    /// The most that was in use at once, without what `host` counts.
    pub device_peak: u64,
    /// Kept for values to come.
    pub cached: u64,
    /// Buffers that there are, those that are kept among them.
    pub buffers: u64,
    /// What the driver lets this process have of the device's own memory, where it says so.
    pub budget: Option<u64>,
}

/// The counters as they are counted.
#[derive(Default)]
pub(super) struct Counts {
    pub(super) pipelines_created: AtomicU64,
    pub(super) recordings: AtomicU64,
    pub(super) runs: AtomicU64,
    pub(super) submits: AtomicU64,
    pub(super) bytes_uploaded: AtomicU64,
    pub(super) bytes_downloaded: AtomicU64,
    pub(super) appended: AtomicU64,
    /// Bytes of all buffers, those that are cached among them.
    pub(super) buffer_bytes: AtomicU64,
    pub(super) cached_bytes: AtomicU64,
    /// Bytes of buffers in the host's memory, where kernels read them.
    pub(super) host_bytes: AtomicU64,
    pub(super) peak_bytes: AtomicU64,
    pub(super) device_peak_bytes: AtomicU64,
    pub(super) objects: ObjectCounts,
}

impl Counts {
    /// Bytes of buffers that are not cached.
    pub(super) fn in_use(&self) -> u64 {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        get(&self.buffer_bytes).saturating_sub(get(&self.cached_bytes))
    }

    /// Notes how much memory is in use, if it is more than ever.
    pub(super) fn note_peak(&self) {
        let in_use = self.in_use();
        let host = self.host_bytes.load(Ordering::Relaxed);
        self.peak_bytes.fetch_max(in_use, Ordering::Relaxed);
        self.device_peak_bytes.fetch_max(in_use.saturating_sub(host), Ordering::Relaxed);
    }

    pub(super) fn add(counter: &AtomicU64, amount: u64) {
        counter.fetch_add(amount, Ordering::Relaxed);
    }

    fn read(&self) -> Counters {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counters {
            pipelines_created: get(&self.pipelines_created),
            recordings: get(&self.recordings),
            runs: get(&self.runs),
            submits: get(&self.submits),
            bytes_uploaded: get(&self.bytes_uploaded),
            bytes_downloaded: get(&self.bytes_downloaded),
            appended: get(&self.appended),
        }
    }
}

/// An open device; everything that holds a Vulkan handle of it holds an `Arc` of it.
pub(super) struct Device {
    pub(super) raw: ash::Device,
    pub(super) caps: DeviceCaps,
    pub(super) queue_family: u32,
    pub(super) barriers: Barriers,
    pub(super) full_subgroups: bool,
    pub(super) pipeline_robustness: bool,
    physical: vk::PhysicalDevice,
    /// Size of the largest heap of the device's own memory, in bytes.
    pub(super) memory_bytes: u64,
    /// Nanoseconds per timestamp tick, and the mask of the bits that count.
    pub(super) timestamps: (f64, u64),
    pub(super) counts: Counts,
    /// Set by `mark_closed`: nothing is submitted or allocated any more.
    closed: AtomicBool,
    pub(super) allocator: Mutex<ManuallyDrop<Allocator>>,
    timeline: vk::Semaphore,
    queue: Mutex<QueueState>,
    /// What was appended last.
    last_work: Mutex<Arc<str>>,
    /// Allocations that succeed before failures, and how many failures there are then, where a test wants them.
    pub(super) injected: Mutex<Option<(u64, u64)>>,
    /// The first error after which nothing that was submitted can be trusted.
    failed: OnceLock<Error>,
    /// The greatest value of the timeline that was seen.
    reached: AtomicU64,
    wait: Wait,
    rolled_loops: bool,
    names: Option<ext::debug_utils::Device>,
    instance: Arc<Instance>,
}

/// Which command records a barrier.
pub(super) enum Barriers {
    /// `vkCmdPipelineBarrier` of Vulkan 1.0.
    First,
    /// `vkCmdPipelineBarrier2` of Vulkan 1.3.
    Core2,
    /// `vkCmdPipelineBarrier2KHR`.
    Extension2(khr::synchronization2::Device),
}

/// How long a reader asks the device before it sleeps, which costs some 50 us more than the device takes.
const SPIN: Duration = Duration::from_micros(100);

struct QueueState {
    queue: vk::Queue,
    /// The value that the last submission raises the timeline to.
    submitted: u64,
}

/// The device that the options name, opened.
pub(super) struct Opened {
    pub(super) device: Arc<Device>,
    pub(super) cache_uuid: [u8; vk::UUID_SIZE],
}

/// Chooses a device, takes away what the options disable, and opens it.
pub(super) fn open(options: &RuntimeOptions) -> Result<Opened> {
    let instance = Instance::open(options)?;
    let chosen = physical_device::choose(physical_device::candidates(&instance)?, options.device.as_deref())?;
    let (queried, compute) = chosen.answers()?;
    let queue_family = compute.family;
    let caps = reduced(queried, options);
    let mut enabled = caps::enable(queried, &caps);
    let raw = create_device(&instance, chosen.physical, queue_family, &mut enabled)?;
    let parts = create_parts(&instance, &raw, chosen.physical, &caps);
    let (timeline, allocator) = match parts {
        Ok(parts) => parts,
        Err(error) => {
            // SAFETY: the device was just created and nothing of it is left.
            unsafe { raw.destroy_device(None) };
            return Err(error);
        }
    };
    // SAFETY: the family was given one queue when the device was created.
    let queue = unsafe { raw.get_device_queue(queue_family, 0) };
    let barriers = match (caps.synchronization2, enabled.sync2_is_core()) {
        (false, _) => Barriers::First,
        (true, true) => Barriers::Core2,
        (true, false) => Barriers::Extension2(khr::synchronization2::Device::new(&instance.raw, &raw)),
    };
    let names = instance.validates().then(|| ext::debug_utils::Device::new(&instance.raw, &raw));
    let device = Device {
        raw,
        caps,
        queue_family,
        barriers,
        full_subgroups: enabled.full_subgroups,
        pipeline_robustness: enabled.pipeline_robustness,
        physical: chosen.physical,
        memory_bytes: caps::memory_bytes(&instance, chosen.physical),
        timestamps: (f64::from(queried.timestamp_period), low_bits(compute.timestamp_bits)),
        counts: Counts::default(),
        closed: AtomicBool::new(false),
        allocator: Mutex::new(ManuallyDrop::new(allocator)),
        timeline,
        queue: Mutex::new(QueueState { queue, submitted: 0 }),
        last_work: Mutex::new("".into()),
        injected: Mutex::default(),
        failed: OnceLock::new(),
        reached: AtomicU64::new(0),
        wait: options.wait,
        rolled_loops: options.rolled_loops,
        names,
        instance,
    };
    device.counts.objects.semaphores.created();
    device.check_validation()?;
    Ok(Opened { device: Arc::new(device), cache_uuid: queried.cache_uuid })
}

fn low_bits(count: u32) -> u64 {
    if count >= 64 { u64::MAX } else { (1 << count) - 1 }
}

/// What the options leave of a device's capabilities.
pub(super) fn reduced(queried: &Queried, options: &RuntimeOptions) -> DeviceCaps {
    let mut caps = queried.caps.clone();
    for &feature in &options.disable {
        caps.without(feature);
    }
    if let Some(range) = options.max_storage_buffer_range {
        caps.max_storage_buffer_range = caps.max_storage_buffer_range.min(range);
    }
    caps
}

/// Creates a device with one queue of this family.
pub(super) fn create_device(
    instance: &Instance,
    physical: vk::PhysicalDevice,
    queue_family: u32,
    enabled: &mut Enabled,
) -> Result<ash::Device> {
    let queue =
        vk::DeviceQueueCreateInfo::default().queue_family_index(queue_family).queue_priorities(&[1.0]);
    let queues = [queue];
    let extensions: Vec<_> = enabled.extensions.iter().map(|name| name.as_ptr()).collect();
    let mut statistics = vk::PhysicalDevicePipelineExecutablePropertiesFeaturesKHR::default()
        .pipeline_executable_info(enabled.statistics);
    let with_statistics = enabled.statistics;
    let mut features = enabled.link();
    let mut info = vk::DeviceCreateInfo::default()
        .queue_create_infos(&queues)
        .enabled_extension_names(&extensions)
        .push_next(&mut features);
    if with_statistics {
        info = info.push_next(&mut statistics);
    }
    // SAFETY: everything that `info` points to lives until the call returns; extensions and features were
    // reported by this device.
    unsafe { instance.raw.create_device(physical, &info, None) }
        .map_err(|code| vulkan("vkCreateDevice", code))
}

/// Blocks that small buffers share, in bytes; larger buffers get memory of their own.
const DEVICE_BLOCK: u64 = 64 << 20;
const HOST_BLOCK: u64 = 16 << 20;

fn create_parts(
    instance: &Instance,
    raw: &ash::Device,
    physical: vk::PhysicalDevice,
    caps: &DeviceCaps,
) -> Result<(vk::Semaphore, Allocator)> {
    let allocator = Allocator::new(&AllocatorCreateDesc {
        instance: instance.raw.clone(),
        device: raw.clone(),
        physical_device: physical,
        debug_settings: AllocatorDebugSettings::default(),
        buffer_device_address: caps.buffer_device_address,
        allocation_sizes: AllocationSizes::new(DEVICE_BLOCK, HOST_BLOCK),
    })
    .map_err(|cause| super::error::allocation("the allocator", 0, &cause))?;
    let mut kind =
        vk::SemaphoreTypeCreateInfo::default().semaphore_type(vk::SemaphoreType::TIMELINE).initial_value(0);
    let info = vk::SemaphoreCreateInfo::default().push_next(&mut kind);
    // SAFETY: timeline semaphores are enabled on every device that is opened.
    let timeline =
        unsafe { raw.create_semaphore(&info, None) }.map_err(|code| vulkan("vkCreateSemaphore", code))?;
    Ok((timeline, allocator))
}

impl Device {
    /// Submits command buffers, each on its own and in this order, and returns the value that the timeline reaches when
    /// all are done. Unlike [`Queue::submit`](super::queue::Queue::submit), does not flush the stream.
    ///
    /// # Safety
    /// Every command buffer is recorded, not in use by a submission that is not done, and lives, with all
    /// that it uses, until the returned value is reached.
    pub(super) unsafe fn submit_alone(&self, command_buffers: &[vk::CommandBuffer]) -> Result<u64> {
        self.check_open()?;
        let mut state = lock(&self.queue);
        let value = [state.submitted + 1];
        let semaphores = [self.timeline];
        for (index, command_buffer) in command_buffers.iter().enumerate() {
            let buffers = [*command_buffer];
            let mut signal = vk::TimelineSemaphoreSubmitInfo::default().signal_semaphore_values(&value);
            let mut info = vk::SubmitInfo::default().command_buffers(&buffers);
            if index + 1 == command_buffers.len() {
                info = info.signal_semaphores(&semaphores).push_next(&mut signal);
            }
            // SAFETY: the queue is locked; the caller vouches for the command buffers; the timeline only
            // ever rises, because values are taken under the lock.
            let submitted = unsafe { self.raw.queue_submit(state.queue, &[info], vk::Fence::null()) };
            if let Err(code) = submitted {
                // Earlier parts may run already, and no value stands for them.
                // SAFETY: the queue is locked.
                let _ = unsafe { self.raw.queue_wait_idle(state.queue) };
                return Err(self.noted(vulkan("vkQueueSubmit", code)));
            }
            Counts::add(&self.counts.submits, 1);
        }
        if !command_buffers.is_empty() {
            state.submitted = value[0];
        }
        Ok(state.submitted)
    }

    /// Waits until the timeline reaches `value`; without a limit as long as it takes.
    pub(super) fn wait(&self, value: u64, limit: Option<Duration>) -> Result<()> {
        if let Some(error) = self.failed.get() {
            return Err(error.clone());
        }
        if self.polls() {
            return self.poll(value, limit);
        }
        // Most runs of a batched wake-up are done, and a query costs less than a wait. If the query fails, so does the wait,
        // or the run is over and memory is available again.
        if self.is_done(value).unwrap_or(false) {
            return Ok(());
        }
        let semaphores = [self.timeline];
        let values = [value];
        let info = vk::SemaphoreWaitInfo::default().semaphores(&semaphores).values(&values);
        let nanoseconds = limit.map_or(u64::MAX, |limit| u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX));
        // SAFETY: the semaphore belongs to this device and lives as long as it.
        unsafe { self.raw.wait_semaphores(&info, nanoseconds) }.map_err(|code| match code {
            vk::Result::TIMEOUT => Error::Timeout { limit: limit.unwrap_or(Duration::MAX) },
            other => self.noted(vulkan("vkWaitSemaphores", other)),
        })?;
        self.reached.fetch_max(value, Ordering::Release);
        Ok(())
    }

    pub(super) fn polls(&self) -> bool {
        self.wait == Wait::Poll
    }

    /// [`Device::wait`] without sleeping.
    fn poll(&self, value: u64, limit: Option<Duration>) -> Result<()> {
        let start = Instant::now();
        while !self.is_done(value)? {
            if let Some(limit) = limit.filter(|limit| start.elapsed() >= *limit) {
                return Err(Error::Timeout { limit });
            }
            std::hint::spin_loop();
        }
        Ok(())
    }

    /// Whether the timeline has reached `value`.
    pub(super) fn is_done(&self, value: u64) -> Result<bool> {
        // What is known to be done needs no question to the driver.
        if self.reached.load(Ordering::Acquire) >= value {
            return Ok(true);
        }
        // SAFETY: as above.
        let reached = match unsafe { self.raw.get_semaphore_counter_value(self.timeline) } {
            // No device has run so often; it is what timelines of lost devices are set to, where a driver lets go of who waits.
            Ok(u64::MAX) => Err(vk::Result::ERROR_DEVICE_LOST),
            other => other,
        };
        let reached = reached.map_err(|code| self.noted(vulkan("vkGetSemaphoreCounterValue", code)))?;
        if reached >= value {
            self.reached.fetch_max(reached, Ordering::Release);
        }
        Ok(reached >= value)
    }

    /// The timeline's value from which on all that was submitted is done.
    pub(super) fn submitted(&self) -> u64 {
        lock(&self.queue).submitted
    }

    /// Closes the device: it takes no more work.
    pub(super) fn mark_closed(&self) {
        self.closed.store(true, Ordering::Release);
    }

    /// Fails once the device is closed or has failed.
    pub(super) fn check_open(&self) -> Result<()> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::Closed);
        }
        match self.failed.get() {
            Some(error) => Err(error.clone()),
            None => Ok(()),
        }
    }

    /// Keeps an error after which nothing that was submitted can be trusted: every wait gives it from now on.
    pub(super) fn fail(&self, error: Error) -> Error {
        self.failed.get_or_init(|| error).clone()
    }

    /// [`Device::fail`] where the device was lost, with what it was doing.
    fn noted(&self, error: Error) -> Error {
        match error {
            Error::DeviceLost { during, .. } => {
                let submitted = lock(&self.last_work).to_string();
                self.fail(Error::DeviceLost { during, submitted })
            }
            other => other,
        }
    }

    /// Notes what is appended, for errors to come.
    pub(super) fn note_work(&self, what: &Arc<str>) {
        *lock(&self.last_work) = what.clone();
    }

    /// Fails where a test wants an allocation to fail, see [`Context::fail_allocations`](super::Context::fail_allocations).
    pub(super) fn check_injected(&self, bytes: u64) -> Result<()> {
        let mut injected = lock(&self.injected);
        let Some((after, count)) = &mut *injected else { return Ok(()) };
        if *after > 0 {
            *after -= 1;
            return Ok(());
        }
        if *count == 0 {
            return Ok(());
        }
        *count -= 1;
        Err(Error::OutOfMemory { what: "a test".into(), bytes, reason: "a failure was asked for".into() })
    }

    /// [`Device::wait`] that asks again and again at first: what takes microseconds is not slept through.
    pub(super) fn wait_briefly(&self, value: u64) -> Result<()> {
        let start = Instant::now();
        while !self.is_done(value)? {
            if start.elapsed() >= SPIN {
                return self.wait(value, None);
            }
            std::hint::spin_loop();
        }
        Ok(())
    }

    /// What creating a pipeline needs to know.
    pub(super) fn for_pipelines(&self) -> PipelineDevice<'_> {
        PipelineDevice {
            raw: &self.raw,
            caps: &self.caps,
            full_subgroups: self.full_subgroups,
            pipeline_robustness: self.pipeline_robustness,
            capture_statistics: false,
            rolled_loops: self.rolled_loops,
        }
    }

    /// The memory type among `allowed` that is the host's memory, as a bit; see [`memory_types::host_memory`].
    pub(super) fn host_memory(&self, allowed: u32) -> u32 {
        // SAFETY: the handle comes from this live instance.
        let memory = unsafe { self.instance.raw.get_physical_device_memory_properties(self.physical) };
        memory_types::host_memory(memory.memory_types_as_slice(), allowed)
    }

    /// What the driver lets this process have of the device's own memory now, in bytes.
    pub(super) fn budget(&self) -> Option<u64> {
        caps::budget(&self.instance, self.physical)
    }

    /// What has been done so far.
    pub(super) fn counters(&self) -> Counters {
        self.counts.read()
    }

    /// Reports of the validation layer since the last call.
    pub(super) fn take_validation_errors(&self) -> Vec<String> {
        self.instance.take_validation_errors()
    }

    /// Fails if the validation layer reported anything since the last call.
    pub(super) fn check_validation(&self) -> Result<()> {
        let errors = self.take_validation_errors();
        if errors.is_empty() { Ok(()) } else { Err(Error::Validation(errors)) }
    }

    /// Names a handle for the validation layer's messages.
    pub(super) fn name<T: vk::Handle>(&self, handle: T, name: &str) {
        let Some(functions) = &self.names else { return };
        let Ok(name) = std::ffi::CString::new(name) else { return };
        let info = vk::DebugUtilsObjectNameInfoEXT::default().object_handle(handle).object_name(&name);
        // SAFETY: the handle belongs to this device, and the name lives during the call. A name that could
        // not be set is only missing from messages.
        let _ = unsafe { functions.set_debug_utils_object_name(&info) };
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let allocator = self.allocator.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        // SAFETY: whatever was made from the device held an `Arc` of it, so nothing of it is left; memory is
        // freed before the device, and the allocator is not touched again. A lost device still counts as
        // idle, so the result of the wait does not matter.
        unsafe {
            let _ = self.raw.device_wait_idle();
            self.raw.destroy_semaphore(self.timeline, None);
            ManuallyDrop::drop(allocator);
            self.raw.destroy_device(None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_of_the_device_leaves_out_the_hosts_part() {
        let counts = Counts::default();
        let note = |all: u64, host: u64| {
            counts.buffer_bytes.store(all, Ordering::Relaxed);
            counts.host_bytes.store(host, Ordering::Relaxed);
            counts.note_peak();
        };
        let peaks = || [&counts.peak_bytes, &counts.device_peak_bytes].map(|c| c.load(Ordering::Relaxed));
        note(50, 0);
        note(90, 60);
        assert_eq!(peaks(), [90, 50]);
        note(70, 10);
        assert_eq!(peaks(), [90, 60]);
    }
}
