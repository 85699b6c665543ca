//! Elementwise kernels that read an operand along another axis than they write: a transpose and what is fused with it.
//!
//! Adjacent invocations write adjacent elements, so their reads of such an operand are a row apart, one element per
//! sector. A tile of the operand is therefore loaded along its own contiguous axis into shared memory, and read from
//! there across.

use minijinja::context;
use tallow_ir::access::param_reads;
use tallow_ir::form::output_root;
use tallow_ir::index::{AtomDef, AtomId, Atoms, Index};
use tallow_ir::{DType, DeviceCaps, Dim, Graph, Op, Shape, Value, cost};

use crate::assemble::finish;
use crate::emit::{Anchor, Emitter, Expr};
use crate::error::CodegenError;
use crate::glsl::Glsl;
use crate::kernel::{Count, Kernel};
use crate::schedule::{Algorithm, Schedule, Tile};

/// Extents of a tile: 32 elements of 4 bytes are a cache line.
const TILE: u32 = 32;

/// Fewest elements along both axes. A tile that is half empty along both still reads whole sectors of 32 bytes, those of
/// 8-bit types excepted.
const LEAST_EXTENT: i64 = 16;

/// Fewest elements along the axis of an operand whose lines have no gaps: what a tile does not use of a sector, the same
/// tile uses.
const LEAST_OF_DENSE: i64 = 8;

/// Fewest bytes of an operand. A smaller one stays in the first cache of each core, and its reads cost no traffic.
const LEAST_BYTES: u64 = 1 << 16;

/// Most invocations of a workgroup: four elements each.
const WORKGROUP: u32 = 256;

/// Slots of a line of a tile in shared memory: one more than elements, so that a column lies in 32 banks.
const LINE: u32 = TILE + 1;

/// Which operands are read through tiles.
pub(super) struct Transposed {
    /// The shape of all outputs.
    shape: Shape,
    /// The axis of the outputs along which the operands are contiguous. Outputs are written along the last one.
    axis: usize,
    /// The operands.
    params: Vec<Value>,
}

impl Transposed {
    /// The axis with the most operands to gain, if there is one and tiles fill the device.
    pub fn of(body: &Graph, caps: &DeviceCaps) -> Option<Transposed> {
        let roots: Vec<Value> = (0..body.outputs().len()).map(|output| output_root(body, output)).collect();
        let shape = body.ty(*roots.first()?).shape.clone();
        let same = roots.iter().all(|root| body.ty(*root).shape == shape);
        let last = shape.rank().checked_sub(1)?;
        if !same || !has_extent(&shape, last, LEAST_EXTENT) {
            return None;
        }
        let found = (0..last).filter(|axis| has_extent(&shape, *axis, LEAST_OF_DENSE)).map(|axis| {
            let params = in_shared_memory(body, caps, strided(body, &roots, &shape, axis));
            Transposed { shape: shape.clone(), axis, params }
        });
        let best = found.max_by_key(|found| found.params.len())?;
        let tiles = best.tiles().max_value();
        let enough = tiles >= i64::from(cost::workgroups_to_mostly_fill(caps));
        (enough && !best.params.is_empty() && caps.max_workgroup_invocations >= 2 * TILE).then_some(best)
    }

    pub fn schedule(&self, caps: &DeviceCaps) -> Schedule {
        let workgroup = WORKGROUP.min(caps.max_workgroup_invocations) / TILE * TILE;
        Schedule { tile: Tile { m: TILE, n: TILE, k: 0 }, ..Schedule::new(Algorithm::Map, workgroup) }
    }

    /// Tiles along the axis of the operands and along the last one.
    fn counts(&self) -> [i64; 2] {
        [self.axis, self.shape.rank() - 1]
            .map(|axis| (self.shape.dims()[axis].max_value() + i64::from(TILE) - 1) / i64::from(TILE))
    }

    fn tiles(&self) -> Dim {
        let [down, across] = self.counts();
        &outer(&self.shape, self.axis).numel() * &Dim::constant(down * across)
    }
}

/// The first operands whose tiles fit into shared memory.
fn in_shared_memory(body: &Graph, caps: &DeviceCaps, params: Vec<Value>) -> Vec<Value> {
    let mut bytes = 0;
    let fits = |param: &Value| {
        bytes += Glsl::of(body.ty(*param).dtype, caps).map_or(8, Glsl::bytes) * TILE * LINE;
        bytes <= caps.shared_memory_bytes
    };
    params.into_iter().take_while(fits).collect()
}

/// Whether an axis has at least so many elements.
fn has_extent(shape: &Shape, axis: usize, least: i64) -> bool {
    shape.dims()[axis].as_const().is_some_and(|n| n >= least)
}

/// The extents that tiles do not cover.
fn outer(shape: &Shape, axis: usize) -> Shape {
    shape.without(&[axis, shape.rank() - 1])
}

/// The coordinates of an output element, from an index into the axes outside of tiles, one along `axis`, and one along the
/// last axis.
fn coordinates(shape: &Shape, axis: usize, [left, y, x]: [&Index; 3], atoms: &mut Atoms) -> Vec<Index> {
    let mut left = atoms.unflatten(left, &outer(shape, axis)).into_iter();
    let of = |i: usize| match i {
        i if i == axis => y.clone(),
        i if i + 1 == shape.rank() => x.clone(),
        _ => left.next().unwrap_or_default(),
    };
    (0..shape.rank()).map(of).collect()
}

/// The operands that are contiguous along `axis` of the outputs and strided along the last one.
fn strided(body: &Graph, roots: &[Value], shape: &Shape, axis: usize) -> Vec<Value> {
    let mut atoms = Atoms::default();
    let dims = shape.dims();
    let all = [&outer(shape, axis).numel(), &dims[axis], &dims[dims.len() - 1]];
    let [left, y, x] = all.map(|extent| atoms.fresh(extent, AtomDef::Free));
    let index = [left, y, x].map(|atom| atoms.index(atom));
    let at = coordinates(shape, axis, [&index[0], &index[1], &index[2]], &mut atoms);
    let mut reads: Vec<(Value, Index)> = vec![];
    for root in roots {
        for read in param_reads(body, *root, &at, &mut atoms) {
            if !reads.contains(&read) {
                reads.push(read);
            }
        }
    }
    let once = |param: Value| reads.iter().filter(|(other, _)| *other == param).count() == 1;
    let plain = |param: Value| {
        !matches!(body.ty(param).dtype, DType::Block(_)) && body.ty(param).max_bytes() >= LEAST_BYTES
    };
    let is_long = has_extent(shape, axis, LEAST_EXTENT);
    let is_dense = |index: &Index| atoms.step(index, x).is_some_and(|step| step == dims[axis]);
    let gains = |index: &Index| {
        (is_long || is_dense(index))
            && reads_only(index, &[left, y, x], &atoms)
            && atoms.base(index, y, 1).is_some()
            && atoms.base(index, x, 1).is_none()
            && atoms.roots(index).contains(&x)
    };
    reads
        .iter()
        .filter(|(param, index)| once(*param) && plain(*param) && gains(index))
        .map(|(p, _)| *p)
        .collect()
}

/// Whether an index is made of these atoms alone, guarded or not: nothing that is read from memory.
fn reads_only(index: &Index, all: &[AtomId], atoms: &Atoms) -> bool {
    index.terms.iter().all(|(digit, _)| match &atoms.get(digit.atom).def {
        AtomDef::Free => all.contains(&digit.atom),
        AtomDef::Equal(definition) => reads_only(definition, all, atoms),
        AtomDef::Window { index, .. } => reads_only(index, all, atoms),
        AtomDef::Data => false,
    })
}

pub(super) fn kernel(
    mut e: Emitter<'_>,
    transposed: &Transposed,
    schedule: Schedule,
) -> Result<Kernel, CodegenError> {
    let (shape, axis) = (&transposed.shape, transposed.axis);
    let [down, across] = transposed.counts();
    let dims = shape.dims();
    let all = [&outer(shape, axis).numel(), &dims[axis], &dims[dims.len() - 1]];
    let atoms = all.map(|extent| e.atoms.fresh(extent, AtomDef::Free));
    let index = atoms.map(|atom| e.atoms.index(atom));
    let at = coordinates(shape, axis, [&index[0], &index[1], &index[2]], &mut e.atoms);
    let bind = |e: &mut Emitter<'_>| {
        for (atom, name) in atoms.into_iter().zip(["left", "y", "x"]) {
            e.bind_atom(atom, name);
        }
    };
    let mut tiles = vec![];
    let load = e.scoped_lines(|e| {
        bind(e);
        for (i, param) in transposed.params.iter().enumerate() {
            let dtype = e.body.ty(*param).dtype;
            let what = || CodegenError::Dtype { what: e.body.node_text(param.node), dtype };
            let ty = Glsl::of(dtype, e.caps).ok_or_else(what)?;
            let linear = linear_read(e, *param, &at)?;
            let within = e.atoms.unflatten(&linear, &e.body.ty(*param).shape.clone());
            let value = e.value(*param, &within)?;
            e.line(format!("tile{i}[s * {LINE}u + lane] = {};", value.text));
            tiles.push(format!("shared {} tile{i}[{}];", e.uses().ty(ty), TILE * LINE));
        }
        Ok(())
    })?;
    let store = e.scoped_lines(|e| {
        bind(e);
        let depth = e.depth();
        for (i, param) in transposed.params.iter().enumerate() {
            let text = format!("tile{i}[lane * {LINE}u + s]");
            e.anchors.insert(param.node, Anchor::Var(Expr { text, depth }));
        }
        for output in 0..e.body.outputs().len() {
            let buffer = e.result(output as u32);
            e.store(output as u32, buffer, &at)?;
        }
        Ok(())
    })?;
    let [height, width] = [axis, dims.len() - 1].map(|axis| e.dim(&dims[axis]));
    let count = e.dim(&transposed.tiles());
    let grid = Count::along_x(e.caps, transposed.tiles(), 1);
    let holes = context! {
        load => load.join("\n"), store => store.join("\n"), tiles => tiles.join("\n"), tile => TILE, count, down, across,
        height, width, lines => schedule.workgroup / TILE,
    };
    finish(e, schedule, "map_transposed.comp", grid, String::new(), holes)
}

/// Where the outputs at `at` read an operand.
fn linear_read(e: &mut Emitter<'_>, param: Value, at: &[Index]) -> Result<Index, CodegenError> {
    debug_assert!(matches!(e.body.op(param), Op::Param { .. }));
    let found = (0..e.body.outputs().len()).find_map(|output| {
        let reads = param_reads(e.body, output_root(e.body, output), at, &mut e.atoms);
        reads.into_iter().find(|(read, _)| *read == param)
    });
    found.map(|(_, index)| index).ok_or_else(|| CodegenError::Node(e.body.node_text(param.node)))
}
