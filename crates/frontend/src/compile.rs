//! Compiling a function of tensors explicitly, once, to run it many times.

mod captured;
#[cfg(feature = "vulkan")]
mod operands;

use std::collections::HashMap;
use std::sync::OnceLock;
#[cfg(feature = "vulkan")]
use std::sync::{Mutex, PoisonError};

use tallow_ir::{Bindings, DType, Dim, Graph, Shape, TensorType};

use self::captured::Captured;
use crate::device::Device;
use crate::draws::is_draw_symbol;
use crate::error::{Error, Result};
use crate::executable::{Executable, Prepared};
use crate::lower::{Lowered, computed_constants, lower_function};
use crate::outputs::OutputView;
use crate::remat::CompileOptions;
use crate::resident::Weight;
#[cfg(feature = "vulkan")]
use crate::resident::run_shape;
use crate::shape::IntoShape;
use crate::tensor::{Expr, Tensor};
use crate::trace::Compiling;
#[cfg(feature = "vulkan")]
use crate::values::OnDevice;

/// An input of a function to compile.
#[derive(Clone, Debug, PartialEq)]
pub struct Input {
    /// Its name in the graph and in messages.
    pub name: String,
    /// Element type and shape; extents may be symbols.
    pub ty: TensorType,
}

impl Input {
    /// An input of a name, element type and shape.
    pub fn new(name: &str, dtype: DType, shape: impl IntoShape) -> Input {
        Input { name: name.into(), ty: TensorType { dtype, shape: shape.into_shape() } }
    }
}

/// Compiles what `build` makes of its inputs. Tensors that it captures become weights: resident on the
/// device, uploaded once.
///
/// ```
/// use tallow::{DType, Device, Input, Symbol, Tensor, compile};
/// let rows = Symbol::new("rows", 100);
/// let w = Tensor::new([[1f32, 2.0], [3.0, 4.0]], &Device::Cpu)?;
/// let f = compile(&Device::Cpu, &[Input::new("x", DType::F32, (rows, 2))], |x| Ok(vec![x[0].matmul(&w)?.relu()?]))?;
/// let x = Tensor::new([[1f32, -1.0], [1.0, 1.0], [0.0, 1.0]], &Device::Cpu)?;
/// assert_eq!(f.run(&[&x])?[0].to_vec2::<f32>()?, [[0.0, 0.0], [4.0, 6.0], [3.0, 4.0]]);
/// # Ok::<(), tallow::Error>(())
/// ```
///
/// Extents may be symbols, which only a run gives a value. `build` passes them on as shapes or as
/// [`Tensor::sym_dims`]; where it reads one as a number, with [`Tensor::dims`] for example, there is no function that
/// serves all values, and this is an error whatever `build` returns.
///
/// Random tensors that `build` makes on `device`, also by layers such as [`crate::nn::Dropout`], are drawn in each run. They
/// have no values while `build` runs, and no other function may read them.
///
/// # Errors
/// When `build` fails, reads a symbolic extent as a number or gives tensors of another device, a symbol is called
/// [`crate::RANDOM_KEY`] or [`crate::RANDOM_DRAW`], or compiling fails.
pub fn compile(
    device: &Device,
    inputs: &[Input],
    build: impl FnOnce(&[Tensor]) -> Result<Vec<Tensor>>,
) -> Result<Function> {
    compile_with(device, inputs, CompileOptions::default(), build)
}

/// As [`compile`], with options.
///
/// # Errors
/// As [`compile`], and when intermediate values take more than the options allow.
pub fn compile_with(
    device: &Device,
    inputs: &[Input],
    options: CompileOptions,
    build: impl FnOnce(&[Tensor]) -> Result<Vec<Tensor>>,
) -> Result<Function> {
    let compiling = Compiling::begin(device, inputs.iter().map(|input| &input.ty.shape));
    let leaf = |input: &Input| {
        let leaf = tallow_ir::Op::Input { name: input.name.clone(), ty: input.ty.clone() };
        tallow_ir::infer::infer(&leaf, &[])?;
        let expr = Expr::Input(input.name.clone());
        Tensor::traced(input.ty.clone(), device, expr, Some(compiling.trace()))
    };
    let arguments: Vec<Tensor> = inputs.iter().map(leaf).collect::<Result<_>>()?;
    let results = build(&arguments);
    // Before its own error, which may follow from the number.
    compiling.check()?;
    let draws = compiling.draws();
    let results = results?.iter().map(Tensor::current).collect::<Result<Vec<_>>>()?;
    let versions = compiling.versions();
    if let Some(other) = results.iter().find(|t| t.device() != device) {
        return Err(device.mismatch("compile", other.device()));
    }
    let roots: Vec<&Tensor> = results.iter().collect();
    let updated: Vec<&Tensor> = versions.iter().map(|(_, version)| version).collect();
    let constants = computed_constants(&[roots.as_slice(), &updated].concat());
    crate::eval::eval_for("compile", &constants.iter().collect::<Vec<_>>())?;
    let named: Vec<(&str, &Tensor)> = inputs.iter().map(|i| i.name.as_str()).zip(&arguments).collect();
    // Until the captured values are bound, so that no evaluation overwrites them.
    let evaluation = device.evaluation();
    let Lowered { graph, known, blocks, captured, .. } =
        lower_function("compiled", &roots, &named, &versions, draws.leaves())?;
    let mut weights = HashMap::new();
    for (name, tensor) in known {
        weights.insert(name, tensor.as_weight()?);
    }
    for (name, tensor, blocks) in blocks {
        weights.insert(name, blocks.weight(tensor.device(), tensor.dtype(), tensor.const_dims()?)?);
    }
    drop(evaluation);
    let states = Captured::of(captured, &versions);
    let outputs = results.iter().map(|tensor| tensor.ty().clone()).collect();
    let program = CompiledFunction {
        prepared: Prepared::within(device, &graph, options.remat.budget(device))?.with_draws(draws.count),
        weights,
        states,
        executable: OnceLock::new(),
        #[cfg(feature = "vulkan")]
        lazy: OnceLock::new(),
        #[cfg(feature = "vulkan")]
        operands: Mutex::default(),
    };
    Ok(Function { device: device.clone(), inputs: inputs.to_vec(), outputs, program })
}

/// A compiled function of tensors.
#[derive(Debug)]
pub struct Function {
    device: Device,
    inputs: Vec<Input>,
    #[cfg_attr(not(feature = "vulkan"), expect(dead_code))]
    outputs: Vec<TensorType>,
    program: CompiledFunction,
}

/// What runs a function, each made when it is needed first.
#[derive(Debug)]
struct CompiledFunction {
    prepared: Prepared,
    weights: HashMap<String, Weight>,
    states: Vec<Captured>,
    /// For bytes of the host's, and on the CPU.
    executable: OnceLock<Executable>,
    /// For tensors on the device.
    #[cfg(feature = "vulkan")]
    lazy: OnceLock<crate::vulkan::LazyPlan>,
    /// What the plan's runs use, once there was one.
    #[cfg(feature = "vulkan")]
    operands: Mutex<Option<operands::Operands>>,
}

impl Function {
    /// Runs the function. Symbols in the input shapes take the extents of the tensors given. On a GPU, tensors are neither
    /// copied nor waited for.
    ///
    /// Random numbers are new in each run: it takes the next draws of the sequence that [`Device::set_seed`] starts, as many
    /// as the function has, in their order.
    ///
    /// # Errors
    /// When the tensors are not those that the function takes, a symbol is in no input's shape, or computing fails.
    pub fn run(&self, tensors: &[&Tensor]) -> Result<Vec<Tensor>> {
        self.run_at(&[], tensors)
    }

    /// [`Function::run`] with values of symbols that no input's shape has: the position of a token, for example.
    ///
    /// # Errors
    /// As [`Function::run`], and when a value is not that of the tensors' extents or beyond its symbol's maximum.
    pub fn run_at(&self, symbols: &[(&str, usize)], tensors: &[&Tensor]) -> Result<Vec<Tensor>> {
        if tensors.len() != self.inputs.len() {
            let why = format!("the function takes {} tensors, got {}", self.inputs.len(), tensors.len());
            return Err(Error::InvalidArgument { op: "run", why });
        }
        let types = tensors.iter().map(|t| Ok((t.dtype(), t.const_dims()?))).collect::<Result<Vec<_>>>()?;
        let mut bound = bind_all(&self.inputs, &types)?;
        for (name, value) in symbols {
            if is_draw_symbol(name) {
                let (graph, name) = (self.graph().name().into(), name.to_string());
                return Err(Error::Unknown { graph, what: "symbol", name });
            }
            match bound.iter().find(|(known, _)| known == name) {
                Some((_, known)) if *known != *value as u64 => {
                    let why = format!("symbol {name} is {value}, but {known} by the inputs' shapes");
                    return Err(Error::InvalidArgument { op: "run", why });
                }
                Some(_) => {}
                None => bound.push((name.to_string(), *value as u64)),
            }
        }
        let symbols: Vec<(&str, u64)> = bound.iter().map(|(name, value)| (name.as_str(), *value)).collect();
        crate::eval::eval_for("run", tensors)?;
        #[cfg(feature = "vulkan")]
        if let Device::Vulkan(device) = &self.device
            && self.outputs.iter().all(|ty| ty.dtype.size().is_some())
        {
            return self.run_on_device(device, tensors, &symbols);
        }
        self.run_on_host(tensors, &symbols)
    }

    /// By bytes of the host's.
    fn run_on_host(&self, tensors: &[&Tensor], symbols: &[(&str, u64)]) -> Result<Vec<Tensor>> {
        let bytes = tensors.iter().map(|t| t.bytes("run")).collect::<Result<Vec<_>>>()?;
        let given: Vec<(&str, &[u8])> =
            self.inputs.iter().zip(&bytes).map(|(i, b)| (i.name.as_str(), b.as_slice())).collect();
        let outputs = match self.program.states.is_empty() {
            true => self.any_executable()?.run(symbols, &given)?,
            false => self.run_states_on_host(symbols, &given)?,
        };
        let tensor = |o: crate::outputs::RunOutput| {
            Tensor::from_raw(o.dtype, Shape::from(o.shape), o.bytes, &self.device)
        };
        outputs.into_iter().map(tensor).collect()
    }

    fn run_states_on_host(&self, symbols: &[(&str, u64)], given: &[(&str, &[u8])]) -> Result<crate::Outputs> {
        let mut cells: Vec<_> = self.program.states.iter().map(|captured| captured.state.lock()).collect();
        let mut values = vec![];
        for (captured, cell) in self.program.states.iter().zip(&cells) {
            values.push((captured.name.as_str(), cell.bytes("run")?));
        }
        let outputs = self.any_executable()?.run_values(symbols, given, &mut values)?;
        for ((captured, cell), (_, bytes)) in self.program.states.iter().zip(&mut cells).zip(values) {
            if captured.is_updated {
                let ty = cell.ty().clone();
                **cell = captured.state.version(Tensor::node(ty, &self.device, Expr::Data(bytes))?);
            }
        }
        Ok(outputs)
    }

    #[cfg(feature = "vulkan")]
    fn run_on_device(
        &self,
        device: &crate::vulkan::VulkanDevice,
        tensors: &[&Tensor],
        symbols: &[(&str, u64)],
    ) -> Result<Vec<Tensor>> {
        let bindings = self.program.prepared.bind_symbols(symbols)?;
        let plan = self.lazy_plan(device)?;
        let mut inputs = vec![];
        for tensor in tensors {
            inputs.push(tensor.to_device(&self.device)?.on_device()?.value().clone());
        }
        let mut operands = self.program.operands.lock().unwrap_or_else(PoisonError::into_inner);
        let operands = match &mut *operands {
            Some(operands) => operands,
            none => {
                let names: Vec<&str> = self.inputs.iter().map(|input| input.name.as_str()).collect();
                none.insert(operands::Operands::new(
                    &names,
                    &self.program.weights,
                    &self.program.states,
                    plan,
                )?)
            }
        };
        // Until the run is appended, nobody reads or replaces the states.
        let _states = operands.lock(&self.program.states)?;
        let values = plan.run(&bindings, &mut operands.memory, &inputs);
        let values = values.map_err(|error| self.with_budget(error, device))?;
        let tensor = |(ty, value): (&TensorType, OnDevice)| {
            let extents = run_shape(ty, &bindings)?;
            Tensor::node(TensorType::new(ty.dtype, extents), &self.device, Expr::Device(value))
        };
        self.outputs.iter().zip(values).map(tensor).collect()
    }

    /// An error for want of memory, with the budget for intermediate values that would be small enough.
    #[cfg(feature = "vulkan")]
    fn with_budget(&self, error: Error, device: &crate::vulkan::VulkanDevice) -> Error {
        let Error::OutOfMemory { what, bytes, reason } = error else { return error };
        if what != tallow_runtime::lazy::INTERMEDIATE_VALUES {
            return Error::OutOfMemory { what, bytes, reason };
        }
        let left = device.bytes_left();
        let more = bytes.saturating_sub(left);
        let advice = match crate::plan::plan_memory_within(self.graph(), device.caps(), Some(left)) {
            Ok(plan) => format!(
                "they would fit into {} bytes if the function was compiled with Remat::Budget({left}) or Remat::Auto",
                plan.arena
            ),
            Err(error) => error.to_string(),
        };
        let reason = format!("{reason}; {left} bytes are left for them, {more} too few; {advice}");
        Error::OutOfMemory { what, bytes, reason }
    }

    /// [`Function::run`] for data that lies elsewhere: `types` are the element types and extents of the inputs,
    /// `write` puts the elements of the input of each number straight into memory that the device reads, and `read`
    /// sees each result where the device wrote it; see [`Executable::run_with`].
    ///
    /// # Errors
    /// As [`Function::run`], and those of `write`.
    pub fn run_with(
        &self,
        types: &[(DType, &[usize])],
        write: &mut dyn FnMut(usize, &mut [u8]) -> Result<()>,
        read: &mut dyn FnMut(OutputView),
    ) -> Result<()> {
        if types.len() != self.inputs.len() {
            let why = format!("the function takes {} tensors, got {}", self.inputs.len(), types.len());
            return Err(Error::InvalidArgument { op: "run", why });
        }
        let symbols = bind_all(&self.inputs, types)?;
        let symbols: Vec<(&str, u64)> = symbols.iter().map(|(name, value)| (name.as_str(), *value)).collect();
        let mut by_name = |name: &str, bytes: &mut [u8]| {
            let unknown = || Error::Unknown { graph: "compiled".into(), what: "input", name: name.into() };
            write(self.inputs.iter().position(|i| i.name == name).ok_or_else(unknown)?, bytes)
        };
        self.executable()?.run_with(&symbols, &mut by_name, read)
    }

    /// How many random draws the function has: by so many each run advances the sequence that [`Device::set_seed`] starts.
    pub fn draws(&self) -> u32 {
        self.program.prepared.draws()
    }

    /// What is computed, as a graph. Where it has random draws, so has it the symbols [`crate::RANDOM_KEY`] and
    /// [`crate::RANDOM_DRAW`], to which a run of another executable of this graph gives values of [`Device::next_draws`].
    pub fn graph(&self) -> &Graph {
        self.program.prepared.graph()
    }

    /// What runs, as text: on a GPU the plan with kernels, barriers and offsets; on the interpreter the graph.
    ///
    /// # Errors
    /// When memory runs out.
    pub fn explain(&self) -> Result<String> {
        match &self.device {
            Device::Cpu => Ok(self.any_executable()?.explain()),
            #[cfg(feature = "vulkan")]
            Device::Vulkan(device) => Ok(self.lazy_plan(device)?.explain()),
        }
    }

    #[cfg(feature = "vulkan")]
    fn lazy_plan(&self, device: &crate::vulkan::VulkanDevice) -> Result<&crate::vulkan::LazyPlan> {
        match self.program.lazy.get() {
            Some(plan) => Ok(plan),
            None => {
                let CompiledFunction { prepared, weights, .. } = &self.program;
                let there = |(name, w): (&String, &Weight)| Some((name.clone(), w.on_vulkan()?.clone()));
                let weights = weights.iter().filter_map(there).collect();
                let made = prepared.lazy_plan(device)?.with_copies(&weights)?;
                // If another thread was faster, its plan serves.
                Ok(self.program.lazy.get_or_init(|| made))
            }
        }
    }

    /// The executable below, with its figures and its plan. It has memory of its own for inputs, intermediate values and
    /// results, taken when it is asked for first.
    ///
    /// # Errors
    /// When memory runs out, or the function reads or updates a [`State`](crate::State), whose memory may be another in
    /// each run.
    pub fn executable(&self) -> Result<&Executable> {
        match self.program.states.is_empty() {
            true => self.any_executable(),
            false => {
                let why = "a function with states has no memory of its own for them".into();
                Err(Error::InvalidArgument { op: "executable", why })
            }
        }
    }

    fn any_executable(&self) -> Result<&Executable> {
        let CompiledFunction { prepared, weights, states, executable, .. } = &self.program;
        match executable.get() {
            Some(executable) => Ok(executable),
            None => {
                let made = match states.is_empty() {
                    true => prepared.bind(weights, &HashMap::new())?,
                    false => prepared.bind_values(weights)?,
                };
                // If another thread was faster, its executable serves.
                Ok(executable.get_or_init(|| made))
            }
        }
    }
}

/// The values of the symbols in the inputs' extents, learned from the tensors' extents, which are checked against them.
fn bind_all(inputs: &[Input], types: &[(DType, &[usize])]) -> Result<Vec<(String, u64)>> {
    let mut symbols: Vec<(String, u64)> = Vec::new();
    for (input, (dtype, dims)) in inputs.iter().zip(types) {
        bind(input, *dtype, dims, &mut symbols)?;
    }
    // Expressions of several symbols, now that all those have values that stand alone somewhere.
    let bindings: Bindings = symbols.iter().cloned().collect();
    for (input, (dtype, dims)) in inputs.iter().zip(types) {
        if input.ty.shape.eval(&bindings).is_some_and(|extents| extents != *dims) {
            return Err(mismatch(input, *dtype, dims));
        }
    }
    Ok(symbols)
}

fn mismatch(input: &Input, dtype: DType, dims: &[usize]) -> Error {
    Error::TypeMismatch {
        what: "input",
        name: input.name.clone(),
        expected: Box::new(input.ty.clone()),
        got: Box::new(TensorType::new(dtype, dims)),
    }
}

/// Checks a tensor's type against an input and learns the values of symbols that stand alone as an extent.
fn bind(input: &Input, dtype: DType, dims: &[usize], symbols: &mut Vec<(String, u64)>) -> Result<()> {
    let mismatch = || mismatch(input, dtype, dims);
    if dtype != input.ty.dtype || dims.len() != input.ty.shape.rank() {
        return Err(mismatch());
    }
    for (extent, value) in input.ty.shape.dims().iter().zip(dims) {
        for symbol in extent.symbols().iter().filter(|s| Dim::from(*s) == *extent) {
            match symbols.iter().find(|(name, _)| name == symbol.name()) {
                Some((_, known)) if *known != *value as u64 => return Err(mismatch()),
                Some(_) => {}
                None => symbols.push((symbol.name().into(), *value as u64)),
            }
        }
        if extent.as_const().is_some_and(|n| usize::try_from(n) != Ok(*value)) {
            return Err(mismatch());
        }
    }
    Ok(())
}
