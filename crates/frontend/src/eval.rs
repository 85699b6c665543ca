//! Computing: the graph of what is not known yet is compiled, run, and replaced by its values.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use indexmap::IndexMap;
use tallow_ir::Graph;

use crate::device::Device;
use crate::error::{Error, Result};
use crate::executable::Executable;
use crate::lower::{KnownAs, Lowered, lower};
use crate::tensor::Tensor;

/// How many compiled graphs are kept for expressions of the same structure.
const CACHED: usize = 64;

/// Graphs of more nodes are compiled each time instead of being kept.
const CACHED_NODES: usize = 4096;

/// Computes several tensors at once: what they share is computed once, and independent parts of one plan
/// run side by side. Tensors whose value is known cost nothing.
///
/// # Errors
/// When they are on different devices, depend on an input of [`crate::compile`], or the device fails.
pub fn eval(tensors: &[&Tensor]) -> Result<()> {
    eval_for("eval", tensors)
}

pub(crate) fn eval_for(op: &'static str, tensors: &[&Tensor]) -> Result<()> {
    let mut roots: Vec<&Tensor> = Vec::new();
    for tensor in tensors {
        if tensor.data().is_none() && !roots.iter().any(|root| Arc::ptr_eq(&root.0, &tensor.0)) {
            roots.push(tensor);
        }
    }
    let Some(first) = roots.first() else { return Ok(()) };
    let device = first.device().clone();
    if let Some(other) = roots.iter().find(|t| *t.device() != device) {
        let (lhs, rhs) = (device.name(), other.device().name());
        return Err(Error::DeviceMismatch { op, lhs, rhs });
    }
    let Lowered { graph, known } = lower(op, "eval", &roots, KnownAs::Input, &[])?;
    let executable = compiled(&device, graph)?;
    let executable = lock(&executable);
    let inputs: Vec<(&str, &[u8])> =
        known.iter().map(|(n, _, bytes)| (n.as_str(), bytes.as_slice())).collect();
    let outputs = executable.run(&[], &inputs)?;
    for (root, output) in roots.iter().zip(outputs) {
        root.set_data(output.bytes);
    }
    Ok(())
}

/// What an executable is found by.
#[derive(PartialEq, Eq)]
struct Key {
    device: Device,
    graph: Graph,
}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // There are few devices; equality tells them apart.
        self.graph.hash(state);
    }
}

/// One run at a time: threads that compute the same structure at once wait for each other.
type Shared = Arc<Mutex<Executable>>;

/// The executable of a graph without weights and states, compiled or found.
fn compiled(device: &Device, graph: Graph) -> Result<Shared> {
    static CACHE: OnceLock<Mutex<IndexMap<Key, Shared>>> = OnceLock::new();
    let compile = |graph: &Graph| {
        let executable = device.compile(graph, &HashMap::new(), &HashMap::new())?;
        Ok(Arc::new(Mutex::new(executable)))
    };
    if graph.len() > CACHED_NODES {
        return compile(&graph);
    }
    let cache = CACHE.get_or_init(Mutex::default);
    let key = Key { device: device.clone(), graph };
    // Taken out and put back at the end: the first one is the one unused for longest.
    let found = lock(cache).shift_remove(&key);
    if let Some(found) = found {
        lock(cache).insert(key, found.clone());
        return Ok(found);
    }
    let executable = compile(&key.graph)?;
    let mut cache = lock(cache);
    while cache.len() >= CACHED {
        cache.shift_remove_index(0);
    }
    cache.insert(key, executable.clone());
    Ok(executable)
}

/// What a panicking thread left behind is still whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Tensor {
    /// The value's bytes, computed if need be.
    pub(crate) fn bytes(&self, op: &'static str) -> Result<Arc<Vec<u8>>> {
        eval_for(op, &[self])?;
        self.data().ok_or_else(|| Error::Invalid { graph: op.into(), why: "it gave no value".into() })
    }

    /// What computing this tensor would run, as text; computes nothing.
    ///
    /// # Errors
    /// When the tensor depends on an input of [`crate::compile`], or the device fails.
    pub fn explain(&self) -> Result<String> {
        if self.data().is_some() {
            return Ok(format!("{self:?} is known, nothing runs\n"));
        }
        let lowered = lower("explain", "eval", &[self], KnownAs::Input, &[])?;
        let executable = compiled(self.device(), lowered.graph)?;
        Ok(lock(&executable).explain())
    }
}
