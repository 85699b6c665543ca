//! Executables: compiled graphs on a device, with pipelines created once, buffers placed as planned, and one command
//! buffer that is replayed.
//!
//! [`Compiled`] depends on the graph and the device alone (the module and its pipelines). An [`Executable`] is an
//! instance of it with its own arena, symbol table, inputs, outputs and recording, so that two instances can be in
//! flight at once. Weights and states live outside and are shared.

mod steps;

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tallow_codegen::{
    Copies, Grid as ModuleGrid, KERNELS, Kernel, Module, Options, PLAN, Schedules, SpirvStats, Tensor,
    compile_kernels, compile_with,
};
use tallow_ir::schedule::{Access, BufferKind, Command};
use tallow_ir::{Bindings, DType, Dim, Graph, TensorType};
use tallow_quant::QuantError;

use crate::error::Error;
pub use crate::error::ExecError;
use crate::record::{BarrierKind, BindRange, Grid, RecordCommand, RecordCounts, RecordOptions, RecordSpec};
use crate::resident::as_in_file;
pub use crate::resident::{DeviceState, DeviceWeight};
use crate::vulkan::{Buffer, Context, Handle, MemoryUse, Pipeline, PipelineDesc, Recording};
pub use steps::{Steps, ValueBytes};

/// A graph compiled for a device, without buffers.
#[derive(Clone)]
pub struct Compiled {
    context: Arc<Context>,
    module: Arc<Module>,
    pipelines: Arc<Vec<Arc<Pipeline>>>,
    /// What makes the copies of weights, by the graph of each.
    copies: Arc<Vec<(Graph, Compiled)>>,
    /// Statistics of shader compilation.
    pub spirv: SpirvStats,
    /// Wall time of passes, shaders and pipelines, in milliseconds.
    pub millis: f64,
    /// Wall time by phase.
    pub phases: Phases,
}

/// Wall time of compilation phases, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Phases {
    /// Rewriting and fusing.
    pub passes: f64,
    /// Generating GLSL, and measuring kernels where the device is tuned.
    pub glsl: f64,
    /// Planning: levels, barriers, offsets.
    pub plan: f64,
    /// Compiling GLSL to SPIR-V, or loading that from disk.
    pub spirv: f64,
    /// Creating pipelines from SPIR-V.
    pub pipelines: f64,
    /// Writing the driver's pipeline cache to disk, if it grew.
    pub cache: f64,
}

impl fmt::Debug for Compiled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Compiled({} kernels, {:?})", self.module.kernels.len(), self.phases)
    }
}

impl Compiled {
    /// Runs the passes, generates kernels, plans, compiles SPIR-V (parallel, cached on disk) and creates pipelines.
    /// Where a kernel has several schedules, takes the cost model's, or the fastest if the context tunes.
    ///
    /// What only copies weights is left out of the runs: [`Compiled::instance`] does it, see
    /// [`Compiled::weight_copies`].
    ///
    /// # Errors
    /// When the graph is invalid or the device lacks a required feature.
    pub fn new(context: &Arc<Context>, graph: &Graph) -> Result<Compiled, ExecError> {
        Compiled::within(context, graph, None)
    }

    /// As [`Compiled::new`], with at most `budget` bytes of intermediate values.
    ///
    /// # Errors
    /// As [`Compiled::new`], and when the budget is too small.
    pub fn within(context: &Arc<Context>, graph: &Graph, budget: Option<u64>) -> Result<Compiled, ExecError> {
        let options = Options { copies: Copies::Once, budget };
        Compiled::compile(context, graph, &options, &mut |fused| tuned(context, fused))
    }

    /// As [`Compiled::new`], for graphs whose weights may be others in each run: all copies are made in each run.
    ///
    /// # Errors
    /// As [`Compiled::new`].
    pub fn for_any_weights(context: &Arc<Context>, graph: &Graph) -> Result<Compiled, ExecError> {
        Compiled::compile(context, graph, &Options::default(), &mut |fused| tuned(context, fused))
    }

    /// As [`Compiled::new`], with schedules from `choose`, which receives the fused graph.
    ///
    /// # Errors
    /// As [`Compiled::new`], and when a schedule is not valid for its fusion.
    pub fn with(
        context: &Arc<Context>,
        graph: &Graph,
        choose: &mut dyn FnMut(&Graph) -> Schedules,
    ) -> Result<Compiled, ExecError> {
        Compiled::compile(context, graph, &Options { copies: Copies::Once, budget: None }, choose)
    }

    /// As [`Compiled::new`], with kernels that `edit` changes: for tests of what finds wrong ones.
    #[doc(hidden)]
    pub fn edited(
        context: &Arc<Context>,
        graph: &Graph,
        edit: &mut dyn FnMut(&mut [Kernel]),
    ) -> Result<Compiled, ExecError> {
        let options = Options { copies: Copies::Once, budget: None };
        Compiled::compile_edited(context, graph, &options, &mut |_| Schedules::default(), edit)
    }

    fn compile(
        context: &Arc<Context>,
        graph: &Graph,
        options: &Options,
        choose: &mut dyn FnMut(&Graph) -> Schedules,
    ) -> Result<Compiled, ExecError> {
        Compiled::compile_edited(context, graph, options, choose, &mut |_| {})
    }

    fn compile_edited(
        context: &Arc<Context>,
        graph: &Graph,
        options: &Options,
        choose: &mut dyn FnMut(&Graph) -> Schedules,
        edit: &mut dyn FnMut(&mut [Kernel]),
    ) -> Result<Compiled, ExecError> {
        let start = Instant::now();
        let mut phases = Phases::default();
        let since = |start: Instant| start.elapsed().as_secs_f64() * 1e3;
        let mut module = compile_with(graph, context.caps(), options, choose, &mut |stage, _| match stage {
            KERNELS => phases.glsl = since(start) - phases.passes,
            PLAN => phases.plan = since(start) - phases.passes - phases.glsl,
            _ => phases.passes = since(start),
        })?;
        edit(&mut module.kernels);
        dump(graph, &module);
        let cache = crate::cache_dir::cache_dir();
        let (spirv, stats) = compile_kernels(&module.kernels, context.caps(), cache.as_deref())?;
        let descs: Vec<PipelineDesc<'_>> =
            module.kernels.iter().zip(&spirv).map(|(kernel, code)| PipelineDesc::of(kernel, code)).collect();
        phases.spirv = stats.millis;
        let made = Instant::now();
        let pipelines = context.create_pipelines(&descs)?;
        phases.pipelines = since(made);
        let made = Instant::now();
        context.save_pipeline_cache()?;
        phases.cache = since(made);
        let copies = Compiled::of_copies(context, &module)?;
        let millis = since(start);
        Ok(Compiled {
            context: context.clone(),
            module: Arc::new(module),
            pipelines: Arc::new(pipelines),
            copies: Arc::new(copies),
            spirv: stats,
            millis,
            phases,
        })
    }

    /// What makes the copies of weights, once for those of one order and extents.
    fn of_copies(context: &Arc<Context>, module: &Module) -> Result<Vec<(Graph, Compiled)>, ExecError> {
        let mut made: Vec<(Graph, Compiled)> = vec![];
        for copy in &module.weight_copies {
            if made.iter().all(|(graph, _)| *graph != copy.graph) {
                made.push((copy.graph.clone(), Compiled::for_any_weights(context, &copy.graph)?));
            }
        }
        Ok(made)
    }

    pub(crate) fn copies(&self) -> &[(Graph, Compiled)] {
        &self.copies
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(crate) fn pipelines(&self) -> &Arc<Vec<Arc<Pipeline>>> {
        &self.pipelines
    }

    /// Kernels, plan and fusion decisions.
    pub fn module(&self) -> &Module {
        &self.module
    }

    /// An instance with its own arena, bound to weights and states by name.
    ///
    /// # Errors
    /// When a leaf is missing or of another type, or memory runs out.
    pub fn instance(
        &self,
        weights: &HashMap<String, DeviceWeight>,
        states: &HashMap<String, DeviceState>,
        options: RecordOptions,
    ) -> Result<Executable, ExecError> {
        let copies = self.weight_copies(weights)?;
        let weights = match copies.is_empty() {
            true => Cow::Borrowed(weights),
            false => Cow::Owned(weights.clone().into_iter().chain(copies).collect()),
        };
        Executable::new(self.clone(), &weights, states, options)
    }
}

/// Schedules of a fused graph: the fastest if the context tunes, else the cost model's.
fn tuned(context: &Arc<Context>, fused: &Graph) -> Schedules {
    match context.tuner() {
        Some(tuner) => tuner.choose(context, fused),
        None => Schedules::default(),
    }
}

/// Bytes of weights and of what they are copies of.
fn bytes_of(weights: &[DeviceWeight]) -> u64 {
    let mut all: Vec<&DeviceWeight> = weights.iter().collect();
    let mut at = 0;
    while let Some(weight) = all.get(at) {
        if let Some(original) = &weight.original
            && all.iter().all(|other| !Arc::ptr_eq(other.value.buffer(), original.value.buffer()))
        {
            all.push(original);
        }
        at += 1;
    }
    all.iter().map(|weight| weight.bytes()).sum()
}

/// One result of a run: name, extents, element type and row-major little-endian elements.
pub type RunResult = (String, Vec<usize>, DType, Vec<u8>);

/// Writes the elements of the named input; the error says why it cannot.
pub type InputWriter<'a> = dyn FnMut(&str, &mut [u8]) -> Result<(), String> + 'a;

/// Receives a result of a run: name, extents, element type and row-major little-endian elements.
pub type OutputReader<'a> = dyn FnMut(&str, &[usize], DType, &[u8]) + 'a;

/// The last run of an executable.
struct Last {
    /// Its number.
    number: u64,
    /// Its handle, until its results are read.
    handle: Option<Handle>,
    /// The symbol table as bytes; reused, so that no run allocates.
    table: Vec<u8>,
    /// Extents of a result; reused for the same reason.
    shape: Vec<usize>,
}

/// The results of a finished run. While it lives, no other run of its executable starts.
pub struct Results<'a> {
    executable: &'a Executable,
    last: MutexGuard<'a, Last>,
}

impl Results<'_> {
    /// Names and types of the results.
    pub fn tensors(&self) -> &[Tensor] {
        &self.executable.compiled.module.outputs
    }

    /// Overwrites `shape` and `bytes` with the extents and row-major little-endian elements of result `number`, in the
    /// order of [`Results::tensors`]. Allocates only if their capacity is too small.
    ///
    /// # Errors
    /// When the device fails.
    pub fn read(
        &self,
        number: usize,
        bindings: &Bindings,
        shape: &mut Vec<usize>,
        bytes: &mut Vec<u8>,
    ) -> Result<(), ExecError> {
        let output = &self.tensors()[number];
        let size = self.extents(output, bindings, shape);
        let (buffer, _) = &self.executable.places[output.buffer];
        bytes.resize(size, 0);
        if size > 0 {
            match buffer.memory_use() {
                MemoryUse::Readback => buffer.read(0, bytes)?,
                MemoryUse::Device | MemoryUse::Upload | MemoryUse::Shared | MemoryUse::Host => {
                    self.executable.compiled.context.download(buffer, 0, bytes)?;
                }
            }
        }
        if matches!(output.ty.dtype, DType::Block(_)) {
            let rows = rows_of_file(&output.name, &output.ty, shape, bytes)?.into_owned();
            *bytes = rows;
        }
        Ok(())
    }

    /// Passes result `number` to `read` without a copy where possible.
    fn show(
        &mut self,
        number: usize,
        bindings: &Bindings,
        read: &mut OutputReader<'_>,
    ) -> Result<(), ExecError> {
        let executable = self.executable;
        let output = &executable.compiled.module.outputs[number];
        let mut shape = std::mem::take(&mut self.last.shape);
        let size = self.extents(output, bindings, &mut shape);
        let give = |bytes: &[u8]| -> Result<(), ExecError> {
            read(
                &output.name,
                &shape,
                output.ty.dtype,
                &rows_of_file(&output.name, &output.ty, &shape, bytes)?,
            );
            Ok(())
        };
        let shown = executable.look(output.buffer, size, give);
        self.last.shape = shape;
        shown
    }

    /// The extents of a result; returns its bytes on the device.
    fn extents(&self, output: &Tensor, bindings: &Bindings, shape: &mut Vec<usize>) -> usize {
        shape.clear();
        let extent = |d: &Dim| usize::try_from(d.eval(bindings).unwrap_or(0)).unwrap_or(0);
        shape.extend(output.ty.shape.dims().iter().map(extent));
        // Plane offsets of blocks depend on the maximum number of elements.
        let elements = shape.iter().product::<usize>();
        output.ty.dtype.size().map_or(output.ty.max_bytes() as usize, |n| elements * n)
    }
}

/// Converts the elements of a result from the device's layout to that of a file.
fn rows_of_file<'a>(
    name: &str,
    ty: &TensorType,
    shape: &[usize],
    bytes: &'a [u8],
) -> Result<Cow<'a, [u8]>, ExecError> {
    let DType::Block(format) = ty.dtype else { return Ok(Cow::Borrowed(bytes)) };
    let rows = || {
        let mut all = as_in_file(ty, bytes)?.into_owned();
        all.truncate(format.row_bytes(shape.iter().product())?);
        Ok(Cow::Owned(all))
    };
    rows().map_err(|e: QuantError| ExecError::Leaf { what: "output", name: name.into(), why: e.to_string() })
}

/// A recorded instance of a compiled graph.
pub struct Executable {
    compiled: Compiled,
    /// By program buffer: its device buffer and its offset there.
    places: Vec<(Arc<Buffer>, u64)>,
    recording: Recording,
    last: Mutex<Last>,
    /// The last owner returns the weights' memory to its pool.
    _weights: Vec<DeviceWeight>,
    /// Locked by [`Executable::run`] from start to finish.
    whole_run: Mutex<()>,
    recordings: usize,
    weight_bytes: u64,
}

/// Where the program's buffers lie.
struct Placed {
    /// By program buffer: its device buffer and its offset there.
    places: Vec<(Arc<Buffer>, u64)>,
    /// The weights among them.
    weights: Vec<DeviceWeight>,
}

impl Placed {
    /// Allocates what belongs to one instance, and finds the shared weights and states.
    fn new(
        context: &Arc<Context>,
        module: &Module,
        weights: &HashMap<String, DeviceWeight>,
        states: &HashMap<String, DeviceState>,
        options: RecordOptions,
    ) -> Result<Placed, ExecError> {
        let mut windows = vec![];
        for (i, bytes) in module.plan.arena.windows.iter().enumerate() {
            windows.push(context.buffer(&format!("arena {i}"), (*bytes).max(16), MemoryUse::Device)?);
        }
        let mut placed = Placed { places: vec![], weights: vec![] };
        for (i, buffer) in module.program.buffers.iter().enumerate() {
            let allocate = |memory| context.buffer(&buffer.name, buffer.bytes, memory);
            let place = match buffer.kind {
                BufferKind::Arena | BufferKind::Scratch { .. } => match module.plan.arena.slots[i] {
                    Some(slot) => (windows[slot.window].clone(), slot.offset),
                    None => (allocate(MemoryUse::Device)?, 0),
                },
                BufferKind::Codebooks => (context.codebooks()?, 0),
                BufferKind::Input(_) | BufferKind::Symbols => (allocate(MemoryUse::Shared)?, 0),
                BufferKind::Output(_) => (allocate(options.outputs.into())?, 0),
                BufferKind::Weight(w) => (placed.weight(&module.weights[w as usize], weights)?, 0),
                BufferKind::State(s) => (placed.state(&module.states[s as usize], states)?, 0),
            };
            placed.places.push(place);
        }
        Ok(placed)
    }

    fn weight(
        &mut self,
        want: &Tensor,
        weights: &HashMap<String, DeviceWeight>,
    ) -> Result<Arc<Buffer>, ExecError> {
        let fail = |why: String| ExecError::Leaf { what: "weight", name: want.name.clone(), why };
        let weight = weights.get(&want.name).ok_or_else(|| fail("has no data".into()))?;
        if weight.ty != want.ty {
            return Err(fail(format!("is {}, not {}", weight.ty, want.ty)));
        }
        self.weights.push(weight.clone());
        Ok(weight.value.buffer().clone())
    }

    fn state(&self, want: &Tensor, states: &HashMap<String, DeviceState>) -> Result<Arc<Buffer>, ExecError> {
        let fail = |why: String| ExecError::Leaf { what: "state", name: want.name.clone(), why };
        let state = states.get(&want.name).ok_or_else(|| fail("has no memory".into()))?;
        if state.ty != want.ty {
            return Err(fail(format!("is {}, not {}", state.ty, want.ty)));
        }
        // The plan orders accesses by state, and would not notice two names for one buffer.
        if self.places.iter().any(|(b, _)| Arc::ptr_eq(b, &state.buffer)) {
            return Err(fail("is the memory of another state too".into()));
        }
        Ok(state.buffer.clone())
    }
}

impl Executable {
    fn new(
        compiled: Compiled,
        weights: &HashMap<String, DeviceWeight>,
        states: &HashMap<String, DeviceState>,
        options: RecordOptions,
    ) -> Result<Executable, ExecError> {
        let (context, module) = (&compiled.context, compiled.module.clone());
        let placed = Placed::new(context, &module, weights, states, options)?;
        for (buffer, (memory, offset)) in module.program.buffers.iter().zip(&placed.places) {
            if let BufferKind::Scratch { fill } = buffer.kind {
                context.fill(memory, *offset, buffer.bytes, fill)?;
            }
        }
        let (list, number) = numbered(&placed.places);
        let spec = physical(record_spec(&module), &number, &placed.places);
        let recording = Recording::new(context, &spec, &compiled.pipelines, &list, options)?;
        let last = Mutex::new(Last { number: 0, handle: None, table: vec![], shape: vec![] });
        let whole_run = Mutex::new(());
        Ok(Executable {
            compiled,
            places: placed.places,
            recording,
            last,
            weight_bytes: bytes_of(&placed.weights),
            _weights: placed.weights,
            whole_run,
            recordings: 1,
        })
    }

    /// The device memory of a result.
    pub(crate) fn output(&self, number: usize) -> Option<Arc<Buffer>> {
        let output = self.compiled.module.outputs.get(number)?;
        Some(self.places[output.buffer].0.clone())
    }

    /// Runs once and waits.
    ///
    /// # Errors
    /// When a symbol or input is missing or out of range, a run is in flight, or the device fails.
    pub fn run(&self, bindings: &Bindings, inputs: &[(&str, &[u8])]) -> Result<Vec<RunResult>, ExecError> {
        let _whole = self.whole_run.lock().unwrap_or_else(PoisonError::into_inner);
        let run = self.start(bindings, inputs)?;
        self.finish(run, bindings)
    }

    /// Writes symbols and inputs and submits; returns the run's number for [`Executable::finish`]. One run at a time:
    /// [`Error::Busy`] while one is in flight.
    ///
    /// # Errors
    /// As [`Executable::run`].
    pub fn start(&self, bindings: &Bindings, inputs: &[(&str, &[u8])]) -> Result<u64, ExecError> {
        self.start_with(bindings, &mut |name, bytes| {
            let data = inputs.iter().find(|(n, _)| *n == name).map(|(_, d)| *d).ok_or("has no data")?;
            if data.len() != bytes.len() {
                return Err(format!("{} bytes where {} are needed", data.len(), bytes.len()));
            }
            bytes.copy_from_slice(data);
            Ok(())
        })
    }

    /// As [`Executable::start`], but `write` writes the elements of each named input, row-major and little-endian,
    /// straight into the memory that kernels read: each byte once, in order. If it fails, nothing is submitted.
    ///
    /// # Errors
    /// As [`Executable::run`], and the error of `write`.
    pub fn start_with(&self, bindings: &Bindings, write: &mut InputWriter<'_>) -> Result<u64, ExecError> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        self.write_leaves(&mut last, bindings, write)?;
        last.handle = Some(self.recording.submit()?);
        last.number += 1;
        Ok(last.number)
    }

    /// Checks and writes symbols and inputs; [`Error::Busy`] while a run is in flight.
    fn write_leaves(
        &self,
        last: &mut Last,
        bindings: &Bindings,
        write: &mut InputWriter<'_>,
    ) -> Result<(), ExecError> {
        if let Some(handle) = &last.handle
            && !handle.is_done()?
        {
            return Err(Error::Busy.into());
        }
        let module = &self.compiled.module;
        check_bindings(module, bindings)?;
        if let Some(buffer) = module.table_buffer {
            fill_table(module, bindings, &mut last.table)?;
            self.places[buffer].0.write(0, &last.table)?;
        }
        for input in &module.inputs {
            let fail = |why: String| ExecError::Leaf { what: "input", name: input.name.clone(), why };
            let extent = |d: &Dim| usize::try_from(d.eval(bindings)?).ok();
            let mut extents = input.ty.shape.dims().iter().map(extent);
            let elements = extents.try_fold(1, |n: usize, d| n.checked_mul(d?));
            let elements = elements.ok_or_else(|| fail("has an unbound extent".into()))?;
            let need = elements * input.ty.dtype.size().unwrap_or(1);
            let written = match need {
                0 => write(&input.name, &mut []),
                _ => self.places[input.buffer].0.write_with(0, need, |bytes| write(&input.name, bytes))?,
            };
            written.map_err(fail)?;
        }
        Ok(())
    }

    /// Waits for the last run without reading its results.
    ///
    /// # Errors
    /// When the device fails.
    pub fn wait(&self) -> Result<(), ExecError> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        match &last.handle {
            Some(handle) => Ok(handle.wait(None)?),
            None => Ok(()),
        }
    }

    /// Waits for run number `run` and returns its results, to be read into the caller's memory.
    ///
    /// # Errors
    /// When a later run has overwritten them or the device fails.
    pub fn results(&self, run: u64) -> Result<Results<'_>, ExecError> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.number != run {
            return Err(ExecError::Overwritten { run, last: last.number });
        }
        if let Some(handle) = last.handle.take() {
            handle.wait(None)?;
        }
        Ok(Results { executable: self, last })
    }

    /// Waits for run number `run` and reads its results.
    ///
    /// # Errors
    /// As [`Executable::results`].
    pub fn finish(&self, run: u64, bindings: &Bindings) -> Result<Vec<RunResult>, ExecError> {
        let results = self.results(run)?;
        let read = |(number, output): (usize, &Tensor)| {
            let (mut shape, mut bytes) = (vec![], vec![]);
            results.read(number, bindings, &mut shape, &mut bytes)?;
            Ok((output.name.clone(), shape, output.ty.dtype, bytes))
        };
        results.tensors().iter().enumerate().map(read).collect()
    }

    /// As [`Executable::finish`], but passes each result to `read` without a copy where possible: its name, extents,
    /// element type and elements, row-major and little-endian.
    ///
    /// # Errors
    /// As [`Executable::finish`].
    pub fn finish_with(
        &self,
        run: u64,
        bindings: &Bindings,
        read: &mut OutputReader<'_>,
    ) -> Result<(), ExecError> {
        let mut results = self.results(run)?;
        (0..results.tensors().len()).try_for_each(|number| results.show(number, bindings, read))
    }

    /// Passes the first `size` bytes of the result in this buffer to `give`: mapped if possible, else as a copy.
    fn look(
        &self,
        buffer: usize,
        size: usize,
        give: impl FnOnce(&[u8]) -> Result<(), ExecError>,
    ) -> Result<(), ExecError> {
        let (buffer, _) = &self.places[buffer];
        match (size, buffer.memory_use()) {
            (0, _) => give(&[]),
            (_, MemoryUse::Readback) => buffer.read_with(0, size, give)?,
            (_, MemoryUse::Device | MemoryUse::Upload | MemoryUse::Shared | MemoryUse::Host) => {
                let mut bytes = vec![0; size];
                self.compiled.context.download(buffer, 0, &mut bytes)?;
                give(&bytes)
            }
        }
    }

    /// The compiled graph.
    pub fn compiled(&self) -> &Compiled {
        &self.compiled
    }

    /// Counts of recorded commands.
    pub fn counts(&self) -> RecordCounts {
        self.recording.counts()
    }

    /// Number of command buffers recorded for it.
    pub fn recordings(&self) -> usize {
        self.recordings
    }

    /// Bytes of the weights that it reads, and of those that it reads copies of.
    pub fn weight_bytes(&self) -> u64 {
        self.weight_bytes
    }

    /// Label and nanoseconds of each dispatch of the last run; needs a recording that times dispatches.
    ///
    /// # Errors
    /// Without timestamps, or before the first run is done.
    pub fn timings(&self) -> Result<Vec<(String, u64)>, ExecError> {
        Ok(self.recording.timings()?)
    }

    /// Nanoseconds from before the first to after the last dispatch of the last run, by device timestamps.
    ///
    /// # Errors
    /// Without timestamps, or before the first run is done.
    pub fn run_time(&self) -> Result<u64, ExecError> {
        Ok(self.recording.run_time()?)
    }
}

/// Checks symbol values: none is missing or out of its range, and every slice and update is in bounds.
pub(crate) fn check_bindings(module: &Module, bindings: &Bindings) -> Result<(), ExecError> {
    for symbol in &module.symbols {
        let fail = |why: String| ExecError::Leaf { what: "symbol", name: symbol.name().into(), why };
        match bindings.get(symbol.name()) {
            None => return Err(fail("has no value".into())),
            Some(v) if *v > u64::from(symbol.limit()) => {
                return Err(fail(format!("{v} exceeds its maximum {}", symbol.limit())));
            }
            Some(v) if !symbol.contains(*v) => {
                return Err(fail(format!("{v} is below its minimum {}", symbol.least())));
            }
            Some(_) => {}
        }
    }
    for (end, extent) in &module.constraints {
        if let (Some(value), Some(limit)) = (end.eval(bindings), extent.eval(bindings))
            && value > limit
        {
            let (end, extent) = (end.to_string(), extent.to_string());
            return Err(ExecError::Bounds { end, value, extent, limit });
        }
    }
    Ok(())
}

/// Overwrites `table` with the entries of the symbol table for these values.
pub(crate) fn fill_table(module: &Module, bindings: &Bindings, table: &mut Vec<u8>) -> Result<(), ExecError> {
    let unbound =
        || ExecError::Leaf { what: "symbol", name: String::new(), why: "an expression has no value".into() };
    table.clear();
    for entry in module.table.entries() {
        table.extend_from_slice(&entry.eval(bindings).ok_or_else(unbound)?.to_le_bytes());
    }
    Ok(())
}

/// With `TALLOW_DUMP=DIR`: writes the graph, fused graph, kernels and plan of every compiled graph to files in DIR. An
/// unwritable directory causes a warning per graph, and does not stop the run.
fn dump(graph: &Graph, module: &Module) {
    let Some(dir) = std::env::var_os("TALLOW_DUMP").filter(|d| !d.is_empty()) else { return };
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    let name: String = graph.name().chars().take(40).map(plain).collect();
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let dir = std::path::PathBuf::from(dir).join(format!("{number:02}-{name}"));
    let write = || -> std::io::Result<()> {
        std::fs::create_dir_all(&dir)?;
        std::fs::write(dir.join("00-input.ir"), graph.to_string())?;
        std::fs::write(dir.join("01-fused.ir"), module.graph.graph().to_string())?;
        for (i, kernel) in module.kernels.iter().enumerate() {
            std::fs::write(dir.join(format!("02-k{i}.comp")), &kernel.glsl)?;
        }
        std::fs::write(dir.join("03-plan.txt"), module.explain())
    };
    if let Err(error) = write() {
        tracing::warn!("cannot dump to {}: {error}", dir.display());
    }
}

/// The plan as commands over program buffers; [`physical`] adds offsets.
pub(crate) fn record_spec(module: &Module) -> RecordSpec {
    let mut commands = vec![];
    if !module.plan.head.is_empty() {
        commands.push(RecordCommand::Barrier(BarrierKind::Head));
    }
    for command in &module.plan.commands {
        match command {
            Command::Barrier { .. } => commands.push(RecordCommand::Barrier(BarrierKind::Between)),
            Command::Dispatch(d) => {
                let launch = &module.launches[*d];
                let bind =
                    |a: &Access| BindRange { buffer: a.buffer, offset: a.start, bytes: a.end - a.start };
                let grid = match (launch.grid, module.table_buffer) {
                    (ModuleGrid::Direct(grid), _) => Grid::Direct(grid),
                    (ModuleGrid::Table(at), Some(buffer)) => Grid::Indirect { buffer, offset: 4 * at as u64 },
                    (ModuleGrid::Table(_), None) => Grid::Direct([0, 0, 0]),
                };
                commands.push(RecordCommand::Dispatch {
                    pipeline: launch.kernel,
                    bindings: launch.bindings.iter().map(bind).collect(),
                    grid,
                    push: vec![],
                    label: module.program.dispatches[*d].name.clone(),
                });
            }
        }
    }
    if !module.plan.tail.is_empty() {
        commands.push(RecordCommand::Barrier(BarrierKind::Tail));
    }
    RecordSpec { commands }
}

/// The device buffers, each of which may contain several program buffers, and by program buffer the position of its own.
fn numbered(places: &[(Arc<Buffer>, u64)]) -> (Vec<Arc<Buffer>>, Vec<usize>) {
    let (mut list, mut number): (Vec<Arc<Buffer>>, Vec<usize>) = (vec![], vec![]);
    for (buffer, _) in places {
        let at = list.iter().position(|b| Arc::ptr_eq(b, buffer)).unwrap_or_else(|| {
            list.push(buffer.clone());
            list.len() - 1
        });
        number.push(at);
    }
    (list, number)
}

/// Replaces program buffers by device buffers and offsets.
fn physical(mut spec: RecordSpec, number: &[usize], places: &[(Arc<Buffer>, u64)]) -> RecordSpec {
    for command in &mut spec.commands {
        let RecordCommand::Dispatch { bindings, grid, .. } = command else { continue };
        for range in bindings {
            range.offset += places[range.buffer].1;
            range.buffer = number[range.buffer];
        }
        if let Grid::Indirect { buffer, .. } = grid {
            *buffer = number[*buffer];
        }
    }
    spec
}
