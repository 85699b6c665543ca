//! Plans that are appended to the device's stream: inputs and results are device memory.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tallow_codegen::Module;
use tallow_ir::schedule::BufferKind;
use tallow_ir::{Bindings, TensorType};

use crate::error::{Error, ExecError};
use crate::executable::{Compiled, check_bindings, fill_table, record_spec};
use crate::resident::DeviceWeight;
pub use crate::value::DeviceValue;
use crate::vulkan::bound::Bound;
use crate::vulkan::replay::Replays;
use crate::vulkan::sequence::{Moves, Operand};
use crate::vulkan::{Block, Buffer, Sequence};

/// A compiled graph that can be appended to the stream any number of times.
pub struct Plan {
    compiled: Compiled,
    sequence: Sequence,
    replays: Mutex<Replays>,
    /// Scratch memory that persists between runs, by program buffer.
    scratch: HashMap<usize, Arc<Buffer>>,
    codebooks: Option<Arc<Buffer>>,
    /// Addresses of the blocks that the last run took, windows first: a run over the same memory need not be recorded.
    taken: Mutex<Vec<usize>>,
}

/// Operands of a run of a [`Plan`], by name.
#[derive(Default)]
pub struct Operands<'a> {
    /// Inputs.
    pub inputs: Vec<(&'a str, DeviceValue)>,
    /// Weights, of which there may be hundreds.
    pub weights: HashMap<&'a str, DeviceWeight>,
    /// Indices of inputs without other owners: results may reuse their memory (donation).
    pub donated: Vec<usize>,
    /// States, which the run may write. Those that it writes must have no other owner.
    pub states: Vec<(&'a str, DeviceValue)>,
}

/// Values of inputs and states by name.
type Given<'a> = [HashMap<&'a str, &'a DeviceValue>; 2];

impl Plan {
    /// Prepares a compiled graph.
    ///
    /// # Errors
    /// When memory runs out or the device fails.
    pub fn new(compiled: Compiled) -> Result<Plan, ExecError> {
        let (context, module) = (compiled.context().clone(), compiled.module());
        let buffers = &module.program.buffers;
        let operands: Vec<Operand> = buffers
            .iter()
            .map(|buffer| Operand { bytes: buffer.bytes.max(1), moves: moves(buffer.kind) })
            .collect();
        let exact = module.symbols.is_empty();
        let sequence =
            Sequence::new(context.caps(), &record_spec(module), compiled.pipelines(), &operands, exact)?;
        let mut scratch = HashMap::new();
        for (number, buffer) in buffers.iter().enumerate() {
            if let BufferKind::Scratch { fill } = buffer.kind {
                scratch.insert(number, context.filled(buffer.bytes, fill)?);
            }
        }
        let codebooks = match buffers.iter().any(|buffer| buffer.kind == BufferKind::Codebooks) {
            true => Some(context.codebooks()?),
            false => None,
        };
        Ok(Plan {
            compiled,
            sequence,
            replays: Mutex::default(),
            scratch,
            codebooks,
            taken: Mutex::default(),
        })
    }

    /// Whether results may overwrite donated inputs.
    pub fn takes_donations(&self) -> bool {
        !self.compiled.module().donations.is_empty()
    }

    /// The compiled graph.
    pub fn compiled(&self) -> &Compiled {
        &self.compiled
    }

    /// Appends the plan to the device's stream and returns memory for its results, in the order of the graph's outputs.
    ///
    /// # Errors
    /// When an operand is missing or of another type, a symbol is out of range, memory runs out or the device failed.
    /// Nothing is computed then.
    pub fn run(&self, bindings: &Bindings, operands: &Operands<'_>) -> Result<Vec<DeviceValue>, ExecError> {
        let (context, module) = (self.compiled.context(), self.compiled.module());
        check_bindings(module, bindings)?;
        let mut table = vec![];
        if module.table_buffer.is_some() {
            fill_table(module, bindings, &mut table)?;
            // The shader declares the table in whole 16-byte vectors.
            table.resize(table.len().max(1).next_multiple_of(16), 0);
        }
        let wanted = std::mem::take(&mut *self.taken.lock().unwrap_or_else(PoisonError::into_inner));
        let mut wanted = wanted.into_iter();
        let mut taken = vec![];
        let mut block = |what, bytes| {
            let block = context.block_at(what, bytes, wanted.next())?;
            taken.push(block.address());
            Ok::<_, Error>(block)
        };
        let windows = module.plan.arena.windows.iter();
        let windows = windows.map(|bytes| block("intermediate values", (*bytes).max(16)));
        let windows = windows.collect::<Result<Vec<_>, _>>()?;
        let mut memory: Vec<Option<DeviceValue>> = vec![None; module.program.buffers.len()];
        // A training step has hundreds of states.
        let given: Given<'_> = [&operands.inputs, &operands.states]
            .map(|all| all.iter().map(|(name, value)| (*name, value)).collect());
        for (number, buffer) in module.program.buffers.iter().enumerate() {
            memory[number] = self.memory(number, buffer.kind, operands, &given)?;
        }
        let mut donated = Donated::of(module, operands);
        for output in &module.outputs {
            let is_made = matches!(module.program.buffers[output.buffer].kind, BufferKind::Output(_));
            if is_made && memory[output.buffer].is_none() {
                let bytes = bytes_of(&output.ty, bindings);
                memory[output.buffer] = match donated.take(module, output.buffer, bytes, &memory) {
                    Some(value) => Some(value),
                    None => Some(result(output, block("result", bytes))?),
                };
            }
        }
        *self.taken.lock().unwrap_or_else(PoisonError::into_inner) = taken;
        let slots = &module.plan.arena.slots;
        let places =
            memory.iter().zip(slots).enumerate().map(|(number, (memory, slot))| match (memory, slot) {
                _ if module.table_buffer == Some(number) => Bound::Table(&table),
                (Some(value), _) => value.bound(),
                (None, Some(slot)) => windows[slot.window].bound(slot.offset),
                // Unused.
                (None, None) => Bound::Table(&[]),
            });
        let places: Vec<_> = places.collect();
        context.append(&self.sequence, &self.replays, &places)?;
        drop(places);
        let value = |output: &tallow_codegen::Tensor| {
            let none = || leaf("output", &output.name, "has no memory");
            memory[output.buffer].clone().ok_or_else(none)
        };
        module.outputs.iter().map(value).collect()
    }

    /// The memory of a program buffer that exists before a run.
    fn memory(
        &self,
        number: usize,
        kind: BufferKind,
        operands: &Operands<'_>,
        [inputs, states]: &Given<'_>,
    ) -> Result<Option<DeviceValue>, ExecError> {
        let module = self.compiled.module();
        let missing = |what, name: &str| leaf(what, name, "is not given");
        Ok(Some(match kind {
            BufferKind::Arena | BufferKind::Output(_) | BufferKind::Symbols => return Ok(None),
            BufferKind::Scratch { .. } => match self.scratch.get(&number) {
                Some(buffer) => DeviceValue::Buffer(buffer.clone()),
                None => return Ok(None),
            },
            BufferKind::Codebooks => match &self.codebooks {
                Some(buffer) => DeviceValue::Buffer(buffer.clone()),
                None => return Ok(None),
            },
            BufferKind::Input(input) => {
                let name = &module.inputs[input as usize].name;
                let found = inputs.get(name.as_str()).copied();
                found.ok_or_else(|| missing("input", name))?.clone()
            }
            BufferKind::Weight(weight) => {
                let want = &module.weights[weight as usize];
                let found = operands.weights.get(want.name.as_str());
                let found = found.ok_or_else(|| missing("weight", &want.name))?;
                same_type("weight", &want.name, &want.ty, &found.ty)?;
                found.value.clone()
            }
            BufferKind::State(state) => {
                let want = &module.states[state as usize];
                let found = states.get(want.name.as_str()).copied();
                found.ok_or_else(|| missing("state", &want.name))?.clone()
            }
        }))
    }
}

/// Whether a copy of a program buffer serves as well. Weights stay where they are.
fn moves(kind: BufferKind) -> Moves {
    match kind {
        BufferKind::Input(_) => Moves::In,
        BufferKind::Output(_) => Moves::Out,
        BufferKind::State(_) => Moves::Both,
        BufferKind::Weight(_)
        | BufferKind::Arena
        | BufferKind::Scratch { .. }
        | BufferKind::Symbols
        | BufferKind::Codebooks => Moves::Never,
    }
}

/// Memory that was taken for a result.
fn result(
    output: &tallow_codegen::Tensor,
    block: Result<Arc<Block>, Error>,
) -> Result<DeviceValue, ExecError> {
    let block = block.map_err(|error| match error {
        Error::OutOfMemory { bytes, reason, .. } => {
            Error::OutOfMemory { what: format!("a result, {}", output.ty), bytes, reason }
        }
        other => other,
    });
    Ok(DeviceValue::Block(block?))
}

/// The donated inputs of a run, by program buffer.
struct Donated(Vec<usize>);

impl Donated {
    fn of(module: &Module, operands: &Operands<'_>) -> Donated {
        let names = operands.donated.iter().filter_map(|at| operands.inputs.get(*at)).map(|(name, _)| *name);
        let buffer = |name| module.inputs.iter().find(|input| input.name == name).map(|input| input.buffer);
        Donated(names.filter_map(buffer).collect())
    }

    /// Takes the memory of a donated input that the result in `output` may overwrite; each is taken once.
    fn take(
        &mut self,
        module: &Module,
        output: usize,
        bytes: u64,
        memory: &[Option<DeviceValue>],
    ) -> Option<DeviceValue> {
        let mut pairs = module.donations.iter().filter(|pair| pair.output == output);
        pairs.find_map(|pair| {
            let at = self.0.iter().position(|input| *input == pair.input)?;
            let value = memory[pair.input].clone().filter(|value| value.buffer().size() >= bytes)?;
            self.0.swap_remove(at);
            Some(value)
        })
    }
}

impl std::fmt::Debug for Plan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Plan({:?})", self.compiled)
    }
}

/// Bytes of a value under these symbol values, rounded up to 16 bytes for vector loads.
fn bytes_of(ty: &TensorType, bindings: &Bindings) -> u64 {
    let most = ty.max_bytes();
    let actual = ty.dtype.size().and_then(|size| {
        let extents = ty.shape.eval(bindings)?;
        Some(extents.iter().product::<usize>() as u64 * size as u64)
    });
    // Plane offsets of blocks depend on the maximum number of elements.
    actual.unwrap_or(most).max(1).next_multiple_of(16)
}

fn leaf(what: &'static str, name: &str, why: &str) -> ExecError {
    ExecError::Leaf { what, name: name.into(), why: why.into() }
}

fn same_type(what: &'static str, name: &str, want: &TensorType, got: &TensorType) -> Result<(), ExecError> {
    match want == got {
        true => Ok(()),
        false => Err(leaf(what, name, &format!("is {got}, not {want}"))),
    }
}
