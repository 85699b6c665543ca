//! Plans that are appended to the device's stream: inputs and results are device memory.

mod memory;

use std::sync::{Arc, Mutex, PoisonError};

use tallow_codegen::Module;
use tallow_ir::schedule::{self, BufferKind};
use tallow_ir::{Bindings, TensorType};

use crate::error::{Error, ExecError};
use crate::executable::{Compiled, check_bindings, fill_table, record_spec};
pub use crate::value::DeviceValue;
use crate::vulkan::bound::Bound;
use crate::vulkan::replay::Replays;
use crate::vulkan::sequence::{Moves, Operand};
use crate::vulkan::{Block, Buffer, Sequence};
pub use memory::RunMemory;

/// A compiled graph that can be appended to the stream any number of times.
pub struct Plan {
    compiled: Compiled,
    sequence: Sequence,
    replays: Mutex<Replays>,
    /// Scratch memory, which persists between runs, and codebooks, by program buffer.
    own: Vec<Option<Arc<Buffer>>>,
    /// Addresses of the blocks that the last run took, windows first: a run over the same memory need not be recorded.
    taken: Mutex<Vec<usize>>,
}

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
        let own = |buffer: &schedule::Buffer| {
            Ok(match buffer.kind {
                BufferKind::Scratch { fill } => Some(context.filled(buffer.bytes, fill)?),
                BufferKind::Codebooks => Some(context.codebooks()?),
                BufferKind::Arena
                | BufferKind::Input(_)
                | BufferKind::Output(_)
                | BufferKind::Weight(_)
                | BufferKind::State(_)
                | BufferKind::Symbols => None,
            })
        };
        let own = buffers.iter().map(own).collect::<Result<_, ExecError>>()?;
        Ok(Plan { compiled, sequence, replays: Mutex::default(), own, taken: Mutex::default() })
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
    /// `inputs` are in the order of their names when `memory` was made. Those that `donated` numbers have no other owner, so
    /// results may reuse their memory.
    ///
    /// # Errors
    /// When an operand is missing or of another type, a symbol is out of range, memory runs out or the device failed.
    /// Nothing is computed then.
    pub fn run(
        &self,
        bindings: &Bindings,
        memory: &RunMemory,
        inputs: &[DeviceValue],
        donated: &[usize],
    ) -> Result<Vec<DeviceValue>, ExecError> {
        let module = self.compiled.module();
        check_bindings(module, bindings)?;
        let mut table = vec![];
        if module.table_buffer.is_some() {
            fill_table(module, bindings, &mut table)?;
            // The shader declares the table in whole 16-byte vectors.
            table.resize(table.len().max(1).next_multiple_of(16), 0);
        }
        let mut values = memory.values(module, inputs)?;
        let windows = self.take(bindings, Donated::of(module, memory, donated), &mut values)?;
        let slots = &module.plan.arena.slots;
        let places =
            values.iter().zip(slots).enumerate().map(|(number, (value, slot))| match (value, slot) {
                _ if module.table_buffer == Some(number) => Bound::Table(&table),
                (Some(value), _) => value.bound(),
                (None, Some(slot)) => windows[slot.window].bound(slot.offset),
                // Unused.
                (None, None) => Bound::Table(&[]),
            });
        let places: Vec<_> = places.collect();
        self.compiled.context().append(&self.sequence, &self.replays, &places)?;
        drop(places);
        let result = |output: &tallow_codegen::Tensor| {
            let none = || leaf("output", &output.name, "has no memory");
            values[output.buffer].clone().ok_or_else(none)
        };
        module.outputs.iter().map(result).collect()
    }

    /// Takes memory for intermediate values, which is returned, and for results, if possible the memory of the last run.
    fn take(
        &self,
        bindings: &Bindings,
        mut donated: Donated,
        values: &mut [Option<DeviceValue>],
    ) -> Result<Vec<Arc<Block>>, ExecError> {
        let (context, module) = (self.compiled.context(), self.compiled.module());
        let wanted = std::mem::take(&mut *self.taken.lock().unwrap_or_else(PoisonError::into_inner));
        let mut wanted = wanted.into_iter();
        let mut taken = vec![];
        let mut block = |what, bytes| {
            let block = context.block_at(what, bytes, wanted.next())?;
            taken.push(block.address());
            Ok::<_, Error>(block)
        };
        let windows = module.plan.arena.windows.iter();
        let windows = windows.map(|bytes| block(INTERMEDIATE_VALUES, (*bytes).max(16)));
        let windows = windows.collect::<Result<Vec<_>, _>>()?;
        for output in &module.outputs {
            let is_made = matches!(module.program.buffers[output.buffer].kind, BufferKind::Output(_));
            if is_made && values[output.buffer].is_none() {
                let bytes = bytes_of(&output.ty, bindings);
                values[output.buffer] = match donated.take(module, output.buffer, bytes, values) {
                    Some(value) => Some(value),
                    None => Some(result(output, block("result", bytes))?),
                };
            }
        }
        *self.taken.lock().unwrap_or_else(PoisonError::into_inner) = taken;
        Ok(windows)
    }
}

/// What errors call the memory of a plan's arena.
pub const INTERMEDIATE_VALUES: &str = "intermediate values";

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

/// The donated inputs of a run, by program buffer.
struct Donated(Vec<usize>);

impl Donated {
    fn of(module: &Module, memory: &RunMemory, donated: &[usize]) -> Donated {
        let given = module.inputs.iter().zip(&memory.inputs);
        Donated(given.filter(|(_, at)| donated.contains(at)).map(|(input, _)| input.buffer).collect())
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
