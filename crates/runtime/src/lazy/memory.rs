//! Memory that the runs of a plan use: what most runs find where the last one left it.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use tallow_codegen::Module;
use tallow_ir::TensorType;
use tallow_ir::schedule::BufferKind;

use super::{DeviceValue, Plan, leaf};
use crate::error::ExecError;
use crate::resident::DeviceWeight;
use crate::vulkan::Block;
use crate::vulkan::bound::Bound;

/// The memory of weights and states of a [`Plan`]. A loop makes it once, and then tells which states moved.
///
/// A training step has hundreds of states, so each of its runs should take few nanoseconds for each of them.
#[derive(Debug)]
pub struct RunMemory {
    /// By program buffer; none for what each run takes or is given.
    held: Vec<Option<Held>>,
    /// The number among the given inputs of each input of the module.
    pub(super) inputs: Vec<usize>,
    /// The program buffer of each given state, if the plan uses it.
    states: Vec<Option<usize>>,
    /// The program buffers of each weight of the module.
    weights: Vec<Vec<usize>>,
    pub(super) lists: Lists,
}

/// What a run lists, in memory that all use. The lists are empty between runs.
#[derive(Default)]
pub(super) struct Lists {
    pub table: Vec<u8>,
    /// The memory of all program buffers.
    pub values: Vec<Option<DeviceValue>>,
    /// The memory of intermediate values.
    pub windows: Vec<Block>,
    /// Where each program buffer is bound: always empty here.
    pub bound: Vec<Bound<'static>>,
    /// The program buffers of inputs that may be overwritten.
    pub donated: Vec<usize>,
}

impl Lists {
    pub fn clear(&mut self) {
        let Lists { table, values, windows, bound, donated } = self;
        table.clear();
        values.clear();
        windows.clear();
        bound.clear();
        donated.clear();
    }
}

impl std::fmt::Debug for Lists {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Lists")
    }
}

#[derive(Debug)]
enum Held {
    Value(DeviceValue),
    /// Of a state, which owns it, so that it knows when it has no other owner.
    Block(Weak<Block>),
}

impl Plan {
    /// Memory for runs with inputs and states of these names. States are given their memory by [`RunMemory::set_state`].
    ///
    /// # Errors
    /// When an operand is missing or a weight of another type.
    pub fn memory(
        &self,
        inputs: &[&str],
        weights: &HashMap<&str, &DeviceWeight>,
        states: &[&str],
    ) -> Result<RunMemory, ExecError> {
        let mut memory = self.memory_for_any_weights(inputs, states)?;
        for (number, want) in self.compiled.module().weights.iter().enumerate() {
            let found = weights.get(want.name.as_str());
            let found = found.ok_or_else(|| leaf("weight", &want.name, "is not given"))?;
            self.set_weight(&mut memory, number, found)?;
        }
        Ok(memory)
    }

    /// As [`Plan::memory`], but for weights, which [`Plan::set_weight`] gives.
    ///
    /// # Errors
    /// When an operand is missing.
    pub fn memory_for_any_weights(&self, inputs: &[&str], states: &[&str]) -> Result<RunMemory, ExecError> {
        let module = self.compiled.module();
        let missing = |what, name: &str| leaf(what, name, "is not given");
        let numbers = |names: &[&str]| -> HashMap<String, usize> {
            names.iter().enumerate().map(|(at, name)| (name.to_string(), at)).collect()
        };
        let (inputs, given) = (numbers(inputs), numbers(states));
        let input = |input: &tallow_codegen::Tensor| {
            inputs.get(&input.name).copied().ok_or_else(|| missing("input", &input.name))
        };
        let mut held = vec![];
        let mut buffers = vec![None; states.len()];
        let mut weights = vec![vec![]; module.weights.len()];
        for (number, buffer) in module.program.buffers.iter().enumerate() {
            let own = || self.own[number].clone().map(|own| Held::Value(DeviceValue::Buffer(own)));
            held.push(match buffer.kind {
                BufferKind::Arena | BufferKind::Output(_) | BufferKind::Symbols | BufferKind::Input(_) => {
                    None
                }
                BufferKind::Weight(weight) => {
                    weights[weight as usize].push(number);
                    None
                }
                BufferKind::Scratch { .. } | BufferKind::Codebooks => own(),
                BufferKind::State(state) => {
                    let want = &module.states[state as usize];
                    let at = given.get(&want.name).ok_or_else(|| missing("state", &want.name))?;
                    buffers[*at] = Some(number);
                    None
                }
            });
        }
        let inputs = module.inputs.iter().map(input).collect::<Result<_, _>>()?;
        Ok(RunMemory { held, inputs, states: buffers, weights, lists: Lists::default() })
    }

    /// Gives runs the weight of a number, by the order of the compiled graph's.
    ///
    /// # Errors
    /// When it is of another type.
    pub fn set_weight(
        &self,
        memory: &mut RunMemory,
        number: usize,
        weight: &DeviceWeight,
    ) -> Result<(), ExecError> {
        let module = self.compiled.module();
        let Some(want) = module.weights.get(number) else { return Ok(()) };
        same_type("weight", &want.name, &want.ty, &weight.ty)?;
        for buffer in &memory.weights[number] {
            memory.held[*buffer] = Some(Held::Value(weight.value.clone()));
        }
        Ok(())
    }
}

impl RunMemory {
    /// Where the state of this number lies from now on. The run may write it; then it must have no other owner.
    pub fn set_state(&mut self, state: usize, value: &DeviceValue) {
        if let Some(number) = self.states.get(state).copied().flatten() {
            self.held[number] = Some(match value {
                DeviceValue::Block(block) => Held::Block(Arc::downgrade(block)),
                DeviceValue::Buffer(_) => Held::Value(value.clone()),
            });
        }
    }

    /// Forgets the memory of weights and states, which each run is given again then.
    pub fn release(&mut self) {
        for buffer in self.weights.iter().flatten().chain(self.states.iter().flatten()) {
            self.held[*buffer] = None;
        }
    }

    /// As [`RunMemory::set_state`], for memory that the runs own.
    pub fn give_state(&mut self, state: usize, value: DeviceValue) {
        if let Some(number) = self.states.get(state).copied().flatten() {
            self.held[number] = Some(Held::Value(value));
        }
    }

    /// Whether the state of this number lies where it was set to, in memory with one owner.
    pub fn has_one_owner(&self, state: usize) -> bool {
        let number = self.states.get(state).copied().flatten();
        match number.and_then(|number| self.held[number].as_ref()) {
            Some(Held::Block(block)) => block.strong_count() == 1,
            Some(Held::Value(_)) | None => false,
        }
    }

    /// Sets `values` to the memory of all program buffers that exists before a run with these inputs.
    pub(super) fn list(
        &self,
        module: &Module,
        inputs: &[DeviceValue],
        values: &mut Vec<Option<DeviceValue>>,
    ) -> Result<(), ExecError> {
        let value = |held: &Option<Held>| match held {
            Some(Held::Value(value)) => Some(value.clone()),
            Some(Held::Block(block)) => block.upgrade().map(DeviceValue::Block),
            None => None,
        };
        values.extend(self.held.iter().map(value));
        for (input, at) in module.inputs.iter().zip(&self.inputs) {
            let given = inputs.get(*at).ok_or_else(|| leaf("input", &input.name, "is not given"))?;
            if matches!(module.program.buffers[input.buffer].kind, BufferKind::Input(_)) {
                values[input.buffer] = Some(given.clone());
            }
        }
        match module.states.iter().find(|state| values[state.buffer].is_none()) {
            Some(state) => Err(leaf("state", &state.name, "is not given")),
            None => Ok(()),
        }
    }
}

fn same_type(what: &'static str, name: &str, want: &TensorType, got: &TensorType) -> Result<(), ExecError> {
    match want == got {
        true => Ok(()),
        false => Err(leaf(what, name, &format!("is {got}, not {want}"))),
    }
}
