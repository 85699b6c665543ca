//! A compiled graph: kernels, a schedule and a memory plan, as plain data that a runtime executes.

use std::collections::{BTreeMap, HashMap};

use tallow_ir::schedule::{self, Access, Buffer, BufferKind, Dispatch, Limits, Plan, Program};
use tallow_ir::verify::updated_param;
use tallow_ir::{
    Bindings, DeviceCaps, Dim, Fusion, Graph, NodeId, Op, Symbol, TensorType, Value, Verified, WeightCopy,
    cost, passes, weight_copies,
};

use crate::donation::{self, Candidate, Donation, Readers, through_reshapes};
use crate::error::CodegenError;
use crate::kernel::{Count, Kernel, Scratch, Source, Table};
use crate::kinds;
use crate::predict::{Launches, predict_us};
use crate::schedule::Schedules;

/// A named tensor and its buffer in the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// The leaf's or output's name.
    pub name: String,
    /// Its type.
    pub ty: TensorType,
    /// Position in [`Program::buffers`].
    pub buffer: usize,
}

/// Workgroups of a dispatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grid {
    /// Known at compile time.
    Direct([u32; 3]),
    /// An indirect dispatch: three consecutive entries of the table, starting at this one.
    Table(usize),
}

/// One dispatch of a kernel, with its buffers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Position in [`Module::kernels`].
    pub kernel: usize,
    /// The byte range of a buffer that each binding covers.
    pub bindings: Vec<Access>,
    /// Workgroups of the dispatch.
    pub grid: Grid,
    /// The fusion node that it computes.
    pub node: NodeId,
}

/// A compiled graph, before translation to SPIR-V.
#[derive(Clone, Debug)]
pub struct Module {
    /// The fused graph.
    pub graph: Verified,
    /// Distinct kernels; layers of one shape share a kernel.
    pub kernels: Vec<Kernel>,
    /// One per dispatch of the program.
    pub launches: Vec<Launch>,
    /// Buffers, and dispatches with the byte ranges they access.
    pub program: Program,
    /// Order of dispatches, barriers and arena offsets.
    pub plan: Plan,
    /// Symbol expressions that kernels and indirect dispatches read.
    pub table: Table,
    /// Position of the table in [`Program::buffers`], if anything reads it.
    pub table_buffer: Option<usize>,
    /// Position of the codebooks of block formats in [`Program::buffers`], if any kernel reads them.
    pub codebooks_buffer: Option<usize>,
    /// Inputs of a run, in order.
    pub inputs: Vec<Tensor>,
    /// Resident weights.
    pub weights: Vec<Tensor>,
    /// Resident states.
    pub states: Vec<Tensor>,
    /// Results of a run; two names may share a buffer.
    pub outputs: Vec<Tensor>,
    /// Results that may overwrite an input if the caller donates it.
    pub donations: Vec<Donation>,
    /// Symbols that a run must bind.
    pub symbols: Vec<Symbol>,
    /// `(end, extent)` pairs that a run must check.
    pub constraints: Vec<(Dim, Dim)>,
    /// The reasons for rejected fusions.
    pub decisions: Vec<String>,
    /// The predicted microseconds of each launch by itself and its barrier, at the maxima of symbols. Empty for software
    /// devices, for which [`predict_us`](crate::predict_us) was not measured.
    pub predicted_us: Vec<f64>,
    /// Weights that are made of others when weights are bound, in an order in which they can be made. See [`Copies`].
    pub weight_copies: Vec<WeightCopy>,
}

/// When copies of weights are made that depend on nothing else. See [`weight_copies`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copies {
    /// In each run. The weights are those of the graph.
    EachRun,
    /// Once, when weights are bound: [`Module::weight_copies`] are weights of the module, and are made by the caller.
    Once,
}

/// The schedule's limits on a device.
pub fn limits(caps: &DeviceCaps) -> Limits {
    Limits {
        // 16-byte vector loads start at the beginning of a buffer.
        alignment: caps.storage_offset_alignment.max(16),
        // The arena may be larger than a binding: each binding covers only the part that its kernel needs.
        max_buffer_bytes: caps.max_allocation_bytes,
    }
}

/// Runs all passes on `graph`, then generates its kernels, schedules them and plans memory, for a device with `caps`.
pub fn compile(graph: &Graph, caps: &DeviceCaps) -> Result<Module, CodegenError> {
    compile_observed(graph, caps, &mut |_, _| {})
}

/// The stage name that the observer gets after kernel generation.
pub const KERNELS: &str = "kernels";
/// The stage name that the observer gets after scheduling.
pub const PLAN: &str = "plan";

/// Like [`compile`]; `observer` sees the graph after each pass, and after [`KERNELS`] and [`PLAN`].
pub fn compile_observed(
    graph: &Graph,
    caps: &DeviceCaps,
    observer: &mut dyn FnMut(&str, &Graph),
) -> Result<Module, CodegenError> {
    compile_scheduled(graph, caps, &mut |_| Schedules::default(), observer)
}

/// Like [`compile_observed`]; `choose` is called once with the fused graph and returns the tuned schedules of its
/// fusions. Its time counts as part of the stage that ends with [`KERNELS`].
///
/// # Errors
/// As [`compile`], and [`CodegenError::NoSuchSchedule`] for a schedule that is not a candidate of its fusion.
pub fn compile_scheduled(
    graph: &Graph,
    caps: &DeviceCaps,
    choose: &mut dyn FnMut(&Graph) -> Schedules,
    observer: &mut dyn FnMut(&str, &Graph),
) -> Result<Module, CodegenError> {
    compile_copies(graph, caps, Copies::EachRun, choose, observer)
}

/// Like [`compile_scheduled`], with copies of weights made in each run or once.
///
/// # Errors
/// As [`compile_scheduled`].
pub fn compile_copies(
    graph: &Graph,
    caps: &DeviceCaps,
    copies: Copies,
    choose: &mut dyn FnMut(&Graph) -> Schedules,
    observer: &mut dyn FnMut(&str, &Graph),
) -> Result<Module, CodegenError> {
    let mut decisions = vec![];
    let fused = passes::run_logged(graph, caps, &mut decisions, observer)?;
    let (fused, weight_copies) = match copies {
        Copies::EachRun => (fused, vec![]),
        Copies::Once => weight_copies::split(fused)?,
    };
    let mut builder = Builder::default();
    builder.build(fused.graph(), caps, &choose(fused.graph()))?;
    builder.size_table();
    observer(KERNELS, fused.graph());
    let plan =
        schedule::plan(&builder.program, &limits(caps)).map_err(|e| CodegenError::Schedule(e.to_string()))?;
    observer(PLAN, fused.graph());
    let symbols = fused.graph().symbols().cloned().collect();
    // The constraints of the caller's graph, including those of nodes that no output uses any more.
    let constraints = graph.constraints();
    let mut donations = donation::donations(&builder.candidates, &builder.program, &plan);
    // An input that is itself an output is returned unchanged, so it must not be overwritten.
    donations.retain(|donation| builder.outputs.iter().all(|output| output.buffer != donation.input));
    let mut module = Module {
        donations,
        graph: fused,
        kernels: builder.kernels,
        launches: builder.launches,
        program: builder.program,
        plan,
        table: builder.table,
        table_buffer: builder.table_buffer,
        codebooks_buffer: builder.codebooks_buffer,
        inputs: builder.inputs,
        weights: builder.weights,
        states: builder.states,
        outputs: builder.outputs,
        symbols,
        constraints,
        decisions,
        predicted_us: vec![],
        weight_copies,
    };
    for symbol in graph.symbols() {
        if !module.symbols.contains(symbol) {
            module.symbols.push(symbol.clone());
        }
    }
    if !cost::runs_workgroups_on_one_thread(caps) {
        let alone = |launch| module.predict_us(launch, caps, &Bindings::new(), Launches::ONE);
        module.predicted_us = (0..module.launches.len()).map(alone).collect();
    }
    Ok(module)
}

impl Module {
    /// Predicts the microseconds of one launch. See [`predict_us`]; 0 for a number that is no launch.
    pub fn predict_us(
        &self,
        launch: usize,
        caps: &DeviceCaps,
        bindings: &Bindings,
        launches: Launches,
    ) -> f64 {
        let Some(launch) = self.launches.get(launch) else { return 0.0 };
        // `Builder::build` launches fusions only.
        let Op::Fusion(fusion) = &self.graph.graph().node(launch.node).op else { return 0.0 };
        predict_us(fusion, &self.kernels[launch.kernel], caps, bindings, launches)
    }
}

#[derive(Default)]
struct Builder {
    kernels: Vec<Kernel>,
    launches: Vec<Launch>,
    program: Program,
    table: Table,
    table_buffer: Option<usize>,
    codebooks_buffer: Option<usize>,
    inputs: Vec<Tensor>,
    weights: Vec<Tensor>,
    states: Vec<Tensor>,
    outputs: Vec<Tensor>,
    candidates: Vec<Candidate>,
    /// The buffer of each value.
    buffer_of: BTreeMap<Value, usize>,
}

impl Builder {
    fn buffer(&mut self, name: String, bytes: u64, kind: BufferKind) -> usize {
        // A binding must not be empty, and vector loads read whole 16-byte vectors.
        let bytes = bytes.max(1).next_multiple_of(16);
        self.program.buffers.push(Buffer { name, bytes, kind });
        self.program.buffers.len() - 1
    }

    fn leaf(
        &mut self,
        name: &str,
        ty: &TensorType,
        kind: fn(u32) -> BufferKind,
        which: fn(&mut Self) -> &mut Vec<Tensor>,
    ) -> usize {
        let index = which(self).len() as u32;
        let buffer = self.buffer(name.into(), ty.max_bytes(), kind(index));
        which(self).push(Tensor { name: name.into(), ty: ty.clone(), buffer });
        buffer
    }

    fn build(&mut self, graph: &Graph, caps: &DeviceCaps, schedules: &Schedules) -> Result<(), CodegenError> {
        let (returned, readers) = (returned(graph), Readers::of(graph));
        let mut outputs = 0;
        let mut known: HashMap<&Fusion, usize> = HashMap::new();
        for (id, node) in graph.nodes() {
            match &node.op {
                Op::Input { name, ty } => {
                    let buffer = self.leaf(name, ty, BufferKind::Input, |b| &mut b.inputs);
                    self.buffer_of.insert(id.into(), buffer);
                }
                Op::Weight { name, ty } => {
                    let buffer = self.leaf(name, ty, BufferKind::Weight, |b| &mut b.weights);
                    self.buffer_of.insert(id.into(), buffer);
                }
                Op::State { name, ty } => {
                    let buffer = self.leaf(name, ty, BufferKind::State, |b| &mut b.states);
                    self.buffer_of.insert(id.into(), buffer);
                }
                // A reshape aliases its operand's buffer.
                Op::Reshape(_) => {
                    let buffer = self.buffer_of[&node.operands[0]];
                    self.buffer_of.insert(id.into(), buffer);
                }
                Op::Fusion(fusion) => {
                    let kernel = match known.get(&**fusion) {
                        Some(k) => *k,
                        None => {
                            let kernel = match schedules.get(&**fusion) {
                                Some(schedule) => {
                                    kinds::kernel_with(fusion, *schedule, caps, &mut self.table)?
                                }
                                None => kinds::kernel(fusion, caps, &mut self.table)?,
                            };
                            self.kernels.push(kernel);
                            known.insert(fusion, self.kernels.len() - 1);
                            self.kernels.len() - 1
                        }
                    };
                    let pairs = donation::pairs(fusion, &self.kernels[kernel].schedule);
                    for (result, ty) in node.types.iter().enumerate() {
                        let value = Value { node: id, result: result as u32 };
                        let name = format!("%{}.{result}", id.0);
                        let reused = || {
                            let of = (result as u32, pairs.as_slice());
                            readers.reused(node, of, &self.program, &self.buffer_of)
                        };
                        let buffer = match updated_param(fusion, result as u32) {
                            Some(param) => self.buffer_of[&node.operands[param as usize]],
                            None if returned.contains(&value) => {
                                outputs += 1;
                                self.buffer(name, ty.max_bytes(), BufferKind::Output(outputs - 1))
                            }
                            None => match reused() {
                                Some(buffer) => buffer,
                                None => self.buffer(name, ty.max_bytes(), BufferKind::Arena),
                            },
                        };
                        self.buffer_of.insert(value, buffer);
                    }
                    let (dispatch, buffer_of) = (self.launches.len(), &self.buffer_of);
                    let candidates =
                        donation::candidates((id, node), &pairs, dispatch, &self.program, buffer_of);
                    self.candidates.extend(candidates);
                    self.launch(id, &node.operands, kernel);
                }
                other => return Err(CodegenError::Node(format!("{} outside a fusion", other.name()))),
            }
        }
        for output in graph.outputs().iter().filter(|o| !o.name.is_empty()) {
            let (name, ty) = (output.name.clone(), graph.ty(output.value).clone());
            self.outputs.push(Tensor { name, ty, buffer: self.buffer_of[&output.value] });
        }
        Ok(())
    }

    fn launch(&mut self, id: NodeId, operands: &[Value], kernel: usize) {
        let k = self.kernels[kernel].clone();
        let constant: Option<Vec<u32>> = k.grid.iter().map(Count::as_const).collect();
        let grid = match constant.as_deref() {
            Some([x, y, z]) => Grid::Direct([*x, *y, *z]),
            _ => Grid::Table(self.table.grid(&k.grid)),
        };
        let indirect = matches!(grid, Grid::Table(_));
        let mut dispatch = Dispatch { name: format!("%{} {}", id.0, k.name), reads: vec![], writes: vec![] };
        let mut bindings = vec![];
        for binding in &k.bindings {
            let buffer = match binding.source {
                Source::Operand(i) => self.buffer_of[&operands[i as usize]],
                Source::Result(r) => self.buffer_of[&Value { node: id, result: r }],
                Source::Table => self.table_buffer(),
                Source::Codebooks => self.codebooks_buffer(),
                Source::Scratch(i) => {
                    let Scratch { bytes, fill } = k.scratch[i as usize];
                    let kind = fill.map_or(BufferKind::Arena, |fill| BufferKind::Scratch { fill });
                    self.buffer(format!("%{}.scratch{i}", id.0), bytes, kind)
                }
            };
            let end = binding.range.1.min(self.program.buffers[buffer].bytes);
            let access = Access { buffer, start: binding.range.0, end };
            if binding.written { &mut dispatch.writes } else { &mut dispatch.reads }.push(access);
            // The initial contents come from the previous run, so the dispatch also reads them.
            if matches!(self.program.buffers[buffer].kind, BufferKind::Scratch { .. }) {
                dispatch.reads.push(access);
            }
            bindings.push(access);
        }
        if indirect && !k.bindings.iter().any(|b| b.source == Source::Table) {
            let buffer = self.table_buffer();
            dispatch.reads.push(Access { buffer, start: 0, end: self.program.buffers[buffer].bytes });
        }
        self.program.dispatches.push(dispatch);
        self.launches.push(Launch { kernel, bindings, grid, node: id });
    }

    /// Sets the table's size, in its buffer and in all accesses to it.
    fn size_table(&mut self) {
        let Some(table) = self.table_buffer else { return };
        let bytes = (4 * self.table.entries().len() as u64).max(1).next_multiple_of(16);
        self.program.buffers[table].bytes = bytes;
        for dispatch in &mut self.program.dispatches {
            dispatch.reads.iter_mut().filter(|a| a.buffer == table).for_each(|a| a.end = bytes);
        }
        for launch in &mut self.launches {
            launch.bindings.iter_mut().filter(|a| a.buffer == table).for_each(|a| a.end = bytes);
        }
    }

    fn table_buffer(&mut self) -> usize {
        if let Some(buffer) = self.table_buffer {
            return buffer;
        }
        // `size_table` sets its size once all entries are known.
        let buffer = self.buffer("symbols".into(), 0, BufferKind::Symbols);
        self.table_buffer = Some(buffer);
        buffer
    }

    fn codebooks_buffer(&mut self) -> usize {
        if let Some(buffer) = self.codebooks_buffer {
            return buffer;
        }
        let bytes = tallow_quant::codebooks_bytes() as u64;
        let buffer = self.buffer("codebooks".into(), bytes, BufferKind::Codebooks);
        self.codebooks_buffer = Some(buffer);
        buffer
    }
}

/// Values that are returned to the caller, looking through reshapes.
fn returned(graph: &Graph) -> Vec<Value> {
    let through = |value| through_reshapes(graph, value);
    let mut all: Vec<Value> = graph.outputs().iter().map(|o| through(o.value)).collect();
    // An in-place update shares its target's buffer.
    let mut at = 0;
    while let Some(value) = all.get(at).copied() {
        if let Op::Fusion(fusion) = graph.op(value)
            && let Some(param) = updated_param(fusion, value.result)
        {
            all.push(through(graph.node(value.node).operands[param as usize]));
        }
        at += 1;
    }
    all
}
