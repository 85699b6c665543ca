//! Matmul of f16 operands with workgroup-scope cooperative matrices (`VK_NV_cooperative_matrix2`). The driver stages
//! the operands and distributes the fragments over the subgroups. Strided f16 operands are loaded from memory directly.
//! Other operands are computed per element in decode callbacks of the loads. Results are stored by per-element
//! callbacks.
//!
//! A tuning candidate, never the default: on an H200, `matmul_coopmat` is faster (decision 0016).

use minijinja::{Value as Hole, context};
use tallow_ir::caps::{ApiVersion, COOPMAT2_GRANULARITY, COOPMAT2_MAX_EXTENT, COOPMAT2_WORKGROUP};
use tallow_ir::form::{ContractionForm, Segment, quantized_root};
use tallow_ir::index::{AtomDef, AtomId, Index};
use tallow_ir::matrix::{self, MatrixOperand};
use tallow_ir::{DType, Dim, NodeId, Op, Value};

use super::grid::{columns_grid, segment_groups};
use super::operands::{is_multiple, left_at, right_at};
use super::store::stores;
use super::tile_code::Matmul;
use crate::assemble::{TENSORS, check_grid, finish, floor_pow2};
use crate::blocks::coopmat::matrix_extensions;
use crate::blocks::operand;
use crate::emit::{Anchor, Emitter};
use crate::error::CodegenError;
use crate::instruction::Instruction;
use crate::kernel::{Count, Kernel};
use crate::schedule::{Algorithm, Schedule, Tile};

/// Invocations per workgroup, which share the cooperative matrices.
const WORKGROUP: u32 = COOPMAT2_WORKGROUP;

/// The Vulkan version that accepts SPIR-V 1.6.
const VULKAN_1_3: ApiVersion = ApiVersion { major: 1, minor: 3, patch: 0 };

/// The K tile, in elements.
const BK: u32 = 32;

/// Sides of the candidate tiles; tiles are square.
const SIDES: [u32; 2] = [COOPMAT2_MAX_EXTENT, COOPMAT2_MAX_EXTENT / 2];

/// The candidate schedules. Empty if the device lacks workgroup-scope cooperative matrices, or if a store needs several
/// elements at once. Also empty if a store must not be repeated: the device may call a per-element callback more than
/// once.
pub(crate) fn schedules(e: &Emitter<'_>, form: &ContractionForm) -> Vec<Schedule> {
    let caps = e.caps;
    let stored_once = |output: usize| {
        let value = e.body.outputs()[output].value;
        matches!(e.body.op(value), Op::StateUpdate { .. }) || quantized_root(e.body, output).is_some()
    };
    let plain = |s: &Segment| !s.staged && !s.outputs.iter().any(|output| stored_once(*output));
    let possible = caps.cooperative_matrix2
        && !e.body.params().is_empty()
        && caps.buffer_device_address
        && caps.api_version >= VULKAN_1_3
        && caps.max_workgroup_invocations >= WORKGROUP
        && matrix::supported(e.body, form, caps) == Some(MatrixOperand::F16)
        && form.segments.iter().all(plain);
    let wide = |side: &u32| form.segments.iter().all(|s| columns(*side, s) >= COOPMAT2_GRANULARITY);
    let schedule = |side| Schedule {
        instruction: Some(Instruction::Coopmat2),
        tile: Tile { m: side, n: side, k: BK },
        ..Schedule::new(Algorithm::Matmul, WORKGROUP)
    };
    SIDES.into_iter().filter(|side| possible && wide(side)).map(schedule).collect()
}

/// Columns of each anchor in a tile of this segment.
fn columns(side: u32, segment: &Segment) -> u32 {
    floor_pow2(side / segment.anchors.len() as u32)
}

/// Generates the kernel for one of [`schedules`].
pub(crate) fn kernel(
    mut e: Emitter<'_>,
    form: &ContractionForm,
    schedule: Schedule,
) -> Result<Kernel, CodegenError> {
    let side = schedule.tile.m;
    let batch = e.atom(&form.batch.numel(), "batch");
    let buffers: Vec<usize> = (0..e.body.outputs().len()).map(|o| e.result(o as u32)).collect();
    let tiles: Vec<u32> = form.segments.iter().map(|s| columns(side, s)).collect();
    // Rows along x: workgroups that run at the same time then read the same weights.
    let grid = [
        Count::along(e.caps, 0, form.m.clone(), side),
        columns_grid(form, &tiles, e.caps.max_workgroup_count[1]),
        Count::along(e.caps, 2, form.batch.numel(), 1),
    ];
    check_grid("matmul", &grid)?;
    let (mut segments, mut computed) = (vec![], false);
    let (m, k) = (e.dim(&form.m), e.dim(&form.k));
    let mm = Matmul { form, batch, buffers, schedule, columns: tiles, m, k };
    for number in 0..form.segments.len() {
        let (holes, calls) = segment_holes(&mut e, &mm, number)?;
        segments.push(holes);
        computed |= calls;
    }
    e.extensions.extend(matrix_extensions(MatrixOperand::F16));
    e.extensions.insert(TENSORS);
    e.extensions.extend(computed.then_some("GL_EXT_buffer_reference"));
    let holes = context! { segments, m => mm.m, k => mm.k, side, computed, bk => BK };
    finish(e, schedule, "matmul_coopmat2.comp", grid, String::new(), holes)
}

fn segment_holes(e: &mut Emitter<'_>, mm: &Matmul<'_>, number: usize) -> Result<(Hole, bool), CodegenError> {
    let (form, batch, segment) = (mm.form, &mm.batch, &mm.form.segments[number]);
    let (side, bn) = (mm.schedule.tile.m, mm.columns[number]);
    let ((operands, store, groups), prelude) = e.scope(|e| {
        let axis = Axis { name: "m", extent: &form.m, first: "row0", tile: side };
        let left = &mut |e: &mut Emitter<'_>, row: Index, k: Index| left_at(e, form, batch, &row, &k);
        let mut operands = vec![load(e, form, form.lhs, &axis, left)?];
        for id in &segment.anchors {
            let rhs = e.body.node(*id).operands[1];
            let axis = Axis { name: "n", extent: &segment.n, first: "column0", tile: bn };
            let right = &mut |e: &mut Emitter<'_>, column: Index, k: Index| {
                right_at(e, form, rhs, [batch, &column, &k])
            };
            operands.push(load(e, form, rhs, &axis, right)?);
        }
        let store = e.scoped_lines(|e| {
            let depth = e.depth();
            for (i, id) in segment.anchors.iter().enumerate() {
                e.anchors.insert(*id, Anchor::Result { text: format!("found{i}"), depth });
            }
            let (row, column) = (e.atom(&form.m, "m"), e.atom(&segment.n, "n"));
            stores(e, form, segment, [batch, &row, &column], &mm.buffers)
        })?;
        Ok((operands, store.join("\n"), segment_groups(e, segment, bn)))
    })?;
    let calls = operands.iter().any(|operand| operand.is_computed);
    let transposed = operands.iter().any(|operand| operand.is_transposed);
    let left = (format!("left{number}"), e.body.node_text(form.lhs.node));
    let right = |(i, id): (usize, &NodeId)| {
        (format!("right{number}_{i}"), format!("%{} = {}", id.0, e.body.node_text(*id)))
    };
    let names = [left].into_iter().chain(segment.anchors.iter().enumerate().map(right));
    let hole = |(operand, (name, comment)): (Operand, _)| context! { name, comment, ..operand.holes };
    let operands: Vec<Hole> = operands.into_iter().zip(names).map(hole).collect();
    let anchors: Vec<usize> = (0..segment.anchors.len()).collect();
    let found: String = anchors.iter().map(|i| format!(", const in float found{i}")).collect();
    let others: String = anchors[1..].iter().map(|i| format!(", sums{i}")).collect();
    let (n, prelude) = (e.dim(&segment.n), prelude.join("\n"));
    let holes = context! { at => number, operands, anchors, transposed, groups, bn, prelude, store, n, found, others };
    Ok((holes, calls))
}

/// How the matrices of an operand are loaded.
struct Operand {
    holes: Hole,
    /// Whether a decode callback computes the elements, since they are not in memory as f16.
    is_computed: bool,
    /// Whether the matrix is the transpose of the tensor slice.
    is_transposed: bool,
}

/// The M axis of the left operand or the N axis of the right: variable, extent, start of the tile, and its size.
struct Axis<'a> {
    name: &'a str,
    extent: &'a Dim,
    first: &'a str,
    tile: u32,
}

/// Selects how an operand is loaded: directly, if it is f16 with one contiguous axis and a uniform row stride;
/// otherwise through a decode callback.
fn load(
    e: &mut Emitter<'_>,
    form: &ContractionForm,
    value: Value,
    axis: &Axis<'_>,
    at: &mut dyn FnMut(&mut Emitter<'_>, Index, Index) -> Vec<Index>,
) -> Result<Operand, CodegenError> {
    let Axis { name, extent, first, tile } = *axis;
    // The load converts to f16, which already does this rounding.
    let value = matrix::rounded(e.body, value, MatrixOperand::F16).unwrap_or(value);
    let [own, k] = [extent, &form.k].map(|extent| e.atoms.fresh(extent, AtomDef::Free));
    let (own_index, k_index) = (e.atoms.index(own), e.atoms.index(k));
    let mut direct = None;
    for (inner, outer, length) in [(k, own, &form.k), (own, k, extent)] {
        if direct.is_none() && is_multiple(length, operand::WIDE as u32) {
            let place = at(e, own_index.clone(), k_index.clone());
            direct = strided_f16(e, value, &place, (inner, outer))?.map(|found| (inner == k, found));
        }
    }
    let is_computed = direct.is_none();
    let mut callback = context! { value => (), guarded => false };
    let (along_k, (array, base, stride)) = match direct {
        Some((along_k, (array, base, stride))) => (along_k, (array, base, Some(stride))),
        None => {
            let (value, lines) = e.scope(|e| {
                let (own, k) = (e.atom(extent, name), e.atom(&form.k, "k"));
                let place = at(e, own, k);
                Ok(e.value(value, &place)?.text)
            })?;
            // Tiles may extend past the tensor. `GL_NV_cooperative_matrix2` defines the value of such elements, but does
            // not say that the callback is not called for them.
            let guarded = !(is_multiple(extent, tile) && is_multiple(&form.k, BK));
            callback = context! { value, guarded, lines => lines.join("\n") };
            // Any input buffer works: the callback ignores the element that it is passed.
            let read = e.param(0);
            (true, (format!("b{}", e.buffers[read].binding), "0u".into(), None))
        }
    };
    let (own, k) = (e.dim(extent), e.dim(&form.k));
    let (rows, columns, slice) = match along_k {
        true => (own, k, format!("{first}, {tile}u, k0, {BK}u")),
        false => (k, own, format!("k0, {BK}u, {first}, {tile}u")),
    };
    // K is the second dimension of an A matrix (M x K) and the first of a B matrix (K x N). If the tensor has it the
    // other way round, the matrix is the transpose of the tensor slice.
    let is_transposed = along_k == (name == "n");
    let holes = context! {
        own => name, matrix => if name == "m" { "a" } else { "b" }, rows, columns, stride, array, base, slice,
        is_transposed, ..callback
    };
    Ok(Operand { holes, is_computed, is_transposed })
}

/// Checks that the value at `place` is f16 in memory, contiguous along `inner` with a uniform stride along `outer`.
/// Returns the array of 16-byte words, the offset of the first element in words, and the stride in elements.
fn strided_f16(
    e: &mut Emitter<'_>,
    value: Value,
    place: &[Index],
    (inner, outer): (AtomId, AtomId),
) -> Result<Option<(String, String, String)>, CodegenError> {
    let Some((buffer, mut base)) = operand::one_load(e, value, place, inner) else { return Ok(None) };
    if e.buffers[buffer].dtype != DType::F16 || e.buffers[buffer].windows > 1 {
        return Ok(None);
    }
    let is_outer = |digit: &tallow_ir::index::Digit| digit.atom == outer;
    let plain = |digit: &tallow_ir::index::Digit| digit.div.is(1) && digit.modulo.is_none();
    let mut own = base.terms.iter().filter(|(digit, _)| is_outer(digit));
    let stride = match (own.next(), own.next()) {
        (Some((digit, stride)), None) if plain(digit) => stride.clone(),
        _ => return Ok(None),
    };
    base.terms.retain(|(digit, _)| !is_outer(digit));
    // Reject an offset that still depends on the row through a named subexpression.
    if e.atoms.roots(&base).contains(&outer) {
        return Ok(None);
    }
    let first = match e.index(&base)?.text.as_str() {
        "0u" => "0u".into(),
        first => format!("({first}) >> 3"),
    };
    let stride = e.dim(&stride);
    Ok(Some((format!("w{}", e.buffers[buffer].binding), first, stride)))
}
