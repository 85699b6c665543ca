//! Plans that are appended to the device's stream: inputs and results are device memory.

mod memory;

use std::sync::{Arc, Mutex, PoisonError};

use tallow_codegen::Module;
use tallow_ir::schedule::{self, BufferKind};
use tallow_ir::{Bindings, TensorType};

use crate::error::{Error, ExecError};
use crate::executable::{Compiled, check_bindings, fill_table, record_spec};
use crate::reuse::emptied;
pub use crate::value::DeviceValue;
use crate::vulkan::bound::Bound;
use crate::vulkan::replay::Replays;
use crate::vulkan::sequence::{Moves, Operand};
use crate::vulkan::{Block, Buffer, Sequence};
use memory::Lists;
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

    /// Appends the plan to the device's stream, and sets `results` to memory for its results, in the order of the graph's
    /// outputs. Once there was a run, this allocates memory on the heap for results and intermediate values only.
    ///
    /// # Errors
    /// When an operand is missing or of another type, a symbol is out of range, memory runs out or the device failed.
    /// Nothing is computed then.
    pub fn run_into(
        &self,
        bindings: &Bindings,
        memory: &mut RunMemory,
        operands: Operands<'_>,
        results: &mut Vec<DeviceValue>,
    ) -> Result<(), ExecError> {
        let mut lists = std::mem::take(&mut memory.lists);
        let done = self.run_with(bindings, memory, operands, &mut lists);
        let result = |output: &tallow_codegen::Tensor| {
            let none = || leaf("output", &output.name, "has no memory");
            lists.values[output.buffer].clone().ok_or_else(none)
        };
        results.clear();
        let done = done.and_then(|()| {
            for output in &self.compiled.module().outputs {
                results.push(result(output)?);
            }
            Ok(())
        });
        // What nobody else holds goes back to the pool.
        lists.clear();
        memory.lists = lists;
        done
    }

    fn run_with(
        &self,
        bindings: &Bindings,
        memory: &RunMemory,
        operands: Operands<'_>,
        lists: &mut Lists,
    ) -> Result<(), ExecError> {
        let module = self.compiled.module();
        check_bindings(module, bindings)?;
        if module.table_buffer.is_some() {
            fill_table(module, bindings, &mut lists.table)?;
            // The shader declares the table in whole 16-byte vectors.
            lists.table.resize(lists.table.len().max(1).next_multiple_of(16), 0);
        }
        memory.list(module, operands.inputs, &mut lists.values)?;
        let given = module.inputs.iter().zip(&memory.inputs);
        let donated = given.filter(|(_, at)| operands.donated.contains(at));
        lists.donated.extend(donated.map(|(input, _)| input.buffer));
        self.take(bindings, lists)?;
        let Lists { table, values, windows, bound, .. } = lists;
        let slots = &module.plan.arena.slots;
        let mut places = emptied(std::mem::take(bound));
        places.extend(values.iter().zip(slots).enumerate().map(|(number, (value, slot))| {
            match (value, slot) {
                _ if module.table_buffer == Some(number) => Bound::Table(table),
                (Some(value), _) => value.bound(),
                (None, Some(slot)) => windows[slot.window].bound(slot.offset),
                // Unused.
                (None, None) => Bound::Table(&[]),
            }
        }));
        let done = self.compiled.context().append(&self.sequence, &self.replays, &places);
        *bound = emptied(places);
        Ok(done?)
    }

    /// Takes memory for intermediate values and for results, if possible the memory of the last run.
    fn take(&self, bindings: &Bindings, lists: &mut Lists) -> Result<(), ExecError> {
        let (context, module) = (self.compiled.context(), self.compiled.module());
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let mut number = 0;
        let mut block = |what, bytes| {
            let block = context.block_at(what, bytes, taken.get(number).copied())?;
            match taken.get_mut(number) {
                Some(known) => *known = block.address(),
                None => taken.push(block.address()),
            }
            number += 1;
            Ok::<_, Error>(block)
        };
        for bytes in &module.plan.arena.windows {
            lists.windows.push(block(INTERMEDIATE_VALUES, (*bytes).max(16))?);
        }
        for output in &module.outputs {
            let is_made = matches!(module.program.buffers[output.buffer].kind, BufferKind::Output(_));
            if is_made && lists.values[output.buffer].is_none() {
                let bytes = bytes_of(&output.ty, bindings);
                lists.values[output.buffer] = match take_donated(module, output.buffer, bytes, lists) {
                    Some(value) => Some(value),
                    None => Some(result(output, block("result", bytes))?),
                };
            }
        }
        Ok(())
    }
}

/// The operands of a run.
#[derive(Clone, Copy, Debug)]
pub struct Operands<'a> {
    /// In the order of their names when the memory of runs was made.
    pub inputs: &'a [DeviceValue],
    /// The numbers of inputs that have no other owner, so that results may reuse their memory.
    pub donated: &'a [usize],
}

/// What errors call the memory of a plan's arena.
pub const INTERMEDIATE_VALUES: &str = "intermediate values";

/// Memory that was taken for a result.
fn result(output: &tallow_codegen::Tensor, block: Result<Block, Error>) -> Result<DeviceValue, ExecError> {
    let block = block.map_err(|error| match error {
        Error::OutOfMemory { bytes, reason, .. } => {
            Error::OutOfMemory { what: format!("a result, {}", output.ty), bytes, reason }
        }
        other => other,
    });
    Ok(DeviceValue::Block(Arc::new(block?)))
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

/// The memory of a donated input that the result in `output` may overwrite; each is taken once.
fn take_donated(module: &Module, output: usize, bytes: u64, lists: &mut Lists) -> Option<DeviceValue> {
    let Lists { values, donated, .. } = lists;
    let mut pairs = module.donations.iter().filter(|pair| pair.output == output);
    pairs.find_map(|pair| {
        let at = donated.iter().position(|input| *input == pair.input)?;
        let value = values[pair.input].clone().filter(|value| value.buffer().size() >= bytes)?;
        donated.swap_remove(at);
        Some(value)
    })
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
        let dims = ty.shape.dims().iter();
        let extents = dims.map(|dim| u64::try_from(dim.eval(bindings)?).ok());
        Some(extents.product::<Option<u64>>()? * size as u64)
    });
    // Plane offsets of blocks depend on the maximum number of elements.
    actual.unwrap_or(most).max(1).next_multiple_of(16)
}

fn leaf(what: &'static str, name: &str, why: &str) -> ExecError {
    ExecError::Leaf { what, name: name.into(), why: why.into() }
}
