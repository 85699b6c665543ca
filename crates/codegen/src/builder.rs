//! From a fused graph to kernels, launches and a program of buffers and dispatches.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};

use tallow_ir::schedule::{self, Access, Buffer, BufferKind, Dispatch, Limits, Plan, Program};
use tallow_ir::verify::updated_param;
use tallow_ir::{DeviceCaps, Fusion, FusionKind, Graph, NodeId, Op, TensorType, Value};

use crate::donation::{self, Candidate, Readers, through_reshapes};
use crate::error::CodegenError;
use crate::kernel::{Count, Kernel, Scratch, Source, Table};
use crate::kinds;
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
    /// Position in [`Module::kernels`](crate::Module::kernels).
    pub kernel: usize,
    /// The byte range of a buffer that each binding covers.
    pub bindings: Vec<Access>,
    /// Workgroups of the dispatch.
    pub grid: Grid,
    /// The fusion node that it computes.
    pub node: NodeId,
    /// By operand of the node, the buffer in [`Program::buffers`] that holds it from its first byte on.
    pub operands: Vec<usize>,
    /// By result of the node, the same.
    pub results: Vec<usize>,
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

/// A fused graph as a program, and its plan.
pub(crate) struct Planned {
    pub(crate) builder: Builder,
    pub(crate) plan: Plan,
}

impl Planned {
    /// The program of a fused graph, planned.
    pub(crate) fn of(builder: Builder, caps: &DeviceCaps) -> Result<Planned, CodegenError> {
        let plan = schedule::plan(&builder.program, &limits(caps));
        Ok(Planned { plan: plan.map_err(|e| CodegenError::Schedule(e.to_string()))?, builder })
    }
}

/// The kernels of fusions, each generated once, and the table that they read.
pub(crate) struct Kernels<'a> {
    caps: &'a DeviceCaps,
    schedules: &'a Schedules,
    table: Table,
    known: HashMap<(FusionKind, Graph), Generated>,
}

/// A kernel, and the pairs of its results and operands that may share memory.
struct Generated {
    kernel: Kernel,
    pairs: Vec<(u32, u32)>,
}

impl<'a> Kernels<'a> {
    /// With these schedules where one was chosen, and the default elsewhere.
    pub(crate) fn new(caps: &'a DeviceCaps, schedules: &'a Schedules) -> Kernels<'a> {
        Kernels { caps, schedules, table: Table::default(), known: HashMap::new() }
    }

    fn of(&mut self, fusion: &Fusion, table: &mut Table) -> Result<&Generated, CodegenError> {
        match self.known.entry((fusion.kind, fusion.body.clone())) {
            Entry::Occupied(known) => Ok(known.into_mut()),
            Entry::Vacant(new) => {
                // Whoever chose saw the first run only.
                let schedule = match fusion.run {
                    0 => self.schedules.get(fusion),
                    _ => self.schedules.get(&Fusion { run: 0, ..fusion.clone() }),
                };
                let kernel = match schedule {
                    Some(schedule) => kinds::kernel_with(fusion, *schedule, self.caps, table)?,
                    None => kinds::kernel(fusion, self.caps, table)?,
                };
                let pairs = donation::pairs(fusion, &kernel.schedule);
                Ok(new.insert(Generated { kernel, pairs }))
            }
        }
    }
}

/// A program while it is built.
#[derive(Default)]
pub(crate) struct Builder {
    pub(crate) kernels: Vec<Kernel>,
    pub(crate) launches: Vec<Launch>,
    pub(crate) program: Program,
    pub(crate) table: Table,
    pub(crate) table_buffer: Option<usize>,
    pub(crate) codebooks_buffer: Option<usize>,
    pub(crate) inputs: Vec<Tensor>,
    pub(crate) weights: Vec<Tensor>,
    pub(crate) states: Vec<Tensor>,
    pub(crate) outputs: Vec<Tensor>,
    pub(crate) candidates: Vec<Candidate>,
    /// The buffer of each value.
    pub(crate) buffer_of: BTreeMap<Value, usize>,
}

impl Builder {
    /// The program of a fused graph.
    pub(crate) fn of(graph: &Graph, kernels: &mut Kernels<'_>) -> Result<Builder, CodegenError> {
        // Kernels know positions in the table, so it begins with what it had.
        let mut builder = Builder { table: kernels.table.clone(), ..Builder::default() };
        builder.build(graph, kernels)?;
        builder.size_table();
        kernels.table = builder.table.clone();
        Ok(builder)
    }

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

    fn build(&mut self, graph: &Graph, kernels: &mut Kernels<'_>) -> Result<(), CodegenError> {
        let (returned, readers) = (returned(graph), Readers::of(graph));
        let mut outputs = 0;
        // Runs of one kernel have numbers, which are no part of the kernel.
        let mut known: HashMap<(FusionKind, &Graph), usize> = HashMap::new();
        let mut pairs_of: Vec<Vec<(u32, u32)>> = vec![];
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
                    let kernel = match known.entry((fusion.kind, &fusion.body)) {
                        Entry::Occupied(known) => *known.get(),
                        Entry::Vacant(new) => {
                            let Generated { kernel, pairs } = kernels.of(fusion, &mut self.table)?;
                            self.kernels.push(kernel.clone());
                            pairs_of.push(pairs.clone());
                            *new.insert(self.kernels.len() - 1)
                        }
                    };
                    let pairs = &pairs_of[kernel];
                    for (result, ty) in node.types.iter().enumerate() {
                        let value = Value { node: id, result: result as u32 };
                        let name = format!("%{}.{result}", id.0);
                        let reused = || {
                            let of = (result as u32, &pairs[..]);
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
                        donation::candidates((id, node), pairs, dispatch, &self.program, buffer_of);
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
        let operands = operands.iter().map(|v| self.buffer_of[v]).collect();
        let of_node = Value { node: id, result: 0 }..=Value { node: id, result: u32::MAX };
        let results = self.buffer_of.range(of_node).map(|(_, buffer)| *buffer).collect();
        self.launches.push(Launch { kernel, bindings, grid, node: id, operands, results });
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
