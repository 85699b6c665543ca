//! A compiled graph: run it as often as you like, with new inputs and symbol values each time.

#[cfg(feature = "vulkan")]
mod sample;
mod verified;
mod verify;

use std::collections::HashMap;
use std::sync::Arc;

use tallow_ir::{Bindings, Dim, Graph, Op, Symbol, TensorType};

use crate::cpu::CpuExecutable;
use crate::device::Device;
use crate::draws::is_draw_symbol;
use crate::error::{Error, Result};
use crate::outputs::{Memory, OutputView, Outputs, RunOutput, Spare};
use crate::resident::{GraphState, Weight, byte_count, check_bytes, run_shape};
use crate::stats::ExecStats;
#[cfg(feature = "vulkan")]
use crate::vulkan_executable::VulkanExecutable;
pub use verified::{Driver, VerifiedKernels};
pub use verify::{CheckOutcome, KernelCheck, VerifyOptions};

impl Device {
    /// Compiles `graph` for this device; its weight and state leaves are bound by name.
    ///
    /// # Errors
    /// When the graph is invalid, or a leaf is missing, of another type or on another device.
    pub fn compile(
        &self,
        graph: &Graph,
        weights: &HashMap<String, Weight>,
        states: &HashMap<String, GraphState>,
    ) -> Result<Executable> {
        Executable::compile(self, graph, weights, states)
    }

    /// Compiles a graph whose weights and states are bound later, so that they can be loaded meanwhile.
    ///
    /// # Errors
    /// When the graph is invalid or needs what the device lacks.
    pub fn prepare(&self, graph: &Graph) -> Result<Prepared> {
        Prepared::new(self, graph)
    }
}

/// A graph compiled for one device, with its weights and states bound.
#[derive(Debug)]
pub struct Executable {
    graph: Graph,
    wants: Wants,
    device: Device,
    program: DeviceExecutable,
    spare: Spare,
}

/// What a run must give, found once, since a run neither searches the graph nor allocates.
#[derive(Debug)]
struct Wants {
    symbols: Vec<Symbol>,
    /// How many random draws each run takes, whose symbols are then given to no run.
    draws: u32,
    /// Pairs of an end and the extent that it may not exceed.
    constraints: Vec<(Dim, Dim)>,
    inputs: Vec<(String, TensorType)>,
}

#[derive(Debug)]
enum DeviceExecutable {
    Cpu(CpuExecutable),
    #[cfg(feature = "vulkan")]
    Vulkan(Arc<VulkanExecutable>),
}

/// A graph compiled for one device, whose weights and states need not be there yet: kernels and plan, no memory.
#[derive(Debug)]
pub struct Prepared {
    graph: Graph,
    device: Device,
    /// How many random draws each run takes by itself.
    draws: u32,
    /// What runs of functions must be given, found once.
    #[cfg(feature = "vulkan")]
    wants: std::sync::OnceLock<Wants>,
    #[cfg(feature = "vulkan")]
    kernels: Option<tallow_runtime::executable::Compiled>,
}

impl Prepared {
    pub(crate) fn new(device: &Device, graph: &Graph) -> Result<Prepared> {
        Prepared::of_verified(device, verified(graph)?, None)
    }

    /// With at most `budget` bytes of intermediate values on a GPU.
    pub(crate) fn within(device: &Device, graph: &Graph, budget: Option<u64>) -> Result<Prepared> {
        Prepared::of_verified(device, verified(graph)?, budget)
    }

    /// As [`Device::prepare`], with kernels that `edit` changes: for tests of what finds wrong ones.
    #[doc(hidden)]
    #[cfg(feature = "vulkan")]
    pub fn edited(
        device: &Device,
        graph: &Graph,
        edit: &mut dyn FnMut(&mut [tallow_codegen::Kernel]),
    ) -> Result<Prepared> {
        let mut prepared = Prepared::of_verified(device, verified(graph)?, None)?;
        if let Device::Vulkan(device) = device {
            prepared.kernels = Some(device.edited_kernels(graph, edit)?);
        }
        Ok(prepared)
    }

    fn of_verified(device: &Device, graph: Graph, budget: Option<u64>) -> Result<Prepared> {
        #[cfg(not(feature = "vulkan"))]
        let _ = budget;
        Ok(Prepared {
            #[cfg(feature = "vulkan")]
            kernels: match device {
                Device::Cpu => None,
                Device::Vulkan(device) => Some(device.kernels(&graph, budget)?),
            },
            graph,
            device: device.clone(),
            draws: 0,
            #[cfg(feature = "vulkan")]
            wants: std::sync::OnceLock::new(),
        })
    }

    /// The same, whose runs each take the next `draws` random draws and give their symbols values.
    pub(crate) fn with_draws(self, draws: u32) -> Prepared {
        Prepared {
            draws,
            #[cfg(feature = "vulkan")]
            wants: std::sync::OnceLock::new(),
            ..self
        }
    }

    /// How many random draws each run takes by itself.
    pub(crate) fn draws(&self) -> u32 {
        self.draws
    }

    /// Values of symbols, checked as [`Executable::run`] does, and of the random draws of a run.
    #[cfg(feature = "vulkan")]
    pub(crate) fn bind_symbols(&self, symbols: &[(&str, u64)]) -> Result<Bindings> {
        let mut bindings = Bindings::new();
        let wants = self.wants.get_or_init(|| Wants::of(&self.graph, self.draws));
        wants.bind_symbols(&self.graph, symbols, &mut bindings)?;
        wants.bind_draws(&self.device, &mut bindings);
        Ok(bindings)
    }

    /// The same kernels and plan, appended to the device's stream.
    #[cfg(feature = "vulkan")]
    pub(crate) fn lazy_plan(&self, device: &crate::vulkan::VulkanDevice) -> Result<crate::vulkan::LazyPlan> {
        match &self.kernels {
            Some(kernels) => device.plan_of(kernels.clone()),
            None => device.lazy_plan(&self.graph),
        }
    }

    /// The graph as it was given.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Binds weights for the interpreter; states are given with each run ([`Executable::run_values`]).
    pub(crate) fn bind_values(&self, weights: &HashMap<String, Weight>) -> Result<Executable> {
        let program = DeviceExecutable::Cpu(CpuExecutable::new(&self.graph, weights, &HashMap::new())?);
        let (graph, device) = (self.graph.clone(), self.device.clone());
        let wants = Wants::of(&graph, self.draws);
        Ok(Executable { wants, graph, device, program, spare: Spare::default() })
    }

    /// Binds weights and states by name, as [`Device::compile`] does. Each executable that is bound has inputs, outputs and
    /// intermediate values of its own, so that runs of two may be under way at once: the device computes them in the order
    /// in which they were started, and one that reads a state sees what those before it wrote. (A result that is a state's
    /// version is read from the state when it is waited for, so before a later run is started that writes there.)
    ///
    /// # Errors
    /// When one is missing, of another type or on another device, or memory runs out.
    pub fn bind(
        &self,
        weights: &HashMap<String, Weight>,
        states: &HashMap<String, GraphState>,
    ) -> Result<Executable> {
        check_leaves(&self.graph, weights, states)?;
        let program = match &self.device {
            Device::Cpu => DeviceExecutable::Cpu(CpuExecutable::new(&self.graph, weights, states)?),
            #[cfg(feature = "vulkan")]
            Device::Vulkan(device) => {
                let kernels = match &self.kernels {
                    Some(kernels) => kernels,
                    None => &device.kernels(&self.graph, None)?,
                };
                let executable = VulkanExecutable::new(device, &self.graph, kernels, weights, states)?;
                DeviceExecutable::Vulkan(Arc::new(executable))
            }
        };
        let wants = Wants::of(&self.graph, self.draws);
        let (graph, device) = (self.graph.clone(), self.device.clone());
        Ok(Executable { graph, wants, device, program, spare: Spare::default() })
    }
}

pub(crate) fn verified(graph: &Graph) -> Result<Graph> {
    let verified = tallow_ir::verify(graph.clone()).map_err(|found| Error::Invalid {
        graph: graph.name().into(),
        why: found.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "),
    })?;
    Ok(verified.into_graph())
}

impl Executable {
    pub(crate) fn compile(
        device: &Device,
        graph: &Graph,
        weights: &HashMap<String, Weight>,
        states: &HashMap<String, GraphState>,
    ) -> Result<Executable> {
        let graph = verified(graph)?;
        // Before the work, not after it.
        check_leaves(&graph, weights, states)?;
        Prepared::of_verified(device, graph, None)?.bind(weights, states)
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
    /// and little-endian. The symbols of random draws have their values from [`Device::next_draws`]; the executable of a
    /// [`crate::Function`] takes its draws itself.
    ///
    /// On a GPU, a run allocates nothing on the heap where earlier results were dropped ([`Outputs`]).
    ///
    /// # Errors
    /// When a value is missing, unknown, of the wrong size or out of range, or the device fails.
    pub fn run(&self, symbols: &[(&str, u64)], inputs: &[(&str, &[u8])]) -> Result<Outputs> {
        self.run_async(symbols, inputs)?.wait()
    }

    /// Starts a run; [`Pending::wait`] gives its results. The interpreter has them at once.
    ///
    /// # Errors
    /// As [`Executable::run`].
    pub fn run_async(&self, symbols: &[(&str, u64)], inputs: &[(&str, &[u8])]) -> Result<Pending> {
        let mut outputs = self.spare.take();
        let memory = outputs.memory();
        self.wants.bind_symbols(&self.graph, symbols, &mut memory.bindings)?;
        self.wants.check_inputs(&self.graph, &memory.bindings, inputs)?;
        self.wants.bind_draws(&self.device, &mut memory.bindings);
        match &self.program {
            DeviceExecutable::Cpu(program) => {
                memory.outputs = program.run(&self.graph, &memory.bindings, inputs, &mut [])?;
                Ok(Pending { run: Run::Done(outputs) })
            }
            #[cfg(feature = "vulkan")]
            DeviceExecutable::Vulkan(program) => {
                let run = program.start(&memory.bindings, inputs)?;
                Ok(Pending { run: Run::Vulkan(program.clone(), run, outputs) })
            }
        }
    }

    /// [`Executable::run`] on the interpreter with states that are given too, and replaced by their new versions. Of the
    /// symbols the graph may have only some.
    pub(crate) fn run_values(
        &self,
        symbols: &[(&str, u64)],
        inputs: &[(&str, &[u8])],
        states: &mut [(&str, Arc<Vec<u8>>)],
    ) -> Result<Outputs> {
        let known = |(name, _): &&(&str, u64)| self.wants.symbols.iter().any(|symbol| symbol.name() == *name);
        let symbols: Vec<(&str, u64)> = symbols.iter().filter(known).copied().collect();
        let mut outputs = self.spare.take();
        let memory = outputs.memory();
        self.wants.bind_symbols(&self.graph, &symbols, &mut memory.bindings)?;
        self.wants.check_inputs(&self.graph, &memory.bindings, inputs)?;
        self.wants.bind_draws(&self.device, &mut memory.bindings);
        match &self.program {
            DeviceExecutable::Cpu(program) => {
                memory.outputs = program.run(&self.graph, &memory.bindings, inputs, states)?;
                Ok(outputs)
            }
            #[cfg(feature = "vulkan")]
            DeviceExecutable::Vulkan(_) => Err(Error::Device("a GPU runs graphs on values by a plan".into())),
        }
    }

    /// Runs once and waits, without copies on the way: `write` puts the elements of the input of each name straight
    /// into memory that the device reads (row-major, little-endian; each byte once and in order), `read` sees each
    /// output where the device wrote it. An error of `write` ends the run before anything is computed. On a GPU, a run
    /// allocates nothing on the heap once there was one, but for results of block types and new versions of states.
    ///
    /// # Errors
    /// When a symbol is missing, unknown or out of range, a run is in flight, `write` fails, or the device does.
    pub fn run_with(
        &self,
        symbols: &[(&str, u64)],
        write: &mut dyn FnMut(&str, &mut [u8]) -> Result<()>,
        read: &mut dyn FnMut(OutputView),
    ) -> Result<()> {
        let mut outputs = self.spare.take();
        let Memory { bindings, .. } = outputs.memory();
        self.wants.bind_symbols(&self.graph, symbols, bindings)?;
        self.wants.bind_draws(&self.device, bindings);
        match &self.program {
            DeviceExecutable::Cpu(program) => {
                let mut given = Vec::new();
                for (_, node) in self.graph.nodes() {
                    let Op::Input { name, ty } = &node.op else { continue };
                    let shape = run_shape(ty, bindings)?;
                    let no_size =
                        || Error::InvalidArgument { op: "run", why: format!("{ty} has no byte size") };
                    let mut bytes = vec![0; byte_count(ty.dtype, &shape).ok_or_else(no_size)?];
                    write(name, &mut bytes)?;
                    given.push((name.as_str(), bytes));
                }
                let inputs: Vec<(&str, &[u8])> = given.iter().map(|(n, b)| (*n, b.as_slice())).collect();
                for output in program.run(&self.graph, bindings, &inputs, &mut [])? {
                    let RunOutput { name, shape, dtype, bytes } = &output;
                    read(OutputView { name, shape, dtype: *dtype, bytes });
                }
                Ok(())
            }
            #[cfg(feature = "vulkan")]
            DeviceExecutable::Vulkan(program) => {
                let run = program.start_with(bindings, write)?;
                program.finish_with(run, bindings, read)
            }
        }
    }

    /// Figures of the compiled form.
    pub fn stats(&self) -> ExecStats {
        match &self.program {
            DeviceExecutable::Cpu(program) => program.stats(),
            #[cfg(feature = "vulkan")]
            DeviceExecutable::Vulkan(program) => program.stats(),
        }
    }

    /// What runs, as text: on a GPU the plan with kernels, barriers and offsets; on the interpreter the graph.
    pub fn explain(&self) -> String {
        match &self.program {
            DeviceExecutable::Cpu(_) => format!(
                "device cpu: the interpreter evaluates {} nodes one by one, no kernels, no barriers\n{}",
                self.graph.len(),
                self.graph
            ),
            #[cfg(feature = "vulkan")]
            DeviceExecutable::Vulkan(program) => program.explain(),
        }
    }

    /// Time of each kernel in the last run, in nanoseconds; none on the interpreter.
    pub fn timings(&self) -> Vec<(String, u64)> {
        match &self.program {
            DeviceExecutable::Cpu(_) => Vec::new(),
            #[cfg(feature = "vulkan")]
            DeviceExecutable::Vulkan(program) => program.timings(),
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
    Done(Outputs),
    #[cfg(feature = "vulkan")]
    Vulkan(Arc<VulkanExecutable>, u64, Outputs),
}

impl Pending {
    /// Waits for the results, in the order of the graph's outputs.
    ///
    /// # Errors
    /// When the device fails.
    pub fn wait(self) -> Result<Outputs> {
        match self.run {
            Run::Done(outputs) => Ok(outputs),
            #[cfg(feature = "vulkan")]
            Run::Vulkan(program, run, mut outputs) => {
                let memory = outputs.memory();
                program.finish(run, &memory.bindings, &mut memory.outputs)?;
                Ok(outputs)
            }
        }
    }
}

fn check_leaves(
    graph: &Graph,
    weights: &HashMap<String, Weight>,
    states: &HashMap<String, GraphState>,
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
            Op::State { name, ty } => check("state", name, ty, states.get(name).map(GraphState::ty))?,
            _ => {}
        }
    }
    Ok(())
}

impl Wants {
    fn of(graph: &Graph, draws: u32) -> Wants {
        let input = |node: &tallow_ir::Node| match &node.op {
            Op::Input { name, ty } => Some((name.clone(), ty.clone())),
            _ => None,
        };
        Wants {
            symbols: graph.symbols().cloned().collect(),
            draws,
            constraints: graph.constraints(),
            inputs: graph.nodes().filter_map(|(_, node)| input(node)).collect(),
        }
    }

    /// Checks symbol values (all there, none unknown, in range, no access out of bounds) and leaves them in `bindings`,
    /// which is empty or holds values of these symbols.
    fn bind_symbols(&self, graph: &Graph, symbols: &[(&str, u64)], bindings: &mut Bindings) -> Result<()> {
        let named = |what, name: &str| (graph.name().to_string(), what, name.to_string());
        for symbol in self.symbols.iter().filter(|symbol| !self.is_drawn(symbol)) {
            match symbols.iter().rev().find(|(name, _)| *name == symbol.name()) {
                None => {
                    let (graph, what, name) = named("symbol", symbol.name());
                    return Err(Error::Missing { graph, what, name });
                }
                Some((_, value)) if !symbol.contains(*value) => {
                    let (name, min, max) = (symbol.name().to_string(), symbol.least(), symbol.limit());
                    return Err(Error::SymbolRange { name, value: *value, min, max });
                }
                Some((_, value)) => set(bindings, symbol.name(), *value),
            }
        }
        let is_given = |name: &str| self.symbols.iter().any(|s| s.name() == name && !self.is_drawn(s));
        if let Some((unknown, _)) = symbols.iter().find(|(name, _)| !is_given(name)) {
            let (graph, what, name) = named("symbol", unknown);
            return Err(Error::Unknown { graph, what, name });
        }
        for (end, extent) in &self.constraints {
            let value = |d: &Dim| d.eval(bindings).unwrap_or(i64::MAX);
            let (end_value, extent_value) = (value(end), value(extent));
            if end_value > extent_value {
                let (end, extent) = (end.clone(), extent.clone());
                return Err(Error::OutOfBounds { end, end_value, extent, extent_value });
            }
        }
        Ok(())
    }

    /// Whether a run gives the symbol its value itself, as a part of its random draws.
    fn is_drawn(&self, symbol: &Symbol) -> bool {
        self.draws > 0 && is_draw_symbol(symbol.name())
    }

    /// Takes the random draws of a run, and leaves the values of their symbols in `bindings`.
    fn bind_draws(&self, device: &Device, bindings: &mut Bindings) {
        if self.draws == 0 {
            return;
        }
        for (name, value) in device.next_draws(self.draws) {
            // The graph has no symbols of draws that no result depends on.
            if self.symbols.iter().any(|symbol| symbol.name() == name) {
                set(bindings, name, value);
            }
        }
    }

    /// Checks inputs: all there, none unknown, each of its type's size under the bindings.
    fn check_inputs(&self, graph: &Graph, bindings: &Bindings, inputs: &[(&str, &[u8])]) -> Result<()> {
        for (name, ty) in &self.inputs {
            let Some((_, bytes)) = inputs.iter().find(|(n, _)| n == name) else {
                return Err(Error::Missing { graph: graph.name().into(), what: "input", name: name.clone() });
            };
            if plain_bytes(ty, bindings) != Some(bytes.len()) {
                check_bytes("input", name, ty, &run_shape(ty, bindings)?, bytes.len())?;
            }
        }
        let is_input = |name: &str| self.inputs.iter().any(|(n, _)| n == name);
        match inputs.iter().find(|(name, _)| !is_input(name)) {
            Some((name, _)) => {
                Err(Error::Unknown { graph: graph.name().into(), what: "input", name: name.to_string() })
            }
            None => Ok(()),
        }
    }
}

/// Gives a symbol a value, without an allocation where it had one.
fn set(bindings: &mut Bindings, name: &str, value: u64) {
    match bindings.get_mut(name) {
        Some(bound) => *bound = value,
        None => _ = bindings.insert(name.to_string(), value),
    }
}

/// Bytes of a tensor whose elements have a size each; `None` where they overflow or a symbol has no value.
fn plain_bytes(ty: &TensorType, bindings: &Bindings) -> Option<usize> {
    let extent = |d: &Dim| usize::try_from(d.eval(bindings)?).ok();
    let times = |bytes: usize, d: &Dim| bytes.checked_mul(extent(d)?);
    ty.shape.dims().iter().try_fold(ty.dtype.size()?, times)
}
