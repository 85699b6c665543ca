//! A compiled graph: run it as often as you like, with new inputs and symbol values each time.

use std::collections::HashMap;

use tallow_ir::{Bindings, DType, Graph, Op, TensorType};

use crate::cpu::CpuExecutable;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::resident::{State, Weight, byte_count, check_bytes};

/// One result of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct RunOutput {
    /// The output's name in the graph.
    pub name: String,
    /// Its extents under the symbol values of the run.
    pub shape: Vec<usize>,
    /// Its element type.
    pub dtype: DType,
    /// Its elements, row-major and little-endian.
    pub bytes: Vec<u8>,
}

/// One result of a run, where it lies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OutputView<'a> {
    /// The output's name in the graph.
    pub name: &'a str,
    /// Its extents under the symbol values of the run.
    pub shape: &'a [usize],
    /// Its element type.
    pub dtype: DType,
    /// Its elements, row-major and little-endian.
    pub bytes: &'a [u8],
}

/// Figures of a compiled graph. Those of commands and memory are 0 on the interpreter, which has neither.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ExecStats {
    /// Kernels launched in one run.
    pub dispatches: usize,
    /// Groups of dispatches that need no order among themselves.
    pub levels: usize,
    /// Barriers between the dispatches of one run.
    pub barriers: usize,
    /// The fewest barriers that any order could do with: the longest chain of dependent dispatches less one.
    pub barriers_lower_bound: usize,
    /// Size of the memory arena for intermediate values, in bytes.
    pub arena_bytes: u64,
    /// The largest set of intermediate values that live at one level, in bytes.
    pub arena_lower_bound_bytes: u64,
    /// Size of the weights as the device holds them, in bytes.
    pub weight_bytes: u64,
    /// Command buffers recorded so far.
    pub recordings: usize,
    /// Pipelines created so far.
    pub pipelines: usize,
    /// Time that compiling took, in milliseconds.
    pub compile_ms: f64,
    /// Kernels whose SPIR-V came from the cache on disk.
    pub spirv_cache_hits: usize,
}

/// A graph compiled for one device, with its weights and states bound.
#[derive(Debug)]
pub struct Executable {
    graph: Graph,
    device: Device,
    program: Program,
}

#[derive(Debug)]
enum Program {
    Cpu(CpuExecutable),
    #[cfg(feature = "vulkan")]
    Vulkan(std::sync::Arc<crate::vulkan::VulkanExecutable>),
}

impl Executable {
    pub(crate) fn compile(
        device: &Device,
        graph: &Graph,
        weights: &HashMap<String, Weight>,
        states: &HashMap<String, State>,
    ) -> Result<Executable> {
        let verified = tallow_ir::verify(graph.clone()).map_err(|found| Error::Invalid {
            graph: graph.name().into(),
            why: found.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "),
        })?;
        let graph = verified.into_graph();
        check_leaves(&graph, weights, states)?;
        let program = match device {
            Device::Cpu => Program::Cpu(CpuExecutable::new(&graph, weights, states)?),
            #[cfg(feature = "vulkan")]
            Device::Vulkan(device) => {
                let executable = crate::vulkan::VulkanExecutable::new(device, &graph, weights, states)?;
                Program::Vulkan(std::sync::Arc::new(executable))
            }
        };
        Ok(Executable { graph, device: device.clone(), program })
    }

    /// The graph as it was given.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// The device that it runs on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Runs once and waits. Every symbol and every input of the graph needs a value; inputs are row-major
    /// and little-endian.
    ///
    /// # Errors
    /// When a value is missing, unknown, of the wrong size or out of range, or the device fails.
    pub fn run(&self, symbols: &[(&str, u64)], inputs: &[(&str, &[u8])]) -> Result<Vec<RunOutput>> {
        self.run_async(symbols, inputs)?.wait()
    }

    /// Starts a run; [`Pending::wait`] gives its results. The interpreter has them at once.
    ///
    /// # Errors
    /// As [`Executable::run`].
    pub fn run_async(&self, symbols: &[(&str, u64)], inputs: &[(&str, &[u8])]) -> Result<Pending> {
        let bindings = bind_symbols(&self.graph, symbols)?;
        check_inputs(&self.graph, &bindings, inputs)?;
        match &self.program {
            Program::Cpu(program) => {
                let outputs = program.run(&self.graph, &bindings, inputs)?;
                Ok(Pending { run: Run::Done(outputs) })
            }
            #[cfg(feature = "vulkan")]
            Program::Vulkan(program) => {
                let run = program.start(&bindings, inputs)?;
                Ok(Pending { run: Run::Vulkan(program.clone(), run, bindings) })
            }
        }
    }

    /// Runs once and waits, without copies on the way: `write` puts the elements of the input of each name straight
    /// into memory that the device reads (row-major, little-endian; each byte once and in order), `read` sees each
    /// output where the device wrote it. An error of `write` ends the run before anything is computed.
    ///
    /// # Errors
    /// When a symbol is missing, unknown or out of range, a run is in flight, `write` fails, or the device does.
    pub fn run_with(
        &self,
        symbols: &[(&str, u64)],
        write: &mut dyn FnMut(&str, &mut [u8]) -> Result<()>,
        read: &mut dyn FnMut(OutputView),
    ) -> Result<()> {
        let bindings = bind_symbols(&self.graph, symbols)?;
        match &self.program {
            Program::Cpu(program) => {
                let mut given = Vec::new();
                for (_, node) in self.graph.nodes() {
                    let Op::Input { name, ty } = &node.op else { continue };
                    let shape = run_shape(ty, &bindings)?;
                    let no_size =
                        || Error::InvalidArgument { op: "run", why: format!("{ty} has no byte size") };
                    let mut bytes = vec![0; byte_count(ty.dtype, &shape).ok_or_else(no_size)?];
                    write(name, &mut bytes)?;
                    given.push((name.as_str(), bytes));
                }
                let inputs: Vec<(&str, &[u8])> = given.iter().map(|(n, b)| (*n, b.as_slice())).collect();
                for output in program.run(&self.graph, &bindings, &inputs)? {
                    let RunOutput { name, shape, dtype, bytes } = &output;
                    read(OutputView { name, shape, dtype: *dtype, bytes });
                }
                Ok(())
            }
            #[cfg(feature = "vulkan")]
            Program::Vulkan(program) => {
                let run = program.start_with(&bindings, write)?;
                program.finish_with(run, &bindings, read)
            }
        }
    }

    /// Figures of the compiled form.
    pub fn stats(&self) -> ExecStats {
        match &self.program {
            Program::Cpu(program) => program.stats(),
            #[cfg(feature = "vulkan")]
            Program::Vulkan(program) => program.stats(),
        }
    }

    /// What runs, as text: on a GPU the plan with kernels, barriers and offsets; on the interpreter the graph.
    pub fn explain(&self) -> String {
        match &self.program {
            Program::Cpu(_) => format!(
                "device cpu: the interpreter evaluates {} nodes one by one, no kernels, no barriers\n{}",
                self.graph.len(),
                self.graph
            ),
            #[cfg(feature = "vulkan")]
            Program::Vulkan(program) => program.explain(),
        }
    }

    /// Time of each kernel in the last run, in nanoseconds; none on the interpreter.
    pub fn timings(&self) -> Vec<(String, u64)> {
        match &self.program {
            Program::Cpu(_) => Vec::new(),
            #[cfg(feature = "vulkan")]
            Program::Vulkan(program) => program.timings(),
        }
    }
}

/// A run under way.
#[derive(Debug)]
#[must_use = "the results come from `wait`"]
pub struct Pending {
    run: Run,
}

#[derive(Debug)]
enum Run {
    Done(Vec<RunOutput>),
    #[cfg(feature = "vulkan")]
    Vulkan(std::sync::Arc<crate::vulkan::VulkanExecutable>, u64, Bindings),
}

impl Pending {
    /// Waits for the results, in the order of the graph's outputs.
    ///
    /// # Errors
    /// When the device fails.
    pub fn wait(self) -> Result<Vec<RunOutput>> {
        match self.run {
            Run::Done(outputs) => Ok(outputs),
            #[cfg(feature = "vulkan")]
            Run::Vulkan(program, run, bindings) => program.finish(run, &bindings),
        }
    }
}

fn check_leaves(
    graph: &Graph,
    weights: &HashMap<String, Weight>,
    states: &HashMap<String, State>,
) -> Result<()> {
    let check = |what: &'static str, name: &str, expected: &TensorType, got: Option<&TensorType>| match got {
        Some(got) if got == expected => Ok(()),
        Some(got) => Err(Error::TypeMismatch {
            what,
            name: name.into(),
            expected: Box::new(expected.clone()),
            got: Box::new(got.clone()),
        }),
        None => Err(Error::Missing { graph: graph.name().into(), what, name: name.into() }),
    };
    for (_, node) in graph.nodes() {
        match &node.op {
            Op::Weight { name, ty } => check("weight", name, ty, weights.get(name).map(Weight::ty))?,
            Op::State { name, ty } => check("state", name, ty, states.get(name).map(State::ty))?,
            _ => {}
        }
    }
    Ok(())
}

/// Checks symbol values against the graph: all there, none unknown, in range, no access out of bounds.
fn bind_symbols(graph: &Graph, symbols: &[(&str, u64)]) -> Result<Bindings> {
    let bindings: Bindings = symbols.iter().map(|(name, value)| (name.to_string(), *value)).collect();
    let named = |what, name: &str| (graph.name().to_string(), what, name.to_string());
    for symbol in graph.symbols() {
        match bindings.get(symbol.name()) {
            None => {
                let (graph, what, name) = named("symbol", symbol.name());
                return Err(Error::Missing { graph, what, name });
            }
            Some(value) if *value > u64::from(symbol.limit()) => {
                let (name, max) = (symbol.name().to_string(), symbol.limit());
                return Err(Error::SymbolRange { name, value: *value, max });
            }
            Some(_) => {}
        }
    }
    if let Some(unknown) = bindings.keys().find(|k| graph.symbols().all(|s| s.name() != k.as_str())) {
        let (graph, what, name) = named("symbol", unknown);
        return Err(Error::Unknown { graph, what, name });
    }
    for (end, extent) in graph.constraints() {
        let value = |d: &tallow_ir::Dim| d.eval(&bindings).unwrap_or(i64::MAX);
        let (end_value, extent_value) = (value(&end), value(&extent));
        if end_value > extent_value {
            return Err(Error::OutOfBounds { end, end_value, extent, extent_value });
        }
    }
    Ok(bindings)
}

/// Checks inputs against the graph: all there, none unknown, each of its type's size under the bindings.
fn check_inputs(graph: &Graph, bindings: &Bindings, inputs: &[(&str, &[u8])]) -> Result<()> {
    let mut used = 0;
    for (_, node) in graph.nodes() {
        let Op::Input { name, ty } = &node.op else { continue };
        let Some((_, bytes)) = inputs.iter().find(|(n, _)| n == name) else {
            return Err(Error::Missing { graph: graph.name().into(), what: "input", name: name.clone() });
        };
        used += 1;
        let shape = run_shape(ty, bindings)?;
        check_bytes("input", name, ty, &shape, bytes.len())?;
    }
    let is_input =
        |name: &str| graph.nodes().any(|(_, n)| matches!(&n.op, Op::Input { name: n, .. } if n == name));
    match inputs.iter().find(|(name, _)| used < inputs.len() && !is_input(name)) {
        Some((name, _)) => {
            Err(Error::Unknown { graph: graph.name().into(), what: "input", name: name.to_string() })
        }
        None => Ok(()),
    }
}

/// The extents of a type under symbol values.
pub(crate) fn run_shape(ty: &TensorType, bindings: &Bindings) -> Result<Vec<usize>> {
    ty.shape.eval(bindings).ok_or_else(|| Error::SymbolicShape { shape: ty.shape.clone() })
}
