//! Programs of a Vulkan device: plans that are appended to its stream.

use std::sync::Mutex;

use tallow_ir::{Bindings, Graph, Op};
use tallow_runtime::lazy::{DeviceValue, Operands, RunMemory};

use super::super::lock;
use super::super::recorded::{input_name, state_name, weight_name};
use super::Source;
use crate::error::{Result, no_value};
use crate::evaluation::Evaluation;
use crate::executable::verified;
use crate::vulkan::{LazyPlan, VulkanDevice};

/// A plan, and what its runs use again.
pub(super) struct OnDevice {
    plan: LazyPlan,
    /// The number among an instance's blocks of each weight of the plan.
    weights: Vec<usize>,
    run: Mutex<Run>,
}

/// What one run after the other uses, so that none allocates lists.
struct Run {
    bindings: Bindings,
    memory: RunMemory,
    inputs: Vec<DeviceValue>,
    /// The numbers of inputs that may be overwritten.
    donated: Vec<usize>,
    results: Vec<DeviceValue>,
}

impl OnDevice {
    pub fn new(device: &VulkanDevice, graph: &Graph) -> Result<OnDevice> {
        let plan = device.for_cache().lazy_plan(&verified(graph)?)?;
        let count = |is: fn(&Op) -> bool| graph.nodes().filter(|(_, node)| is(&node.op)).count();
        let inputs: Vec<String> = (0..count(|op| matches!(op, Op::Input { .. }))).map(input_name).collect();
        let states: Vec<String> = (0..count(|op| matches!(op, Op::State { .. }))).map(state_name).collect();
        let blocks = (0..count(|op| matches!(op, Op::Weight { .. }))).map(weight_name);
        let blocks: Vec<String> = blocks.collect();
        let number = |name: &str| blocks.iter().position(|block| block == name);
        let weights = plan.weights().map(|name| number(name).ok_or_else(|| no_value("eval")));
        let weights = weights.collect::<Result<_>>()?;
        let memory = plan.memory_for_any_weights(&strings(&inputs), &strings(&states))?;
        let (bindings, inputs, donated, results) = (Bindings::new(), vec![], vec![], vec![]);
        let run = Mutex::new(Run { bindings, memory, inputs, donated, results });
        Ok(OnDevice { plan, weights, run })
    }

    /// Runs the plan. Values that nobody needs any more are given away; states that somebody needs are copied.
    pub fn run(&self, symbols: &[(String, Source)], evaluation: &mut Evaluation) -> Result<()> {
        let mut run = lock(&self.run);
        let done = self.run_with(&mut run, symbols, evaluation);
        // Nobody's memory is held until the next run.
        run.memory.release();
        run.inputs.clear();
        run.results.clear();
        done
    }

    fn run_with(
        &self,
        run: &mut Run,
        symbols: &[(String, Source)],
        evaluation: &mut Evaluation,
    ) -> Result<()> {
        let Run { bindings, memory, inputs, donated, results } = run;
        donated.clear();
        let donates = self.plan.takes_donations() && evaluation.is_worthwhile_to_donate();
        if donates || !evaluation.instance.states().is_empty() {
            // Uploaded first, as only what is on the device can be given away.
            for tensor in evaluation.instance.known().chain(evaluation.instance.states()) {
                tensor.on_device()?;
            }
            evaluation.find_holders();
            if donates {
                donated.extend(evaluation.free_inputs());
            }
            for (at, tensor) in evaluation.instance.states().iter().enumerate() {
                // Before the value is taken, which is a holder too.
                let is_free = evaluation.is_state_free(at);
                let value = tensor.on_device()?;
                match is_free {
                    true => memory.set_state(at, value.value()),
                    false => memory.give_state(at, value.copy()?.into_value()),
                }
            }
        }
        let instance = &evaluation.instance;
        for tensor in instance.known() {
            inputs.push(tensor.on_device()?.into_value());
        }
        for (at, block) in self.weights.iter().enumerate() {
            let (tensor, blocks) = instance.block(*block).ok_or_else(|| no_value("eval"))?;
            let weight = blocks.weight(tensor.device(), tensor.dtype(), tensor.const_dims()?)?;
            let weight = weight.on_vulkan().ok_or_else(|| no_value("eval"))?;
            self.plan.set_weight(memory, at, weight)?;
        }
        for (name, source) in symbols {
            let value = source.value(instance);
            match bindings.get_mut(name) {
                Some(known) => *known = value,
                None => _ = bindings.insert(name.clone(), value),
            }
        }
        self.plan.run_into(bindings, memory, Operands { inputs, donated }, results)?;
        for (target, value) in evaluation.targets().zip(results.drain(..)) {
            target.set_on_device(self.plan.on_device(value));
        }
        Ok(())
    }

    pub fn explain(&self) -> String {
        self.plan.explain()
    }
}

fn strings(names: &[String]) -> Vec<&str> {
    names.iter().map(String::as_str).collect()
}
