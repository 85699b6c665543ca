//! Programs that compute lazy expressions, compiled once for each structure.
//!
//! Constants and extents of an expression may be others each time: a learning rate that falls, a cache that grows. A first
//! program has them as literals, so that they fold and simplify. Where the same structure comes with others, a second one
//! is compiled that is given those which differed at each run: constants as [`tallow_ir::Op::Scalar`], extents as symbols
//! ([`tallow_ir::generalize()`]). It serves whatever they become, as far as its guards hold, which are checked at each run.

mod family;
mod program;

use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use foldhash::fast::RandomState;
use indexmap::IndexMap;
use tallow_ir::{Graph, Scalar, Structure, Symbol, structure};

use self::family::{Family, Found};
pub(crate) use self::program::Program;
use crate::blocks::Blocks;
use crate::device::Device;
use crate::dynamic::Dynamic;
use crate::error::Result;
use crate::lower::Lowered;
use crate::tensor::Tensor;

/// How many programs are kept: more than an eager program has steps, since one that has more than are kept, in a loop, would
/// compile each of them again each time.
const CACHED: usize = 1024;

/// What a program is found by.
#[derive(PartialEq, Eq)]
struct Key {
    device: Device,
    /// Its constants are [`tallow_ir::Op::Scalar`]s, so that structures are equal whose constants differ.
    structure: Structure,
    /// The weights that are bound. While the executable is kept, so are they.
    blocks: Vec<ByAddress>,
}

/// Blocks are equal if they are the same.
struct ByAddress(Arc<Blocks>);

impl PartialEq for ByAddress {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for ByAddress {}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // There are few devices; equality tells them apart.
        self.structure.hash(state);
    }
}

/// Whole graphs are hashed.
type ProgramCache = IndexMap<Key, Arc<Family>, RandomState>;

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
    let is_on_device = |key: &Key| matches!(&key.device, Device::Vulkan(of) if of == device);
    let forgotten: Vec<_> = cache().extract_if(.., |key, _| is_on_device(key)).collect();
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
    graph: Graph,
    integers: Vec<i64>,
    scalars: Vec<(Symbol, Scalar)>,
    blocks: Vec<(String, Tensor, Arc<Blocks>)>,
}

impl Missing {
    /// Compiles it and keeps it with its family. If another thread compiles the same, both serve.
    pub fn compile(self, device: &Device) -> Result<Arc<Program>> {
        let Missing { family, graph, integers, scalars, blocks } = self;
        let next = |is_dynamic| family.next(&graph, &integers, &scalars, is_dynamic);
        let compile = |next: &family::Next| {
            device.dynamics().count();
            Program::new(device, &next.graph, &blocks, next.note.clone())
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

/// The program of what was lowered for a device, if it is compiled; takes the graph, and notes the values of symbols of
/// extents. On the CPU its weights are those that are read now.
pub(crate) fn find(device: &Device, lowered: &mut Lowered) -> Lookup {
    let graph = std::mem::replace(&mut lowered.graph, Graph::new(""));
    let integers: Vec<i64> = structure::integers(&graph).collect();
    // A Vulkan device is given the weights of each run.
    let bound = if device.is_cpu() { lowered.blocks.as_slice() } else { &[] };
    let blocks = bound.iter().map(|(_, _, blocks)| ByAddress(blocks.clone())).collect();
    let key = Key { device: device.for_cache(), structure: Structure(graph), blocks };
    let mut cache = cache();
    // Taken out and put back at the end: the first one is the one unused for longest.
    let family = cache.shift_remove(&key).unwrap_or_default();
    let found = match family.find(&integers, lowered) {
        Some(Found { program, extents }) => {
            lowered.extents = extents;
            Lookup::Program(program)
        }
        None => Lookup::Missing(Box::new(Missing {
            family: family.clone(),
            graph: key.structure.0.clone(),
            integers,
            scalars: lowered.scalars.clone(),
            blocks: lowered.blocks.clone(),
        })),
    };
    if matches!(found, Lookup::Missing(_)) {
        make_room(&mut cache, &family);
    }
    cache.insert(key, family);
    found
}

/// Drops the programs that were unused for longest where one more of `family` is too many.
fn make_room(cache: &mut ProgramCache, family: &Family) {
    let mut count: usize = cache.values().map(|family| family.len()).sum();
    while count + family.len() >= CACHED {
        match cache.shift_remove_index(0) {
            Some((_, oldest)) => count -= oldest.len(),
            None => return family.shrink(),
        }
    }
}

/// What a panicking thread left behind is still whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
