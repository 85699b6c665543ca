//! Programs that compute lazy expressions, compiled once for each structure.
//!
//! Constants and extents of an expression may be others each time: a learning rate that falls, a cache that grows. A first
//! program has them as literals, so that they fold and simplify. Where the same structure comes with others, a second one
//! is compiled that is given those which differed at each run: constants as [`tallow_ir::Op::Scalar`], extents as symbols
//! ([`tallow_ir::generalize()`]). It serves whatever they become, as far as its guards hold, which are checked at each run.

mod family;
mod instance;
mod program;
mod recorded;

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use foldhash::fast::RandomState;
use indexmap::IndexMap;
use tallow_ir::Scalar;

use self::family::Family;
pub(crate) use self::instance::Instance;
pub(crate) use self::program::Program;
use self::recorded::{Lowered, Recorded};
use crate::blocks::Blocks;
use crate::device::Device;
use crate::dynamic::Dynamic;
use crate::error::Result;
use crate::tensor::Tensor;

/// How many programs are kept: more than an eager program has steps, since one that has more than are kept, in a loop, would
/// compile each of them again each time.
const CACHED: usize = 1024;

/// A structure, and the programs of its instances.
struct Entry {
    device: Device,
    recorded: Recorded,
    /// The weights that are bound. While the executable is kept, so are they.
    blocks: Vec<Arc<Blocks>>,
    family: Arc<Family>,
    /// The number of the last search that found it.
    used: u64,
}

impl Entry {
    /// Whether it is that of an instance on a device.
    fn is_of(&self, device: &Device, instance: &Instance) -> bool {
        let is_same = |(a, b): (&Arc<Blocks>, &Arc<Blocks>)| Arc::ptr_eq(a, b);
        // A Vulkan device is given the weights of each run.
        let binds = device.is_cpu();
        self.device == *device
            && (!binds || self.blocks.iter().zip(instance.blocks().map(|(_, blocks)| blocks)).all(is_same))
            && self.recorded.matches(instance)
    }
}

/// By the hash of their structure.
#[derive(Default)]
struct ProgramCache {
    entries: IndexMap<u64, Vec<Entry>, RandomState>,
    searches: u64,
}

fn cache() -> MutexGuard<'static, ProgramCache> {
    static CACHE: OnceLock<Mutex<ProgramCache>> = OnceLock::new();
    lock(CACHE.get_or_init(|| {
        #[cfg(feature = "vulkan")]
        crate::vulkan::when_unused(forget);
        Mutex::default()
    }))
}

/// Drops the programs of a device that nobody uses any more, and with them the device.
#[cfg(feature = "vulkan")]
fn forget(device: &crate::vulkan::VulkanDevice) {
    let is_on_device = |entry: &mut Entry| matches!(&entry.device, Device::Vulkan(of) if of == device);
    let mut forgotten = vec![];
    cache().entries.retain(|_, entries| {
        forgotten.extend(entries.extract_if(.., is_on_device));
        !entries.is_empty()
    });
    // Without the lock: dropping waits for the device.
    drop(forgotten);
}

/// What is known of a structure.
pub(crate) enum Lookup {
    Program(Arc<Program>),
    Missing(Box<Missing>),
}

/// A program to be compiled.
pub(crate) struct Missing {
    /// The programs of its structure, of which none serves.
    family: Arc<Family>,
    lowered: Lowered,
    integers: Vec<i64>,
    scalars: Vec<Scalar>,
    blocks: Vec<(Tensor, Arc<Blocks>)>,
}

impl Missing {
    /// Compiles it and keeps it with its family. If another thread compiles the same, both serve.
    pub fn compile(self, device: &Device) -> Result<Arc<Program>> {
        let Missing { family, lowered, integers, scalars, blocks } = self;
        // The interpreter chooses no kernels.
        let caps = match device {
            Device::Cpu => None,
            #[cfg(feature = "vulkan")]
            Device::Vulkan(vulkan) => Some(vulkan.caps()),
        };
        let next = |is_dynamic| {
            let next = family.next(&lowered, &integers, &scalars, is_dynamic)?;
            match caps {
                Some(caps) => next.fitted(&integers, caps),
                None => Ok(next),
            }
        };
        let compile = |next: &family::Next| {
            device.dynamics().count();
            Program::new(device, &next.graph, &next.extents(), &blocks, next.note())
        };
        let mut what = next(device.dynamics().get() == Dynamic::Auto)?;
        let program = match compile(&what) {
            Err(error) if what.is_general() => {
                tracing::debug!("compiled again with numbers as extents: {error}");
                family.refuse(&integers);
                what = next(false)?;
                compile(&what)?
            }
            done => done?,
        };
        let program = Arc::new(program);
        family.add(what, integers, program.clone());
        Ok(program)
    }
}

/// The program of an instance on a device, if it is compiled; the instance is given the values of its symbols then. None
/// where another thread computed a part of it meanwhile.
///
/// # Errors
/// When the instance is no graph.
pub(crate) fn find(device: &Device, instance: &mut Instance) -> Result<Option<Lookup>> {
    let mut cache = cache();
    cache.searches += 1;
    let searches = cache.searches;
    let entries = cache.entries.get_mut(&instance.hash());
    let entry = entries.and_then(|all| all.iter_mut().find(|entry| entry.is_of(device, instance)));
    let (lowered, family) = match entry {
        Some(entry) => {
            entry.used = searches;
            if let Some(program) = entry.family.find(instance) {
                return Ok(Some(Lookup::Program(program)));
            }
            let Some(recorded) = Recorded::of(instance) else { return Ok(None) };
            (recorded.graph()?, entry.family.clone())
        }
        None => {
            let Some(recorded) = Recorded::of(instance) else { return Ok(None) };
            let (lowered, family) = (recorded.graph()?, Arc::<Family>::default());
            // On the CPU its weights are those that are read now.
            let bound = instance.blocks().filter(|_| device.is_cpu());
            let blocks = bound.map(|(_, blocks)| blocks.clone()).collect();
            let (device, used) = (device.for_cache(), searches);
            let entry = Entry { device, recorded, blocks, family: family.clone(), used };
            cache.entries.entry(instance.hash()).or_default().push(entry);
            (lowered, family)
        }
    };
    make_room(&mut cache, &family);
    drop(cache);
    Ok(Some(Lookup::Missing(Box::new(Missing {
        family,
        lowered,
        integers: instance.integers().to_vec(),
        scalars: instance.scalars().to_vec(),
        blocks: instance.blocks().map(|(tensor, blocks)| (tensor.clone(), blocks.clone())).collect(),
    }))))
}

/// Drops the programs that were unused for longest where one more of `family` is too many.
fn make_room(cache: &mut ProgramCache, family: &Arc<Family>) {
    // What cannot be compiled takes memory, too.
    let size = |entry: &Entry| entry.family.len().max(1);
    let mut count: usize = cache.entries.values().flatten().map(size).sum();
    while count >= CACHED {
        let others = cache.entries.values().flatten().filter(|entry| !Arc::ptr_eq(&entry.family, family));
        let Some(oldest) = others.map(|entry| entry.used).min() else { return family.shrink() };
        cache.entries.retain(|_, entries| {
            entries.retain(|entry| {
                let is_oldest = entry.used == oldest;
                count -= if is_oldest { size(entry) } else { 0 };
                !is_oldest
            });
            !entries.is_empty()
        });
    }
}

/// What a panicking thread left behind is still whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
