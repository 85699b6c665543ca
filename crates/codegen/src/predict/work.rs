//! What a kernel does, counted from its body and its grid: bytes, loads, operations, passes over rows.

use tallow_ir::form::output_root;
use tallow_ir::{Bindings, DType, Dim, Graph, Node, NodeId, Op, TensorType, Value};

use crate::kernel::Kernel;
use crate::schedule::{Algorithm, Schedule};

/// Bytes of a DRAM access. A row that an index selects takes whole ones.
const DRAM_BYTES: f64 = 64.0;

/// Bytes of a sector of a cache. Rows below that are loads that neighbours do not share.
const SECTOR_BYTES: f64 = 32.0;

/// Loads of 4 bytes or more reach the memory's bandwidth; below that, the loads themselves take longer.
const NARROW_BYTES: f64 = 4.0;

/// Most elements of a row that an invocation keeps in registers (`blocks/register_cache.rs`). Longer rows are read in
/// each pass.
const CACHED_ELEMENTS: f64 = 32.0;

/// Instructions of a special function or a division, for one of an addition.
const SLOW_OP: f64 = 8.0;

/// Elements that the widest load takes.
pub(super) const WIDE: u64 = 8;

/// The counts of one launch. Symbols without a value count as their maximum.
pub(super) struct Work<'a> {
    pub body: &'a Graph,
    pub schedule: &'a Schedule,
    bindings: &'a Bindings,
    pub workgroups: f64,
    pub invocations: f64,
    /// Bytes that are read and written, each once if it stays in registers.
    pub bytes_read: f64,
    pub bytes_written: f64,
    /// Elements of operands that are loaded, as often as they are.
    pub loads: f64,
    /// Of these: elements below 4 bytes that are loaded one by one, because rows do not begin at multiples of vectors.
    pub narrow_loads: f64,
    /// Of these: elements of rows below a sector that an index selects.
    pub scattered_loads: f64,
    /// Elementwise operations, and elements that are reduced.
    pub operations: f64,
    /// Elements of the results.
    pub results: f64,
    /// Passes over the rows of reductions.
    pub passes: f64,
}

impl<'a> Work<'a> {
    /// Counts what a launch of `kernel` does, which computes `body`.
    pub fn of(body: &'a Graph, kernel: &'a Kernel, bindings: &'a Bindings) -> Work<'a> {
        let groups = |count: &crate::Count| match count.eval(bindings) {
            Some(groups) => f64::from(groups),
            None => (count.most() as f64).min(count.limit.into()),
        };
        let workgroups = kernel.grid.iter().map(groups).product::<f64>().max(1.0);
        let invocations = workgroups * f64::from(kernel.workgroup.iter().product::<u32>().max(1));
        let mut work = Work {
            body,
            schedule: &kernel.schedule,
            bindings,
            workgroups,
            invocations,
            bytes_read: 0.0,
            bytes_written: 0.0,
            loads: 0.0,
            narrow_loads: 0.0,
            scattered_loads: 0.0,
            operations: 0.0,
            results: 0.0,
            passes: 1.0,
        };
        let evaluations = work.count_evaluations();
        work.count_reads(&evaluations);
        work.count_writes();
        work.count_passes(&evaluations);
        work
    }

    /// An extent, at least 0.
    pub fn extent(&self, dim: &Dim) -> f64 {
        dim.eval(self.bindings).unwrap_or_else(|| dim.max_value()).max(0) as f64
    }

    /// The extents of a value.
    pub fn extents(&self, value: Value) -> Vec<f64> {
        self.body.ty(value).shape.dims().iter().map(|dim| self.extent(dim)).collect()
    }

    /// Elements of a value.
    pub fn elements(&self, value: Value) -> f64 {
        self.elements_of(self.body.ty(value))
    }

    fn elements_of(&self, ty: &TensorType) -> f64 {
        ty.shape.dims().iter().map(|dim| self.extent(dim)).product()
    }

    /// The slices of an extent that the kernel divides.
    pub fn slices(&self, extent: f64) -> f64 {
        let split = self.schedule.split;
        if extent <= f64::from(split.above) { 1.0 } else { f64::from(split.slices.max(1)) }
    }

    /// The nodes for which `is` holds.
    pub fn nodes(&self, is: fn(&Op) -> bool) -> impl Iterator<Item = (NodeId, &'a Node)> + use<'a> {
        self.body.nodes().filter(move |(_, node)| is(&node.op))
    }

    /// For each node, how many of its elements the kernel computes or reads. Counts operations on the way.
    fn count_evaluations(&mut self) -> Vec<f64> {
        let body = self.body;
        let mut evaluations = vec![0.0_f64; body.len()];
        for output in body.outputs() {
            evaluations[output.value.node.index()] = self.elements(output.value);
        }
        for (id, node) in body.nodes().rev() {
            let here = evaluations[id.index()];
            self.operations += here * operations_of(&node.op);
            if let (Op::Reduce { .. }, Some(from)) = (&node.op, node.operands.first()) {
                self.operations += self.elements(*from);
            }
            for (number, operand) in node.operands.iter().enumerate() {
                let wanted = self.wanted(node, number, here);
                let known = &mut evaluations[operand.node.index()];
                *known = known.max(wanted);
            }
        }
        evaluations
    }

    /// How many elements of an operand are read for so many elements of a node.
    fn wanted(&self, node: &Node, number: usize, here: f64) -> f64 {
        let whole = self.elements(node.operands[number]);
        match (&node.op, number) {
            (Op::StateUpdate { .. }, 0) => 0.0,
            // The target is combined with in place, where the source goes.
            (Op::Scatter(_), 0) => {
                node.operands.get(2).map_or(whole, |source| whole.min(self.elements(*source)))
            }
            (
                Op::Elementwise(_)
                | Op::Cast(_)
                | Op::Dequantize(_)
                | Op::Reshape(_)
                | Op::Broadcast(_)
                | Op::Permute(_)
                | Op::Slice { .. }
                | Op::Flip { .. }
                | Op::Window { .. }
                | Op::Pad { .. }
                | Op::Gather { .. },
                _,
            ) => here,
            (
                Op::Input { .. }
                | Op::Weight { .. }
                | Op::State { .. }
                | Op::Param { .. }
                | Op::Const(_)
                | Op::Iota { .. }
                | Op::DimValue { .. }
                | Op::Scalar { .. }
                | Op::Concat { .. }
                | Op::Reduce { .. }
                | Op::Matmul
                | Op::Scan { .. }
                | Op::ArgSort { .. }
                | Op::MergeRuns { .. }
                | Op::Scatter(_)
                | Op::IndexAdd
                | Op::Quantize(_)
                | Op::Attention(_)
                | Op::AttentionGrad(..)
                | Op::StateUpdate { .. }
                | Op::Custom(_)
                | Op::Fusion(_),
                _,
            ) => whole,
        }
    }

    fn count_reads(&mut self, evaluations: &[f64]) {
        for (id, node) in self.nodes(|op| matches!(op, Op::Param { .. })) {
            let (ty, loads) = (&node.types[0], evaluations[id.index()]);
            let bytes = element_bytes(ty.dtype);
            self.bytes_read += loads.min(self.elements_of(ty)) * bytes;
            self.loads += loads;
            if adjacent(ty) as f64 * bytes < NARROW_BYTES {
                self.narrow_loads += loads;
            }
        }
        for (id, node) in self.nodes(|op| matches!(op, Op::Gather { .. })) {
            let (Op::Gather { axis }, Some(from)) = (&node.op, node.operands.first()) else { continue };
            let bytes = element_bytes(self.body.ty(*from).dtype);
            let row = self.extents(*from)[axis + 1..].iter().product::<f64>() * bytes;
            if row <= 0.0 {
                continue;
            }
            let (table, selected) = (self.elements(*from) * bytes, evaluations[id.index()] * bytes);
            let accessed = selected / row * (row / DRAM_BYTES).ceil() * DRAM_BYTES;
            self.bytes_read += table.min(accessed) - table.min(selected);
            if row < SECTOR_BYTES {
                self.scattered_loads += selected / row;
            }
        }
    }

    fn count_writes(&mut self) {
        for number in 0..self.body.outputs().len() {
            let root = output_root(self.body, number);
            let node = self.body.node(root.node);
            self.results += self.elements(self.body.outputs()[number].value);
            let written = match (&node.op, node.operands.get(2)) {
                (Op::Scatter(_), Some(source)) => self.elements(root).min(self.elements(*source)),
                _ => self.elements(root),
            };
            self.bytes_written += written * element_bytes(self.body.ty(root).dtype);
        }
    }

    /// Passes over rows: reductions that need another's result have one of their own, and so do outputs that have an
    /// element for each element of a row.
    fn count_passes(&mut self, evaluations: &[f64]) {
        match self.schedule.algorithm {
            Algorithm::Row | Algorithm::Columns => {}
            // The rows of an invocation share loads.
            Algorithm::ShortRows => {
                self.loads /= f64::from(self.schedule.tile.m.max(1));
                self.narrow_loads /= f64::from(self.schedule.tile.m.max(1));
                return;
            }
            Algorithm::Map
            | Algorithm::Matvec
            | Algorithm::StagedMatvec
            | Algorithm::Matmul
            | Algorithm::Attention
            | Algorithm::DecodeAttention
            | Algorithm::FlashAttention
            | Algorithm::TiledAttention
            | Algorithm::AttentionGrad
            | Algorithm::FlashAttentionGrad
            | Algorithm::Quantize
            | Algorithm::Scan
            | Algorithm::Sort
            | Algorithm::RankSort
            | Algorithm::TopK
            | Algorithm::Merge
            | Algorithm::Scatter
            | Algorithm::IndexAdd
            | Algorithm::Custom => return,
        }
        let mut level = vec![0_u32; self.body.len()];
        let mut reduced = 0.0_f64;
        for (id, node) in self.body.nodes() {
            let below = node.operands.iter().map(|v| level[v.node.index()]).max().unwrap_or(0);
            let is_reduction = matches!(node.op, Op::Reduce { .. });
            level[id.index()] = below + u32::from(is_reduction);
            if is_reduction {
                reduced = reduced.max(self.elements(node.operands[0]));
            }
        }
        let stores = u32::from(self.results >= reduced);
        self.passes = f64::from((level.into_iter().max().unwrap_or(0) + stores).max(1));
        let params = self.nodes(|op| matches!(op, Op::Param { .. }));
        let each = params.map(|(id, _)| evaluations[id.index()] / self.invocations).fold(0.0, f64::max);
        if each > CACHED_ELEMENTS {
            self.bytes_read *= self.passes;
            self.loads *= self.passes;
            self.narrow_loads *= self.passes;
        }
    }
}

/// Elements, up to [`WIDE`], of which rows are whole multiples: what a vector load may take. A kernel that serves all values
/// of a symbol loads as they all allow, whatever the value at hand.
pub(super) fn adjacent(ty: &TensorType) -> u64 {
    ty.shape.dims().iter().rev().find(|dim| !dim.is(1)).map_or(WIDE, common)
}

/// The largest power of two, up to [`WIDE`], that divides all values of an extent.
pub(super) fn common(dim: &Dim) -> u64 {
    match dim.divisor() {
        0 => WIDE,
        number => (1 << number.trailing_zeros()).min(WIDE),
    }
}

/// Bytes of an element; of blocks the average.
fn element_bytes(dtype: DType) -> f64 {
    match dtype {
        DType::Block(format) => format.block_bytes() as f64 / format.block_elements().max(1) as f64,
        DType::U8
        | DType::U32
        | DType::I16
        | DType::I32
        | DType::I64
        | DType::F8E4M3
        | DType::F16
        | DType::BF16
        | DType::F32
        | DType::F64 => dtype.size_in_bytes() as f64,
    }
}

/// Instructions of an op for each element of its result, for one of an addition. Views and casts cost nothing of note;
/// what the others do, the formulas of their algorithms count.
fn operations_of(op: &Op) -> f64 {
    match op {
        Op::Elementwise(op) => {
            if op.is_slow() {
                SLOW_OP
            } else {
                1.0
            }
        }
        Op::Dequantize(_) => 1.0,
        Op::Input { .. }
        | Op::Weight { .. }
        | Op::State { .. }
        | Op::Param { .. }
        | Op::Const(_)
        | Op::Iota { .. }
        | Op::DimValue { .. }
        | Op::Scalar { .. }
        | Op::Cast(_)
        | Op::Reshape(_)
        | Op::Broadcast(_)
        | Op::Permute(_)
        | Op::Slice { .. }
        | Op::Flip { .. }
        | Op::Window { .. }
        | Op::Pad { .. }
        | Op::Concat { .. }
        | Op::Reduce { .. }
        | Op::Matmul
        | Op::Gather { .. }
        | Op::Scan { .. }
        | Op::ArgSort { .. }
        | Op::MergeRuns { .. }
        | Op::Scatter(_)
        | Op::IndexAdd
        | Op::Quantize(_)
        | Op::Attention(_)
        | Op::AttentionGrad(..)
        | Op::StateUpdate { .. }
        | Op::Custom(_)
        | Op::Fusion(_) => 0.0,
    }
}
