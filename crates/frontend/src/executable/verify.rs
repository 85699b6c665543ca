//! The kernels of a run compared with the interpreter, each on what the device gave it to read.

use std::ops::ControlFlow;

use tallow_bounds::Comparison;
#[cfg(feature = "vulkan")]
use {
    crate::vulkan::device_error,
    std::collections::HashSet,
    tallow_bounds::Bounds,
    tallow_ir::isolate::{isolated, operand_name, result_name},
    tallow_ir::verify::updated_param,
    tallow_ir::{Bindings, Fusion, Graph, Node, NodeId, Op, TensorType},
    tallow_reference::{Array, Env, evaluate},
    tallow_runtime::executable::Steps,
};

use super::{DeviceExecutable, Executable};
use crate::error::{Error, Result};

/// What [`Executable::verify`] compares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VerifyOptions {
    /// Every dispatch, instead of the first of each kernel: layers of equal shapes share kernels.
    pub all: bool,
    /// The most bytes of host memory that one comparison may take. Kernels that need more are not compared. `None`: no
    /// limit.
    pub memory: Option<u64>,
}

/// One dispatch of a kernel, compared with the interpreter.
#[derive(Clone, Debug, PartialEq)]
pub struct KernelCheck {
    /// The name of the dispatch in the plan: the node that it computes, the kernel's template, schedule and last op.
    pub name: String,
    /// The number of its kernel. Dispatches of one kernel have the same.
    pub kernel: usize,
    /// The ops that it computes, each once.
    pub ops: Vec<&'static str>,
    /// Types of its operands, under the symbol values of the run.
    pub operands: Vec<String>,
    /// Types of its results.
    pub results: Vec<String>,
    /// What was found.
    pub outcome: CheckOutcome,
}

/// What became of a comparison.
#[derive(Clone, Debug, PartialEq)]
pub enum CheckOutcome {
    /// By result, how it compares.
    Compared(Vec<Comparison>),
    /// It could not be compared, and why.
    NotCompared(String),
}

impl KernelCheck {
    /// The first result with an element that differs by more than a right kernel may: its number and comparison.
    pub fn difference(&self) -> Option<(usize, &Comparison)> {
        match &self.outcome {
            CheckOutcome::Compared(results) => results.iter().enumerate().find(|(_, c)| c.outside > 0),
            CheckOutcome::NotCompared(_) => None,
        }
    }

    /// The largest error of an element as a share of what is allowed; none if it was not compared.
    pub fn worst(&self) -> Option<f64> {
        match &self.outcome {
            CheckOutcome::Compared(results) => Some(results.iter().map(|c| c.worst).fold(0.0, f64::max)),
            CheckOutcome::NotCompared(_) => None,
        }
    }
}

impl Executable {
    /// Runs once, one kernel at a time, and compares each with the interpreter. The interpreter computes what the kernel
    /// computes from what the device had: operands are read back before the kernel runs. So an error does not spread to
    /// the kernels after it.
    ///
    /// How far a right kernel may be from the interpreter is computed for each element ([`tallow_bounds`]).
    ///
    /// Symbols and inputs are those of [`Executable::run`]. `visit` gets the checks in the order of the plan, and ends the
    /// run if it breaks. States are updated as far as it came. `visit` must not run this executable, which is busy.
    ///
    /// # Errors
    /// On the CPU, which has no kernels; as [`Executable::run`] elsewhere.
    pub fn verify(
        &self,
        symbols: &[(&str, u64)],
        inputs: &[(&str, &[u8])],
        options: &VerifyOptions,
        visit: &mut dyn FnMut(KernelCheck) -> ControlFlow<()>,
    ) -> Result<()> {
        match &self.program {
            DeviceExecutable::Cpu(_) => {
                let _ = (symbols, inputs, options, visit);
                Err(Error::Device("the CPU is the interpreter itself: there are no kernels to verify".into()))
            }
            #[cfg(feature = "vulkan")]
            DeviceExecutable::Vulkan(program) => {
                let mut bindings = Bindings::new();
                self.wants.bind_symbols(&self.graph, symbols, &mut bindings)?;
                self.wants.check_inputs(&self.graph, &bindings, inputs)?;
                self.wants.bind_draws(&self.device, &mut bindings);
                let mut steps = program.steps(&bindings, inputs)?;
                run(&mut steps, &bindings, options, visit)
            }
        }
    }
}

#[cfg(feature = "vulkan")]
fn run(
    steps: &mut Steps<'_>,
    bindings: &Bindings,
    options: &VerifyOptions,
    visit: &mut dyn FnMut(KernelCheck) -> ControlFlow<()>,
) -> Result<()> {
    let mut seen = HashSet::new();
    while let Some(launch) = steps.next_launch() {
        let (kernel, name) = steps.names(launch).unwrap_or_default();
        let fusion = steps.fusion(launch).cloned();
        let Some(fusion) = fusion.filter(|_| options.all || !seen.contains(&kernel)) else {
            steps.run().map_err(device_error)?;
            continue;
        };
        seen.insert(kernel);
        let operands = Operands::read(steps, launch, &fusion, bindings, options)?;
        steps.clear_results().map_err(device_error)?;
        steps.run().map_err(device_error)?;
        let outcome = match operands {
            Ok(operands) => operands.judge(steps, launch, &fusion)?,
            Err(why) => CheckOutcome::NotCompared(why),
        };
        let ty = |ty: &tallow_ir::TensorType| match ty.shape.eval(bindings) {
            Some(shape) => format!("{}{shape:?}", ty.dtype),
            None => ty.to_string(),
        };
        let check = KernelCheck {
            name,
            kernel,
            ops: ops(&fusion.body),
            operands: fusion.body.params().into_iter().map(ty).collect(),
            results: fusion.body.outputs().iter().map(|o| ty(fusion.body.ty(o.value))).collect(),
            outcome,
        };
        if visit(check).is_break() {
            break;
        }
    }
    Ok(())
}

/// The ops of a body, each once, without leaves.
#[cfg(feature = "vulkan")]
fn ops(body: &Graph) -> Vec<&'static str> {
    let mut names = vec![];
    for (_, node) in body.nodes().filter(|(_, node)| !node.op.is_leaf()) {
        if !names.contains(&node.op.name()) {
            names.push(node.op.name());
        }
    }
    names
}

/// Bytes that the interpreter and the bounds take for a kernel: f64 for the value and both ends of each node that is no
/// view. Bounds of products and attention hold as much again for magnitudes and sums, and attention its scores. Values that
/// nothing reads any more are freed.
#[cfg(feature = "vulkan")]
fn host_bytes(graph: &Graph) -> u64 {
    // The interpreter copies what it pads and concatenates.
    let is_view = |op: &Op| op.is_view() && !matches!(op, Op::Pad { .. } | Op::Concat { .. });
    let bytes = |(_, node): (NodeId, &Node)| {
        let numel = |ty: &TensorType| ty.shape.max_numel();
        let results = node.types.iter().map(numel).fold(0, u64::saturating_add);
        let extent = |operand: usize, axis: usize| {
            graph.ty(node.operands[operand]).shape.dims()[axis].max_value().unsigned_abs()
        };
        match node.op {
            ref op if is_view(op) => 0,
            Op::Attention(_) => {
                let scores = [extent(0, 0), extent(0, 1), extent(1, 1)];
                scores.into_iter().fold(1, u64::saturating_mul).saturating_add(results).saturating_mul(48)
            }
            Op::Matmul | Op::Dequantize(_) => results.saturating_mul(48),
            _ => results.saturating_mul(24),
        }
    };
    graph.nodes().map(bytes).fold(0, u64::saturating_add)
}

/// What a kernel is about to read, and what it computes of that.
#[cfg(feature = "vulkan")]
struct Operands {
    graph: Graph,
    env: Env,
}

#[cfg(feature = "vulkan")]
impl Operands {
    /// Reads the operands of the next launch. The inner error says why it cannot be compared.
    fn read(
        steps: &Steps<'_>,
        launch: usize,
        fusion: &Fusion,
        bindings: &Bindings,
        options: &VerifyOptions,
    ) -> Result<Result<Operands, String>> {
        let graph = match isolated(fusion, bindings) {
            Ok(graph) => graph,
            Err(error) => return Ok(Err(error.to_string())),
        };
        let needed = host_bytes(&graph);
        if let Some(limit) = options.memory.filter(|limit| needed > *limit) {
            let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
            return Ok(Err(format!("takes {:.1} GiB of memory, {:.1} are free", gib(needed), gib(limit))));
        }
        let mut env = Env { symbols: bindings.clone(), ..Env::default() };
        for (index, ty) in fusion.body.params().into_iter().enumerate() {
            let Some((shape, bytes)) = steps.operand(launch, index).map_err(device_error)? else { continue };
            let array = match Array::from_bytes(ty.dtype, &shape, &bytes) {
                Ok(array) => array,
                Err(error) => return Ok(Err(error.to_string())),
            };
            let name = operand_name(index);
            for (_, node) in graph.nodes() {
                match &node.op {
                    Op::Input { name: leaf, .. } if *leaf == name => {
                        env.inputs.insert(name.clone(), array.clone().into());
                    }
                    Op::Weight { name: leaf, .. } if *leaf == name => {
                        env.weights.insert(name.clone(), array.clone().into());
                    }
                    Op::State { name: leaf, .. } if *leaf == name => {
                        env.states.insert(name.clone(), array.clone());
                    }
                    _ => {}
                }
            }
        }
        env.symbols.retain(|name, _| graph.symbols().any(|symbol| symbol.name() == name));
        Ok(Ok(Operands { graph, env }))
    }

    /// Compares the results of the launch that was run.
    fn judge(self, steps: &Steps<'_>, launch: usize, fusion: &Fusion) -> Result<CheckOutcome> {
        let mut found = vec![];
        for (result, output) in fusion.body.outputs().iter().enumerate() {
            let Some((shape, bytes)) = steps.result(launch, result).map_err(device_error)? else {
                return Ok(CheckOutcome::NotCompared(format!("result {result} has no buffer")));
            };
            match Array::from_bytes(fusion.body.ty(output.value).dtype, &shape, &bytes) {
                Ok(array) => found.push(array),
                Err(error) => return Ok(CheckOutcome::NotCompared(error.to_string())),
            }
        }
        Ok(self.compare(fusion, &found).map_or_else(CheckOutcome::NotCompared, CheckOutcome::Compared))
    }

    fn compare(self, fusion: &Fusion, found: &[Array]) -> Result<Vec<Comparison>, String> {
        let Operands { graph, env } = self;
        let bounds = Bounds::of(&graph).and_then(|mut bounds| bounds.run(env.clone()));
        let bounds = bounds.map_err(|error| error.to_string())?;
        let mut after = env;
        let expected = evaluate(&graph, &mut after).map_err(|error| error.to_string())?;
        let compare = |(result, found): (usize, &Array)| {
            // New versions of states have no name, and are found in their state.
            let state = updated_param(fusion, result as u32).map(|param| operand_name(param as usize));
            let state = state.filter(|_| graph.outputs()[result].name.is_empty());
            let (name, expected) = match state {
                Some(name) => (format!("state {name}"), after.states.get(&name)),
                None => {
                    let name = result_name(result);
                    let expected = expected.iter().find(|(n, _)| *n == name).map(|(_, array)| array);
                    (name, expected)
                }
            };
            let interval = bounds.iter().find(|(n, _)| *n == name).map(|(_, interval)| interval);
            let (Some(interval), Some(expected)) = (interval, expected) else {
                return Err(format!("{name} is not computed by the interpreter"));
            };
            interval.compare(expected, found).map_err(|error| error.to_string())
        };
        found.iter().enumerate().map(compare).collect()
    }
}
