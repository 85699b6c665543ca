//! Programs that compute lazy expressions, compiled once for each structure.
//!
//! Constants of an expression may be others each time: a learning rate that falls, a temperature. A first program has them
//! as literals, so that they fold and simplify. Where the same structure comes with other constants, a second one is
//! compiled that is given those which differed at each run ([`Op::Scalar`]), and serves whatever they become.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use foldhash::fast::RandomState;
use indexmap::IndexMap;
#[cfg(feature = "vulkan")]
use tallow_ir::Bindings;
use tallow_ir::{Graph, Op, Scalar, Symbol, rewrite::rebuild};

use crate::blocks::Blocks;
use crate::device::Device;
#[cfg(feature = "vulkan")]
use crate::donate::{Holders, is_worthwhile};
use crate::error::Result;
#[cfg(feature = "vulkan")]
use crate::error::no_value;
#[cfg(feature = "vulkan")]
use crate::executable::verified;
use crate::executable::{Executable, Prepared};
use crate::lower::Lowered;
use crate::tensor::Tensor;

/// How many structures are kept: more than an eager program has steps, since one that has more than are kept, in a loop, would
/// compile each of them again each time.
const CACHED: usize = 1024;

/// So many programs of one structure at most keep some constants as literals; the next one is given all.
const SPECIAL: usize = 4;

/// What a program is found by.
#[derive(PartialEq, Eq)]
struct Key {
    device: Device,
    /// Its constants are [`Op::Scalar`]s, so that structures are equal whose constants differ.
    graph: Graph,
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
        self.graph.hash(state);
    }
}

/// What computes the expressions of one structure.
pub(crate) enum Program {
    /// One run at a time: threads that compute the same structure at once wait for each other.
    Cpu(Mutex<Executable>),
    /// Runs are appended to the device's stream.
    #[cfg(feature = "vulkan")]
    Vulkan(crate::vulkan::LazyPlan),
}

impl Program {
    fn new(device: &Device, graph: &Graph, blocks: &[(String, Tensor, Arc<Blocks>)]) -> Result<Program> {
        match device {
            Device::Cpu => {
                let mut weights = HashMap::new();
                for (name, tensor, blocks) in blocks {
                    weights.insert(
                        name.clone(),
                        blocks.weight(tensor.device(), tensor.dtype(), tensor.const_dims()?)?,
                    );
                }
                Ok(Program::Cpu(Mutex::new(Prepared::new(device, graph)?.bind_values(&weights)?)))
            }
            #[cfg(feature = "vulkan")]
            Device::Vulkan(device) => Ok(Program::Vulkan(device.for_cache().lazy_plan(&verified(graph)?)?)),
        }
    }

    /// Computes `targets`, the outputs of what they were lowered to, and gives them their values. `order` are the steps of
    /// the evaluation, of which they are some.
    pub fn run(&self, order: &[Tensor], targets: &[&Tensor], lowered: &Lowered) -> Result<()> {
        let Lowered { known, states, .. } = lowered;
        match self {
            Program::Cpu(executable) => {
                let mut bytes = vec![];
                for (name, tensor) in known {
                    bytes.push((name.as_str(), tensor.known_bytes()?));
                }
                let inputs: Vec<(&str, &[u8])> =
                    bytes.iter().map(|(name, bytes)| (*name, bytes.as_slice())).collect();
                let symbols: Vec<(&str, u64)> = given(lowered).collect();
                let mut versions = Vec::with_capacity(states.len());
                for (name, tensor) in states {
                    versions.push((name.as_str(), tensor.known_bytes()?));
                }
                let outputs = lock(executable).run_values(&symbols, &inputs, &mut versions)?;
                for (target, output) in targets.iter().zip(outputs) {
                    target.set_data(output.bytes);
                }
            }
            #[cfg(feature = "vulkan")]
            Program::Vulkan(plan) => {
                for (target, value) in targets.iter().zip(run(plan, order, targets, lowered)?) {
                    target.set_on_device(value);
                }
            }
        }
        Ok(())
    }

    pub fn explain(&self) -> String {
        match self {
            Program::Cpu(executable) => lock(executable).explain(),
            #[cfg(feature = "vulkan")]
            Program::Vulkan(plan) => plan.explain(),
        }
    }
}

/// Runs a plan. Values that nobody needs any more are given away; states that somebody needs are copied.
#[cfg(feature = "vulkan")]
fn run(
    plan: &crate::vulkan::LazyPlan,
    order: &[Tensor],
    targets: &[&Tensor],
    lowered: &Lowered,
) -> Result<Vec<crate::values::OnDevice>> {
    let Lowered { known, blocks, states, .. } = lowered;
    let donates = plan.takes_donations() && is_worthwhile(lowered);
    let (mut donated, mut versions) = (vec![], vec![]);
    if donates || !states.is_empty() {
        // Uploaded first, as only what is on the device can be given away.
        for (_, tensor) in known.iter().chain(states) {
            tensor.on_device()?;
        }
        let holders = Holders::of(order, targets, lowered);
        if donates {
            donated = holders.inputs(lowered);
        }
        for (at, (_, tensor)) in states.iter().enumerate() {
            // Before the value is taken, which is a holder too.
            let is_free = holders.state(lowered, at);
            let value = tensor.on_device()?;
            versions.push(if is_free { value } else { value.copy()? });
        }
    }
    let mut inputs = vec![];
    for (_, tensor) in known {
        inputs.push(tensor.on_device()?.value().clone());
    }
    let mut weights = vec![];
    for (name, tensor, blocks) in blocks {
        let weight = blocks.weight(tensor.device(), tensor.dtype(), tensor.const_dims()?)?;
        weights.push((name.as_str(), weight.on_vulkan().ok_or_else(|| no_value("eval"))?.clone()));
    }
    let weights = weights.iter().map(|(name, weight)| (*name, weight)).collect();
    let mut memory = plan.memory(&names(known), &weights, &names(states))?;
    for (at, value) in versions.iter().enumerate() {
        memory.set_state(at, value.value());
    }
    let bindings: Bindings = given(lowered).map(|(name, value)| (name.to_string(), value)).collect();
    plan.run(&bindings, &memory, &inputs, &donated)
}

#[cfg(feature = "vulkan")]
fn names(operands: &[(String, Tensor)]) -> Vec<&str> {
    operands.iter().map(|(name, _)| name.as_str()).collect()
}

/// The values of the symbols of a run.
fn given(lowered: &Lowered) -> impl Iterator<Item = (&str, u64)> {
    let scalars = lowered.scalars.iter().map(|(symbol, scalar)| (symbol.name(), bits(*scalar)));
    scalars.chain(lowered.offsets.iter().map(|(symbol, value)| (symbol.name(), *value)))
}

/// The 32 bits of a scalar, as the value of its symbol.
fn bits(scalar: Scalar) -> u64 {
    u64::from((scalar.as_f64() as f32).to_bits())
}

/// The programs of one structure.
#[derive(Default)]
struct Family {
    programs: Mutex<Vec<Special>>,
}

/// A program, and the constants that it has as literals.
struct Special {
    literals: Vec<Option<Scalar>>,
    program: Arc<Program>,
}

impl Special {
    fn serves(&self, scalars: &[(Symbol, Scalar)]) -> bool {
        let serves = |(literal, (_, scalar)): (&Option<Scalar>, &(Symbol, Scalar))| {
            literal.is_none_or(|literal| literal == *scalar)
        };
        self.literals.iter().zip(scalars).all(serves)
    }
}

/// Which constants the next program has as literals: those that are as in the last one.
fn literals(programs: &[Special], scalars: &[(Symbol, Scalar)]) -> Vec<Option<Scalar>> {
    let all = scalars.iter().map(|(_, scalar)| Some(*scalar));
    match programs.last() {
        None => all.collect(),
        Some(_) if programs.len() >= SPECIAL => vec![None; scalars.len()],
        Some(last) => all.zip(&last.literals).map(|(now, before)| now.filter(|_| now == *before)).collect(),
    }
}

/// The graph with these constants as literals.
fn with_literals(graph: &Graph, scalars: &[(Symbol, Scalar)], literals: &[Option<Scalar>]) -> Result<Graph> {
    let known: HashMap<&Symbol, Scalar> = scalars
        .iter()
        .zip(literals)
        .filter_map(|((symbol, _), literal)| literal.map(|literal| (symbol, literal)))
        .collect();
    Ok(rebuild(graph, |new, node, _| match &node.op {
        Op::Scalar { symbol, .. } => match known.get(symbol) {
            Some(literal) => new.add(Op::Const(*literal), &[]).map(Some),
            None => Ok(None),
        },
        _ => Ok(None),
    })?)
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
    scalars: Vec<(Symbol, Scalar)>,
    literals: Vec<Option<Scalar>>,
    blocks: Vec<(String, Tensor, Arc<Blocks>)>,
}

impl Missing {
    /// Compiles it and keeps it with its family. If another thread compiles the same, both serve.
    pub fn compile(self, device: &Device) -> Result<Arc<Program>> {
        let Missing { family, graph, scalars, literals, blocks } = self;
        let graph = with_literals(&graph, &scalars, &literals)?;
        let program = Arc::new(Program::new(device, &graph, &blocks)?);
        lock(&family.programs).push(Special { literals, program: program.clone() });
        Ok(program)
    }
}

/// The program of what was lowered for a device, if it is compiled; takes the graph. On the CPU its weights are those that
/// are read now.
pub(crate) fn find(device: &Device, lowered: &mut Lowered) -> Lookup {
    let graph = std::mem::replace(&mut lowered.graph, Graph::new(""));
    // A Vulkan device is given the weights of each run.
    let bound = if device.is_cpu() { lowered.blocks.as_slice() } else { &[] };
    let blocks = bound.iter().map(|(_, _, blocks)| ByAddress(blocks.clone())).collect();
    let key = Key { device: device.for_cache(), graph, blocks };
    let mut cache = cache();
    // Taken out and put back at the end: the first one is the one unused for longest.
    let family = cache.shift_remove(&key).unwrap_or_default();
    let programs = lock(&family.programs);
    let found = match programs.iter().find(|special| special.serves(&lowered.scalars)) {
        Some(found) => Lookup::Program(found.program.clone()),
        None => Lookup::Missing(Box::new(Missing {
            family: family.clone(),
            graph: key.graph.clone(),
            scalars: lowered.scalars.clone(),
            literals: literals(&programs, &lowered.scalars),
            blocks: lowered.blocks.clone(),
        })),
    };
    drop(programs);
    while cache.len() >= CACHED {
        cache.shift_remove_index(0);
    }
    cache.insert(key, family);
    found
}

/// What a panicking thread left behind is still whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
