//! Computing: the graph of what is not known yet is compiled, run, and replaced by its values.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use indexmap::IndexMap;
use tallow_ir::Graph;

use crate::device::Device;
use crate::error::{Error, Result};
use crate::executable::Executable;
use crate::lower::{KnownAs, Lowered, address, lower, pending};
use crate::quantized::Blocks;
use crate::tensor::{Expr, Tensor};

/// How many compiled graphs are kept for expressions of the same structure.
const CACHED: usize = 64;

/// Expressions of more steps are computed piece by piece.
const PIECE: usize = 1024;

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
        let executable = compiled(&device, graph, blocks)?;
        let inputs: Vec<(&str, &[u8])> =
            known.iter().map(|(n, _, bytes)| (n.as_str(), bytes.as_slice())).collect();
        let outputs = lock(&executable).run(&[], &inputs)?;
        for (target, output) in targets.iter().zip(outputs) {
            target.set_data(output.bytes);
        }
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

/// Cuts `order`, in which operands come first, into pieces of [`PIECE`] steps, and names what each piece must
/// leave behind: what later pieces read, and the `roots`.
///
/// Few programs are so large, and nothing is gained by compiling as one what no device runs as one. A loop
/// that was never forced gives many pieces of one structure, of which one is compiled.
fn pieces<'a>(order: &'a [Tensor], roots: &[&Tensor]) -> Vec<Vec<&'a Tensor>> {
    let index: HashMap<_, usize> = order.iter().map(address).zip(0..).collect();
    let mut kept = vec![false; order.len()];
    let is_read = |at: usize, by: usize| at / PIECE != by / PIECE;
    for (by, tensor) in order.iter().enumerate() {
        if let Expr::Op(_, operands, _) = &*tensor.expr() {
            let found = operands.iter().filter_map(|o| index.get(&address(o)));
            found.filter(|at| is_read(**at, by)).for_each(|at| kept[*at] = true);
        }
    }
    roots.iter().filter_map(|root| index.get(&address(root))).for_each(|at| kept[*at] = true);
    let keep = |piece: &'a [Tensor], kept: &[bool]| {
        piece.iter().zip(kept).filter(|(_, kept)| **kept).map(|(tensor, _)| tensor).collect()
    };
    let all = order.chunks(PIECE).zip(kept.chunks(PIECE)).map(|(piece, kept)| keep(piece, kept));
    all.filter(|piece: &Vec<_>| !piece.is_empty()).collect()
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

/// One run at a time: threads that compute the same structure at once wait for each other.
type Shared = Arc<Mutex<Executable>>;

/// The executable of a graph without states whose weights are these blocks, compiled or found.
fn compiled(device: &Device, graph: Graph, blocks: Vec<(String, Tensor, Arc<Blocks>)>) -> Result<Shared> {
    static CACHE: OnceLock<Mutex<IndexMap<Key, Shared>>> = OnceLock::new();
    let cache = CACHE.get_or_init(Mutex::default);
    let same = blocks.iter().map(|(_, _, blocks)| ByAddress(blocks.clone())).collect();
    let key = Key { device: device.clone(), graph, blocks: same };
    // Taken out and put back at the end: the first one is the one unused for longest.
    let found = lock(cache).shift_remove(&key);
    if let Some(found) = found {
        lock(cache).insert(key, found.clone());
        return Ok(found);
    }
    let mut weights = HashMap::new();
    for (name, tensor, blocks) in blocks {
        weights.insert(name, blocks.weight(&tensor)?);
    }
    let executable = device.compile(&key.graph, &weights, &HashMap::new())?;
    let executable = Arc::new(Mutex::new(executable));
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
        if self.is_known() {
            return Ok(format!("{self:?} is known, nothing runs\n"));
        }
        let order = pending("explain", &[self])?;
        let pieces = pieces(&order, &[self]);
        let first = pieces.first().map_or(&[][..], Vec::as_slice);
        let lowered = lower("explain", "eval", first, KnownAs::Input, &[])?;
        let executable = compiled(self.device(), lowered.graph, lowered.blocks)?;
        let plan = lock(&executable).explain();
        match pieces.len() {
            1 => Ok(plan),
            n => Ok(format!("{} steps, computed in {n} pieces, of which the first is:\n{plan}", order.len())),
        }
    }
}
