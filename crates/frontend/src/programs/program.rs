//! What computes expressions: a graph compiled for the CPU or for a Vulkan device.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use tallow_ir::{Graph, Scalar, Symbol};

use super::instance::Instance;
use super::lock;
use super::recorded::{OFFSET, SCALAR, input_name, state_name, weight_name};
use crate::blocks::Blocks;
use crate::device::Device;
use crate::error::Result;
use crate::evaluation::Evaluation;
use crate::executable::{Executable, Prepared};
use crate::tensor::Tensor;

#[cfg(feature = "vulkan")]
mod on_device;

/// What computes expressions.
pub(crate) struct Program {
    code: Code,
    /// The symbols of its graph, which each run is given.
    symbols: Vec<(String, Source)>,
    /// Which extents are symbols, or why none is.
    note: String,
}

/// Where an instance has the value of a symbol.
#[derive(Clone, Copy)]
enum Source {
    Scalar(usize),
    Offset(usize),
    Extent(usize),
}

enum Code {
    /// One run at a time: threads that compute the same structure at once wait for each other.
    Cpu(Box<Mutex<Executable>>),
    /// Runs are appended to the device's stream.
    #[cfg(feature = "vulkan")]
    Vulkan(Box<on_device::OnDevice>),
}

impl Program {
    /// Compiles a graph, whose symbols of extents are `extents`, in the order in which instances have their values.
    pub(super) fn new(
        device: &Device,
        graph: &Graph,
        extents: &[Symbol],
        blocks: &[(Tensor, Arc<Blocks>)],
        note: String,
    ) -> Result<Program> {
        let code = match device {
            Device::Cpu => {
                let mut weights = HashMap::new();
                for (at, (tensor, blocks)) in blocks.iter().enumerate() {
                    let weight = blocks.weight(tensor.device(), tensor.dtype(), tensor.const_dims()?)?;
                    weights.insert(weight_name(at), weight);
                }
                Code::Cpu(Box::new(Mutex::new(Prepared::new(device, graph)?.bind_values(&weights)?)))
            }
            #[cfg(feature = "vulkan")]
            Device::Vulkan(device) => Code::Vulkan(Box::new(on_device::OnDevice::new(device, graph)?)),
        };
        Ok(Program { code, symbols: sources(graph, extents), note })
    }

    /// Computes the targets of an evaluation, the outputs of its instance, and gives them their values.
    pub fn run(&self, evaluation: &mut Evaluation) -> Result<()> {
        match &self.code {
            Code::Cpu(executable) => self.interpret(executable, evaluation),
            #[cfg(feature = "vulkan")]
            Code::Vulkan(plan) => plan.run(&self.symbols, evaluation),
        }
    }

    fn interpret(&self, executable: &Mutex<Executable>, evaluation: &Evaluation) -> Result<()> {
        let instance = &evaluation.instance;
        let mut bytes = vec![];
        for (at, tensor) in instance.known().enumerate() {
            bytes.push((input_name(at), tensor.known_bytes()?));
        }
        let inputs: Vec<(&str, &[u8])> =
            bytes.iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice())).collect();
        let symbols: Vec<(&str, u64)> =
            self.symbols.iter().map(|(name, source)| (name.as_str(), source.value(instance))).collect();
        let names: Vec<String> = (0..instance.states().len()).map(state_name).collect();
        let mut versions = vec![];
        for (name, tensor) in names.iter().zip(instance.states()) {
            versions.push((name.as_str(), tensor.known_bytes()?));
        }
        let outputs = lock(executable).run_values(&symbols, &inputs, &mut versions)?;
        for (target, output) in evaluation.targets().zip(outputs) {
            target.set_data(output.bytes);
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

impl Source {
    fn value(self, instance: &Instance) -> u64 {
        match self {
            Source::Scalar(at) => bits(instance.scalars()[at]),
            Source::Offset(at) => instance.offsets()[at],
            Source::Extent(at) => instance.extents()[at],
        }
    }
}

/// Where instances have the values of the symbols of a graph, whose symbols of extents are those.
fn sources(graph: &Graph, extents: &[Symbol]) -> Vec<(String, Source)> {
    let source = |name: &str| match extents.iter().position(|extent| extent.name() == name) {
        Some(at) => Some(Source::Extent(at)),
        None => match (name.strip_prefix(SCALAR), name.strip_prefix(OFFSET)) {
            (Some(number), _) => number.parse().ok().map(Source::Scalar),
            (None, Some(number)) => number.parse().ok().map(Source::Offset),
            (None, None) => None,
        },
    };
    let named = |symbol: &Symbol| Some((symbol.name().to_string(), source(symbol.name())?));
    graph.symbols().filter_map(named).collect()
}

/// The 32 bits of a scalar, as the value of its symbol.
fn bits(scalar: Scalar) -> u64 {
    u64::from((scalar.as_f64() as f32).to_bits())
}
