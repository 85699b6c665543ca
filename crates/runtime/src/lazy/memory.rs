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
        for (number, buffer) in module.program.buffers.iter().enumerate() {
            let own = || self.own[number].clone().map(|own| Held::Value(DeviceValue::Buffer(own)));
            held.push(match buffer.kind {
                BufferKind::Arena | BufferKind::Output(_) | BufferKind::Symbols | BufferKind::Input(_) => {
                    None
                }
                BufferKind::Scratch { .. } | BufferKind::Codebooks => own(),
                BufferKind::Weight(weight) => {
                    let want = &module.weights[weight as usize];
                    let found = weights.get(want.name.as_str());
                    let found = found.ok_or_else(|| missing("weight", &want.name))?;
                    same_type("weight", &want.name, &want.ty, &found.ty)?;
                    Some(Held::Value(found.value.clone()))
                }
                BufferKind::State(state) => {
                    let want = &module.states[state as usize];
                    let at = given.get(&want.name).ok_or_else(|| missing("state", &want.name))?;
                    buffers[*at] = Some(number);
                    None
                }
            });
        }
        let inputs = module.inputs.iter().map(input).collect::<Result<_, _>>()?;
        Ok(RunMemory { held, inputs, states: buffers })
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

    /// Whether the state of this number lies where it was set to, in memory with one owner.
    pub fn has_one_owner(&self, state: usize) -> bool {
        let number = self.states.get(state).copied().flatten();
        match number.and_then(|number| self.held[number].as_ref()) {
            Some(Held::Block(block)) => block.strong_count() == 1,
            Some(Held::Value(_)) | None => false,
        }
    }

    /// The memory of all program buffers that exists before a run with these inputs.
    pub(super) fn values(
        &self,
        module: &Module,
        inputs: &[DeviceValue],
    ) -> Result<Vec<Option<DeviceValue>>, ExecError> {
        let value = |held: &Option<Held>| match held {
            Some(Held::Value(value)) => Some(value.clone()),
            Some(Held::Block(block)) => block.upgrade().map(DeviceValue::Block),
            None => None,
        };
        let mut values: Vec<_> = self.held.iter().map(value).collect();
        for (input, at) in module.inputs.iter().zip(&self.inputs) {
            let given = inputs.get(*at).ok_or_else(|| leaf("input", &input.name, "is not given"))?;
            if matches!(module.program.buffers[input.buffer].kind, BufferKind::Input(_)) {
                values[input.buffer] = Some(given.clone());
            }
        }
        match module.states.iter().find(|state| values[state.buffer].is_none()) {
            Some(state) => Err(leaf("state", &state.name, "is not given")),
            None => Ok(values),
        }
    }
}

fn same_type(what: &'static str, name: &str, want: &TensorType, got: &TensorType) -> Result<(), ExecError> {
    match want == got {
        true => Ok(()),
        false => Err(leaf(what, name, &format!("is {got}, not {want}"))),
    }
}
