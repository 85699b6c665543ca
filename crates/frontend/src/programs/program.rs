//! What computes expressions: a graph compiled for the CPU or for a Vulkan device.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

#[cfg(feature = "vulkan")]
use tallow_ir::Bindings;
use tallow_ir::{Graph, Scalar};

use super::lock;
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

/// What computes expressions.
pub(crate) struct Program {
    code: Code,
    /// Which extents are symbols, or why none is.
    note: String,
}

enum Code {
    /// One run at a time: threads that compute the same structure at once wait for each other.
    Cpu(Mutex<Executable>),
    /// Runs are appended to the device's stream.
    #[cfg(feature = "vulkan")]
    Vulkan(crate::vulkan::LazyPlan),
}

impl Program {
    pub fn new(
        device: &Device,
        graph: &Graph,
        blocks: &[(String, Tensor, Arc<Blocks>)],
        note: String,
    ) -> Result<Program> {
        let code = match device {
            Device::Cpu => {
                let mut weights = HashMap::new();
                for (name, tensor, blocks) in blocks {
                    weights.insert(
                        name.clone(),
                        blocks.weight(tensor.device(), tensor.dtype(), tensor.const_dims()?)?,
                    );
                }
                Code::Cpu(Mutex::new(Prepared::new(device, graph)?.bind_values(&weights)?))
            }
            #[cfg(feature = "vulkan")]
            Device::Vulkan(device) => Code::Vulkan(device.for_cache().lazy_plan(&verified(graph)?)?),
        };
        Ok(Program { code, note })
    }

    /// Computes `targets`, the outputs of what they were lowered to, and gives them their values. `order` are the steps of
    /// the evaluation, of which they are some.
    pub fn run(&self, order: &[Tensor], targets: &[&Tensor], lowered: &Lowered) -> Result<()> {
        let Lowered { known, states, .. } = lowered;
        match &self.code {
            Code::Cpu(executable) => {
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
            Code::Vulkan(plan) => {
                for (target, value) in targets.iter().zip(run(plan, order, targets, lowered)?) {
                    target.set_on_device(value);
                }
            }
        }
        Ok(())
    }

    pub fn explain(&self) -> String {
        let plan = match &self.code {
            Code::Cpu(executable) => lock(executable).explain(),
            #[cfg(feature = "vulkan")]
            Code::Vulkan(plan) => plan.explain(),
        };
        format!("{}{plan}", self.note)
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
    let integers = lowered.offsets.iter().chain(&lowered.extents);
    scalars.chain(integers.map(|(symbol, value)| (symbol.name(), *value)))
}

/// The 32 bits of a scalar, as the value of its symbol.
fn bits(scalar: Scalar) -> u64 {
    u64::from((scalar.as_f64() as f32).to_bits())
}
