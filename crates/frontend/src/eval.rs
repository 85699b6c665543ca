//! Computing: the graph of what is not known yet is compiled, run, and replaced by its values.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use indexmap::IndexMap;
#[cfg(feature = "vulkan")]
use tallow_ir::Bindings;
use tallow_ir::Graph;

use crate::device::Device;
use crate::error::{Error, Result};
use crate::executable::Executable;
#[cfg(feature = "vulkan")]
use crate::executable::verified;
use crate::lower::{KnownAs, Lowered, lower, pending};
use crate::pieces::pieces;
use crate::quantized::Blocks;
use crate::tensor::{Expr, Tensor};

/// How many compiled graphs are kept for expressions of the same structure.
const CACHED: usize = 64;

/// Computes several tensors at once: what they share is computed once, and independent parts of one plan
/// run side by side. Tensors whose value is known cost nothing.
///
/// # Errors
/// When they are on different devices, depend on an input of [`crate::compile`], or the device fails.
pub fn eval(tensors: &[&Tensor]) -> Result<()> {
    eval_for("eval", tensors)
}

pub(crate) fn eval_for(op: &'static str, tensors: &[&Tensor]) -> Result<()> {
    let Some(device) = common_device(op, tensors)? else { return Ok(()) };
    let order = pending(op, tensors)?;
    for targets in pieces(&order, tensors) {
        let Lowered { graph, known, blocks } = lower(op, "eval", &targets, KnownAs::Input, &[])?;
        compiled(&device, graph, &blocks)?.run(&targets, &known, &blocks)?;
    }
    Ok(())
}

/// The device of the tensors whose value is not known; `None` if there are none.
fn common_device(op: &'static str, tensors: &[&Tensor]) -> Result<Option<Device>> {
    let mut lazy = tensors.iter().filter(|t| !t.is_known()).map(|t| t.device());
    let Some(device) = lazy.next() else { return Ok(None) };
    match lazy.find(|other| *other != device) {
        Some(other) => Err(Error::DeviceMismatchBinaryOp { op, lhs: device.name(), rhs: other.name() }),
        None => Ok(Some(device.clone())),
    }
}

/// What an executable is found by.
#[derive(PartialEq, Eq)]
struct Key {
    device: Device,
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
enum Program {
    /// One run at a time: threads that compute the same structure at once wait for each other.
    Cpu(Mutex<Executable>),
    /// Runs are appended to the device's stream.
    #[cfg(feature = "vulkan")]
    Vulkan(crate::vulkan::LazyPlan),
}

/// Names and tensors of leaves.
type Leaves = [(String, Tensor)];
/// Names, tensors and data of leaves that stay on the device.
type BlockLeaves = [(String, Tensor, Arc<Blocks>)];

impl Program {
    fn new(device: &Device, graph: &Graph, blocks: &BlockLeaves) -> Result<Program> {
        match device {
            Device::Cpu => {
                let mut weights = HashMap::new();
                for (name, tensor, blocks) in blocks {
                    weights.insert(name.clone(), blocks.weight(tensor)?);
                }
                Ok(Program::Cpu(Mutex::new(device.compile(graph, &weights, &HashMap::new())?)))
            }
            #[cfg(feature = "vulkan")]
            Device::Vulkan(device) => Ok(Program::Vulkan(device.lazy_plan(&verified(graph)?)?)),
        }
    }

    /// Computes `targets` from leaves and gives them their values.
    fn run(&self, targets: &[&Tensor], known: &Leaves, blocks: &BlockLeaves) -> Result<()> {
        match self {
            Program::Cpu(executable) => {
                let mut bytes = vec![];
                for (name, tensor) in known {
                    bytes.push((name.as_str(), tensor.known_bytes()?));
                }
                let inputs: Vec<(&str, &[u8])> =
                    bytes.iter().map(|(name, bytes)| (*name, bytes.as_slice())).collect();
                let outputs = lock(executable).run(&[], &inputs)?;
                for (target, output) in targets.iter().zip(outputs) {
                    target.set_data(output.bytes);
                }
            }
            #[cfg(feature = "vulkan")]
            Program::Vulkan(plan) => {
                let mut operands = tallow_runtime::lazy::Operands::default();
                for (name, tensor) in known {
                    operands.inputs.push((name, tensor.on_device()?.value().clone()));
                }
                for (name, tensor, blocks) in blocks {
                    let weight = blocks.weight(tensor)?;
                    let weight = weight.on_vulkan().ok_or_else(|| no_value("eval"))?.clone();
                    operands.weights.push((name, weight));
                }
                for (target, value) in targets.iter().zip(plan.run(&Bindings::new(), &operands)?) {
                    target.set_on_device(value);
                }
            }
        }
        Ok(())
    }

    fn explain(&self) -> String {
        match self {
            Program::Cpu(executable) => lock(executable).explain(),
            #[cfg(feature = "vulkan")]
            Program::Vulkan(plan) => plan.explain(),
        }
    }
}

fn no_value(op: &str) -> Error {
    Error::Invalid { graph: op.into(), why: "it gave no value".into() }
}

/// The program of a graph without states, compiled or found. On the CPU its weights are these blocks.
fn compiled(device: &Device, graph: Graph, blocks: &BlockLeaves) -> Result<Arc<Program>> {
    static CACHE: OnceLock<Mutex<IndexMap<Key, Arc<Program>>>> = OnceLock::new();
    let cache = CACHE.get_or_init(Mutex::default);
    // A Vulkan device is given the weights of each run.
    let bound = if device.is_cpu() { blocks } else { &[] };
    let same = bound.iter().map(|(_, _, blocks)| ByAddress(blocks.clone())).collect();
    let key = Key { device: device.clone(), graph, blocks: same };
    // Taken out and put back at the end: the first one is the one unused for longest.
    let found = lock(cache).shift_remove(&key);
    if let Some(found) = found {
        lock(cache).insert(key, found.clone());
        return Ok(found);
    }
    let program = Arc::new(Program::new(device, &key.graph, blocks)?);
    let mut cache = lock(cache);
    while cache.len() >= CACHED {
        cache.shift_remove_index(0);
    }
    cache.insert(key, program.clone());
    Ok(program)
}

/// What a panicking thread left behind is still whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Tensor {
    /// The value's bytes, computed if need be.
    pub(crate) fn bytes(&self, op: &'static str) -> Result<Arc<Vec<u8>>> {
        eval_for(op, &[self])?;
        self.host_bytes()?.ok_or_else(|| no_value(op))
    }

    /// The bytes of a value that is known.
    fn known_bytes(&self) -> Result<Arc<Vec<u8>>> {
        self.host_bytes()?.ok_or_else(|| no_value("eval"))
    }

    /// A known value, on the tensor's Vulkan device. What the host has is uploaded, and from then on the device has it.
    #[cfg(feature = "vulkan")]
    pub(crate) fn on_device(&self) -> Result<crate::values::OnDevice> {
        let Device::Vulkan(device) = self.device() else { return Err(no_value("eval")) };
        let expr = self.expr().clone();
        match expr {
            Expr::Device(value) => Ok(value),
            Expr::Data(bytes) => {
                let value = device.upload(&bytes)?;
                self.set(Expr::Device(value.clone()));
                Ok(value)
            }
            Expr::Blocks(blocks) if self.dtype().size().is_some() => {
                let weight = blocks.weight(self)?;
                let weight = weight.on_vulkan().ok_or_else(|| no_value("eval"))?;
                Ok(device.value_of(weight))
            }
            Expr::Blocks(_) | Expr::Op(..) | Expr::Input(_) => Err(no_value("eval")),
        }
    }

    /// Replaces the expression by its value on the device.
    #[cfg(feature = "vulkan")]
    fn set_on_device(&self, value: crate::values::OnDevice) {
        self.set(match self.dtype() {
            tallow_ir::DType::Block(_) => {
                let weight = crate::resident::Weight::of_value(self.ty(), value.value().clone());
                Expr::Blocks(Arc::new(Blocks::of_weight(weight)))
            }
            _ => Expr::Device(value),
        });
    }

    /// A known value as a constant on its device, without a copy where it is there.
    pub(crate) fn as_weight(&self) -> Result<crate::resident::Weight> {
        match self.device() {
            Device::Cpu => self.device().weight(self.dtype(), self.dims()?, &self.known_bytes()?),
            #[cfg(feature = "vulkan")]
            Device::Vulkan(_) => {
                let value = self.on_device()?;
                Ok(crate::resident::Weight::of_value(self.ty(), value.value().clone()))
            }
        }
    }

    /// What computing this tensor would run, as text; computes nothing.
    ///
    /// # Errors
    /// When the tensor depends on an input of [`crate::compile`], or the device fails.
    pub fn explain(&self) -> Result<String> {
        if self.is_known() {
            return Ok(format!("{self:?} is known, nothing runs\n"));
        }
        let order = pending("explain", &[self])?;
        let pieces = pieces(&order, &[self]);
        let first = pieces.first().map_or(&[][..], Vec::as_slice);
        let lowered = lower("explain", "eval", first, KnownAs::Input, &[])?;
        let plan = compiled(self.device(), lowered.graph, &lowered.blocks)?.explain();
        match pieces.len() {
            1 => Ok(plan),
            n => Ok(format!("{} steps, computed in {n} pieces, of which the first is:\n{plan}", order.len())),
        }
    }
}
