//! What the autotuner of a device knows: its results, what could not be measured, and its budget. [`tune`](crate::tune)
//! measures.

mod store;

use std::collections::HashSet;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tallow_codegen::Schedule;

use self::store::Store;
pub(crate) use self::store::{Device, Entry};

/// Tuning results of a context's device.
pub struct Tuner {
    pub(crate) store: Mutex<Store>,
    /// Locked while kernels are timed, which others would disturb. No holder may wait for rayon: a waiting rayon thread
    /// runs other tasks, perhaps one that needs the same lock.
    pub(crate) timing: Mutex<()>,
    /// Classes that could not be measured; this process does not retry them.
    pub(crate) refused: Mutex<HashSet<String>>,
    pub(crate) measured: AtomicU64,
    pub(crate) limits: Limits,
}

/// Budget for tuning one fusion.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Maximum kernels to try.
    pub tried: usize,
    /// Time limit; no further kernel starts after it.
    pub time: Duration,
    /// Total bytes of all copies of operands and results, more than any cache holds.
    pub rotated: u64,
    /// Maximum bytes of one copy; a fusion that needs more is not measured.
    pub largest: u64,
}

impl Default for Limits {
    /// GPU caches hold up to 256 MiB. Three seconds are for slow devices: kernels of a GPU take milliseconds at most.
    fn default() -> Self {
        Limits { tried: 10, time: Duration::from_secs(3), rotated: 256 << 20, largest: 2 << 30 }
    }
}

impl Tuner {
    /// A tuner for `device`, with its file below `dir`. Without a directory, results last only as long as the tuner.
    pub(crate) fn open(dir: Option<&Path>, device: &Device) -> Tuner {
        let store = Mutex::new(Store::open(dir, device));
        let (timing, refused) = (Mutex::new(()), Mutex::default());
        Tuner { store, timing, refused, measured: AtomicU64::new(0), limits: Limits::default() }
    }

    /// Number of fusions that were measured so far, not found in the store.
    pub fn measured(&self) -> u64 {
        self.measured.load(Ordering::Relaxed)
    }

    /// The stored schedule of a class. The default if it is not in `schedules`: it was measured for other extents of
    /// the class, and may not be a candidate here.
    pub(crate) fn known(&self, class: &str, schedules: &[Schedule]) -> Option<Schedule> {
        let store = lock(&self.store);
        let stored = store.get(class)?;
        let stored = |schedule: &&Schedule| schedule.to_string() == stored.schedule;
        schedules.iter().find(stored).or(schedules.first()).copied()
    }
}

/// Locks data that stays valid when a holder panics: each holder changes it by one call.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
