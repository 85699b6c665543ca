//! The Vulkan device of tests.

use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use tallow::Device;
#[cfg(feature = "vulkan")]
use tallow::RuntimeOptions;
#[cfg(feature = "vulkan")]
use tallow_ir::caps::OptionalFeature;

/// The environment's Vulkan device; `None` after saying that the test skips. A GPU is opened once; of a software device each
/// thread, and so each test, opens its own, since it runs what a device is given one after the other on one core.
///
/// # Panics
///
/// There is none although `REQUIRE_VULKAN=1`.
pub fn device() -> Option<Device> {
    static SHARED: OnceLock<Result<Device, String>> = OnceLock::new();
    static PER_THREAD: PerThread = PerThread::new();
    let open = || Device::best_vulkan().map_err(|e| e.to_string());
    let open_like =
        |shared: &Device| open().unwrap_or_else(|why| panic!("{shared} was opened, and again: {why}"));
    match SHARED.get_or_init(open) {
        Ok(shared) if is_software(shared) => Some(PER_THREAD.get(|| open_like(shared))),
        Ok(shared) => Some(shared.clone()),
        Err(why) if std::env::var("REQUIRE_VULKAN").is_ok_and(|v| v == "1") => {
            panic!("REQUIRE_VULKAN=1, but {why}")
        }
        Err(why) => {
            eprintln!("skipped: {why}");
            None
        }
    }
}

/// A device of each thread that asks for one.
///
/// Devices of threads that have ended are closed by the next thread that opens one: not while a thread ends, when what driver
/// and layers keep for the thread may be gone before the device.
pub struct PerThread(Mutex<Vec<(Weak<()>, Device)>>);

impl Default for PerThread {
    fn default() -> Self {
        PerThread::new()
    }
}

impl PerThread {
    /// No devices yet.
    pub const fn new() -> PerThread {
        PerThread(Mutex::new(vec![]))
    }

    /// The device of this thread, which `open` opens at the first call.
    pub fn get(&self, open: impl FnOnce() -> Device) -> Device {
        thread_local! { static ALIVE: Arc<()> = Arc::new(()); }
        let alive = ALIVE.with(Arc::downgrade);
        let mut devices = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, device)) = devices.iter().find(|(thread, _)| thread.ptr_eq(&alive)) {
            return device.clone();
        }
        let closed: Vec<_> = devices.extract_if(.., |(thread, _)| thread.strong_count() == 0).collect();
        drop(devices);
        drop(closed);
        let device = open();
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((alive, device.clone()));
        device
    }
}

/// The device, and as if its memory were out of the host's reach, as that of a graphics card, unless the environment has it so
/// already; none where [`device`] has none. They are the caller's alone, since what a device counts is counted for all who
/// share it.
///
/// # Panics
///
/// As there.
#[cfg(feature = "vulkan")]
pub fn own_devices() -> Vec<Device> {
    if device().is_none() {
        return vec![];
    }
    let open = |options: &RuntimeOptions| {
        Device::vulkan_with(options).unwrap_or_else(|why| panic!("the device was opened, and again: {why}"))
    };
    let plain = RuntimeOptions::from_env().unwrap_or_else(|why| panic!("{why}"));
    if plain.disable.contains(&OptionalFeature::Unified) {
        return vec![open(&plain)];
    }
    let mut apart = plain.clone();
    apart.disable.push(OptionalFeature::Unified);
    [plain, apart].iter().map(open).collect()
}

/// Whether the device's kernels run on the cores that tests run on.
pub fn is_software(device: &Device) -> bool {
    device.caps().is_some_and(|caps| caps.is_software())
}

/// Of cases that each compile kernels, those that a test on `device` takes: all on a GPU and with `TALLOW_FULL=1`, about one
/// of `of` on software, which compiles a kernel in a tenth of a second and more. Without subgroups software takes half as many,
/// and others, so that the device suite and the one on plain Vulkan 1.2 share them.
pub fn sampled<T>(device: &Device, of: u64, cases: impl IntoIterator<Item = T>) -> impl Iterator<Item = T> {
    let (of, part) = match is_software(device) && !is_full() {
        true if has_subgroups(device) => (of, 0),
        true => (2 * of, 2 % (2 * of)),
        false => (1, 0),
    };
    // Multiples of the golden ratio, less whole numbers, lie evenly in the unit interval: no row or column of a grid of
    // cases is left out, as with each second or third case.
    let part_of = move |i: u64| {
        let place = u128::from(i.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        (place * u128::from(of)) >> 64
    };
    let taken = move |(i, case): (u64, T)| (part_of(i) == u128::from(part)).then_some(case);
    (0..).zip(cases).filter_map(taken)
}

/// Whether kernels reduce within subgroups, as none do on plain Vulkan 1.2.
pub fn has_subgroups(device: &Device) -> bool {
    device.caps().is_some_and(|caps| caps.subgroup_arithmetic)
}

/// Whether all cases were asked for, however long they take.
pub fn is_full() -> bool {
    std::env::var("TALLOW_FULL").is_ok_and(|v| v == "1")
}
