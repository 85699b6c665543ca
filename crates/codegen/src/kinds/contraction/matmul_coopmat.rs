//! Matmul of f16 operands with subgroup-scope cooperative matrices. A workgroup stages K tiles of both operands in
//! shared memory; each subgroup multiplies its fragments. The epilogue reads the results from a staging tile in shared
//! memory.

use minijinja::{Value as Hole, context};
use tallow_ir::caps::{MatrixElement, MatrixShape};
use tallow_ir::form::{ContractionForm, Segment, output_root};
use tallow_ir::index::{AtomDef, Index};
use tallow_ir::{DType, DeviceCaps, Dim, NodeId, Shape, Value, cost, matrix};

use super::grid::{columns_grid, segment_groups};
use super::operands::{batch_at, left_at};
use super::split_k::SplitK;
use super::store::stores;
use crate::assemble::{Parts, block, finish, floor_pow2, whole};
use crate::blocks::coopmat::matrix_extensions;
use crate::blocks::{dequant_f16, operand, vector_group};
use crate::emit::{Anchor, Emitter};
use crate::kernel::{CodegenError, Count, Kernel};
use crate::schedule::{self, Algorithm, Instruction, Schedule, Split};

/// The K tile, in elements.
const BK: u32 = 32;

/// Stride of a row of a K tile, in words of 16 bytes: [`BK`] elements plus eight of padding. Rows then start 80 bytes
/// apart, so that the eight rows that a subgroup loads at a time are in different banks.
const STRIDE: u32 = BK / 8 + 1;

/// Subgroups along each side of a tile: a workgroup has a 2 x 2 grid of subgroups.
const GRID: u32 = 2;

/// The output tile of a workgroup, and the fragments that its subgroups multiply.
#[derive(Clone, Copy)]
struct CoopmatTile {
    /// Rows, and columns of all anchors together. The tile is square.
    side: u32,
    /// Rows and columns of a fragment (one cooperative matrix).
    matrix: u32,
    workgroup: u32,
}

impl CoopmatTile {
    /// Rows of a K tile that the workgroup loads per pass: four invocations load one row.
    fn pass(self) -> u32 {
        self.workgroup / 4
    }

    /// Fragments of a subgroup along each side.
    fn matrices(self) -> u32 {
        self.side / GRID / self.matrix
    }
}

/// The tile that the cost model selects.
fn tile(form: &ContractionForm, caps: &DeviceCaps) -> CoopmatTile {
    let columns: u64 = form.segments.iter().map(|s| s.anchors.len() as u64 * s.n.max_value() as u64).sum();
    let count = |side: u64| {
        (form.m.max_value() as u64).div_ceil(side) * columns.div_ceil(side) * form.batch.max_numel()
    };
    let [large, small] = sides(caps);
    // Tiles of twice the side read half as much per product, but fewer tiles may leave cores idle. Software that
    // emulates cooperative matrices is slow to compile unrolled loops: 2 s for the small tile, 7 s for the large one.
    let enough = !cost::runs_workgroups_on_one_thread(caps)
        && count(large.into()) >= cost::workgroups_to_mostly_fill(caps).into();
    of_side(if enough { large } else { small }, caps)
}

fn of_side(side: u32, caps: &DeviceCaps) -> CoopmatTile {
    CoopmatTile { side, matrix: matrix_side(caps), workgroup: GRID * GRID * caps.scheduled_subgroup_size() }
}

/// The side of a fragment. The default is never used: without cooperative matrices, this kind is not selected.
fn matrix_side(caps: &DeviceCaps) -> u32 {
    matrix::side(caps).unwrap_or(16)
}

/// Tile sides, for subgroups of 4 x 4 or 2 x 2 fragments.
fn sides(caps: &DeviceCaps) -> [u32; 2] {
    [4, 2].map(|matrices| GRID * matrices * matrix_side(caps))
}

/// Columns of each anchor in a tile of this segment.
fn columns(tile: CoopmatTile, segment: &Segment) -> u32 {
    floor_pow2(tile.side / segment.anchors.len() as u32)
}

/// Whether this kind supports the contraction.
pub(crate) fn fits(e: &Emitter<'_>, form: &ContractionForm) -> bool {
    matrix::supported(e.body, form, e.caps) && has_room(tile(form, e.caps), form, e.caps)
}

/// The candidate schedules, the cost model's default first.
pub(crate) fn schedules(e: &Emitter<'_>, form: &ContractionForm) -> Vec<Schedule> {
    let first = tile(form, e.caps).side;
    let others = sides(e.caps)
        .into_iter()
        .filter(|side| *side != first && has_room(of_side(*side, e.caps), form, e.caps));
    [first].into_iter().chain(others).map(|side| schedule(e, form, of_side(side, e.caps))).collect()
}

/// The schedule with this tile, and the tiles per workgroup and K slices that the cost model selects.
fn schedule(e: &Emitter<'_>, form: &ContractionForm, tile: CoopmatTile) -> Schedule {
    let tiles: Vec<u32> = form.segments.iter().map(|s| columns(tile, s)).collect();
    let turns = turns(e.caps, form, tile, &tiles);
    let widths: Vec<u32> = tiles.iter().map(|bn| bn * turns).collect();
    let grid = columns_grid(form, &widths, e.caps.max_workgroup_count[1]);
    let slices = if turns == 1 { SplitK::slices(e, form, output_tiles(form, tile, &grid)) } else { 1 };
    Schedule {
        instruction: Some(Instruction::Coopmat),
        tile: schedule::Tile { m: tile.side, n: tile.side, k: BK },
        split: Split { slices, above: 0 },
        tiles_per_workgroup: turns,
        ..Schedule::new(Algorithm::Matmul, tile.workgroup)
    }
}

/// The number of output tiles for this column grid, the floats in each, and the K tile.
fn output_tiles(form: &ContractionForm, tile: CoopmatTile, columns: &Count) -> (u64, u64, u32) {
    let all = (form.m.max_value() as u64).div_ceil(tile.side.into()) * columns.most();
    (all, u64::from(tile.side) * u64::from(tile.side), BK)
}

/// Whether the tile fits the device's limits, and holds the columns that the epilogue needs together.
fn has_room(tile: CoopmatTile, form: &ContractionForm, caps: &DeviceCaps) -> bool {
    // Split-K uses one more word of shared memory, for the completion count.
    let shared = 16 * words(tile, form) + 4 <= caps.shared_memory_bytes;
    let whole = |s: &Segment| {
        let columns = columns(tile, s);
        columns >= (GRID * tile.matrix).max(tile.pass()) && columns >= s.tile
    };
    shared && tile.workgroup <= caps.max_workgroup_invocations && form.segments.iter().all(whole)
}

/// Shared memory in words of 16 bytes: K tiles of both operands, reused as the epilogue staging tiles.
fn words(tile: CoopmatTile, form: &ContractionForm) -> u32 {
    let strip = |s: &Segment| {
        let (rows, across) = if s.staged { (GRID, 1) } else { (GRID * GRID, GRID) };
        s.anchors.len() as u32 * rows * tile.matrix * strip_stride(columns(tile, s) / across)
    };
    form.segments.iter().map(strip).fold(2 * tile.side * STRIDE, u32::max)
}

/// Row stride of the epilogue staging tile, in words of 16 bytes. Eight floats of padding put the rows that a fragment
/// is stored to in different banks.
fn strip_stride(columns: u32) -> u32 {
    columns / 4 + 2
}

/// Generates the kernel for one of [`schedules`].
pub(crate) fn kernel(
    mut e: Emitter<'_>,
    form: &ContractionForm,
    schedule: Schedule,
) -> Result<Kernel, CodegenError> {
    let tile = of_side(schedule.tile.m, e.caps);
    let batch = e.atom(&form.batch.numel(), "batch");
    let buffers: Vec<usize> = (0..e.body.outputs().len()).map(|o| e.result(o as u32)).collect();
    let limits = e.caps.max_workgroup_count;
    let tiles: Vec<u32> = form.segments.iter().map(|s| columns(tile, s)).collect();
    let turns = schedule.tiles_per_workgroup;
    let widths: Vec<u32> = tiles.iter().map(|bn| bn * turns).collect();
    let columns = columns_grid(form, &widths, limits[1]);
    let shared = SplitK::of(form, schedule.split.slices, output_tiles(form, tile, &columns));
    // Rows along x: workgroups that run at the same time then read the same weights.
    let grid = [
        Count { value: form.m.clone(), per: tile.side, limit: limits[0] },
        columns,
        shared.map_or(Count { value: form.batch.numel(), per: 1, limit: limits[2] }, |s| {
            Count::constant(s.parts)
        }),
    ];
    whole("matmul", &grid)?;
    let mut segments = vec![];
    for (segment, &bn) in form.segments.iter().zip(&tiles) {
        let groups = segment_groups(&mut e, segment, bn * turns);
        segments.push(segment_holes(&mut e, form, segment, &batch, (tile, bn, groups), &buffers)?);
    }
    for extension in matrix_extensions() {
        e.extensions.insert(extension);
    }
    let (m, k, lanes) = (e.dim(&form.m), e.dim(&form.k), e.caps.scheduled_subgroup_size());
    // If loads have no bounds check along K, clamp the prefetch after the last K tile.
    let next =
        if slices_divide(form) { format!("min(k0 + {BK}u, {k} - {BK}u)") } else { format!("k0 + {BK}u") };
    let shared = shared.map(|shared| shared.holes(&mut e));
    let parts = Parts {
        schedule,
        template: "matmul_coopmat.comp",
        grid,
        functions: String::new(),
        holes: context! {
            segments => segments, m => m, k => k, bm => tile.side, bk => BK, stride => STRIDE,
            side => tile.matrix, pass => tile.pass(), pieces => tile.side / tile.pass(), matrices => tile.matrices(),
            next => next, turns => turns, shared => shared,
            lanes => lanes, words => words(tile, form), right0 => tile.side * STRIDE,
        },
    };
    finish(e, parts)
}

/// Number of K tiles up to which loading the first K tile and storing the results take longer than the rest of the
/// kernel.
const FEW_SLICES: i64 = 8;

/// Waves of workgroups that must remain if each computes several tiles: two workgroups per core.
const WAVES: u32 = 2;

/// Output tiles per workgroup. Looping over adjacent column tiles overlaps the load of the next tile's first K tile
/// with this tile's epilogue.
///
/// It pays off for few K tiles and many output tiles. H200, 32 batches of 1024 x 128 x 1024: one tile per workgroup
/// takes 46.8 us, two 44.3, four 43.8, eight 43.1.
///
/// Returns 1 if an extent is known only at run time, because too few workgroups might remain.
fn turns(caps: &DeviceCaps, form: &ContractionForm, tile: CoopmatTile, tiles: &[u32]) -> u32 {
    let ([segment], [bn]) = (form.segments.as_slice(), tiles) else { return 1 };
    let extents = [&form.m, &segment.n, &form.k, &form.batch.numel()].map(Dim::as_const);
    let [Some(m), Some(n), Some(k), Some(batch)] = extents else { return 1 };
    if !slices_divide(form) || k > FEW_SLICES * i64::from(BK) {
        return 1;
    }
    let across = (n as u64).div_ceil(u64::from(*bn));
    let all = (m as u64).div_ceil(tile.side.into()) * across * batch as u64;
    let least = u64::from(cost::workgroups_of_waves(caps, WAVES));
    let fits = |turns: &u32| across.is_multiple_of(u64::from(*turns)) && all / u64::from(*turns) >= least;
    [8, 4, 2].into_iter().find(fits).unwrap_or(1)
}

/// Whether the reduced extent is a multiple of the K tile, so that loads need no bounds check along K.
fn slices_divide(form: &ContractionForm) -> bool {
    form.k.as_const().is_some_and(|k| k > 0 && k % i64::from(BK) == 0)
}

fn segment_holes(
    e: &mut Emitter<'_>,
    form: &ContractionForm,
    segment: &Segment,
    batch: &Index,
    (tile, bn, groups): (CoopmatTile, u32, String),
    buffers: &[usize],
) -> Result<Hole, CodegenError> {
    e.open(); // the segment
    e.open(); // one K tile
    let own = |e: &mut Emitter<'_>, row: Index, k: Index| left_at(e, form, batch, &row, &k);
    let mut left = None;
    for along in [Along::K, Along::None] {
        if left.is_none() {
            let at = &mut |e: &mut Emitter<'_>, row, k| own(e, row, k);
            left = pieces(e, form, form.lhs, ("m", &form.m), (along, "left"), at)?;
        }
    }
    let left = left.ok_or_else(|| CodegenError::Node(e.body.node_text(form.lhs.node)))?;
    let mut anchors = vec![];
    for (i, id) in segment.anchors.iter().enumerate() {
        let name = format!("right{i}");
        let (pieces, along) = right(e, form, batch, e.body.node(*id).operands[1], &name)?;
        let i = i as u32;
        anchors.push(context! {
            comment => format!("%{} = {}", id.0, e.body.node_text(*id)), load => pieces.load, name => name,
            type => pieces.ty, lines => pieces.lines, value => pieces.value, rows => matches!(along, Along::Own | Along::OwnEach),
            at => i * bn * STRIDE, sum => i * bn / GRID / tile.matrix * tile.matrices(),
            row => if segment.staged { i * GRID * tile.matrix } else { i * tile.matrix }, found => format!("found{i}"),
        });
    }
    let k_lines = e.close().join("\n");
    let all = Shape::new(vec![form.batch.numel(), form.m.clone(), segment.n.clone()]);
    let rows = vector_group::Results { shape: &all, outputs: &segment.outputs };
    let group = if segment.staged { 0 } else { rows.size(e.body) };
    let whole = (tile.matrix * bn / GRID / NARROW).is_multiple_of(e.caps.scheduled_subgroup_size());
    let narrow = group == NARROW && whole && narrow(e, tile, segment);
    let store = match group {
        0 => staged(e, form, segment, batch, (tile, bn), buffers)?,
        _ => {
            e.open(); // one column group
            let row = e.atom(&form.m, "m");
            if narrow {
                as_they_are(e, &rows, [batch.clone(), row], buffers)?
            } else {
                let name = |(i, id): (usize, &NodeId)| (*id, format!("found{i}"));
                let found: Vec<_> = segment.anchors.iter().enumerate().map(name).collect();
                rows.store(e, ("g", group), [batch.clone(), row], &found, buffers)?
            }
        }
    };
    let prelude = e.close().join("\n");
    let n = e.dim(&segment.n);
    let matrices = bn / GRID / tile.matrix;
    // Width of the staging tile: shared by the workgroup, or one per subgroup.
    let across = if segment.staged { bn } else { bn / GRID };
    let strip = if narrow { across / NARROW + 1 } else { strip_stride(across) };
    Ok(context! {
        group => group, across => across, strip => strip, narrow => narrow,
        strip_words => segment.anchors.len() as u32 * tile.matrix * strip,
        columns => e.dim(&rows.groups(group.max(1))),
        groups => groups, bn => bn, k_lines => k_lines, left => left.load, anchors => anchors, store => store,
        prelude => prelude, n => n, passes => bn / tile.pass(), wide => matrices,
        sums => segment.anchors.len() as u32 * matrices * tile.matrices(),
    })
}

/// The store of the result at row `m` and column `n`, whose epilogue may read other columns of the tile.
fn staged(
    e: &mut Emitter<'_>,
    form: &ContractionForm,
    segment: &Segment,
    batch: &Index,
    (tile, bn): (CoopmatTile, u32),
    buffers: &[usize],
) -> Result<String, CodegenError> {
    e.open();
    let depth = e.depth();
    let (row, column) = (e.atom(&form.m, "m"), e.atom(&segment.n, "n"));
    for (i, id) in segment.anchors.iter().enumerate() {
        let row = format!("({}u + r) * {}u", i as u32 * GRID * tile.matrix, 4 * strip_stride(bn));
        let anchor = Anchor::Tile { array: "result".into(), row, base: "column0".into(), depth, call: true };
        e.anchors.insert(*id, anchor);
    }
    stores(e, form, segment, [batch, &row, &column], buffers)?;
    Ok(e.close().join("\n"))
}

/// Columns of an f16 vector store: 16 bytes.
const NARROW: u32 = 8;

/// Whether the segment stores exactly one product, in f16, and the device has f16 accumulators. Then the accumulators
/// are converted to f16 as cooperative matrices.
fn narrow(e: &Emitter<'_>, tile: CoopmatTile, segment: &Segment) -> bool {
    let of_f16 = |s: &MatrixShape| {
        s.c == MatrixElement::F16 && [s.m, s.n, s.k].into_iter().all(|side| side == tile.matrix)
    };
    if !e.caps.cooperative_matrix.iter().any(of_f16) {
        return false;
    }
    let ([anchor], [output]) = (segment.anchors.as_slice(), segment.outputs.as_slice()) else { return false };
    let stored = e.body.ty(e.body.outputs()[*output].value).dtype;
    output_root(e.body, *output).node == *anchor
        && e.body.node(*anchor).types[0].dtype == DType::F16
        && stored == DType::F16
        && e.caps.storage_16bit
}

/// The stores of the 16 bytes in `found0`, the results of column group `g` at this batch and row. Closes the scope that
/// is open.
fn as_they_are(
    e: &mut Emitter<'_>,
    rows: &vector_group::Results<'_>,
    [batch, row]: [Index; 2],
    buffers: &[usize],
) -> Result<String, CodegenError> {
    let column = e.atom(&rows.groups(NARROW), "g").scale(&Dim::constant(NARROW.into()));
    let linear = e.atoms.flatten(&[batch, row, column], rows.shape);
    for output in rows.outputs {
        let at = e.atoms.unflatten(&linear, &e.body.ty(output_root(e.body, *output)).shape.clone());
        let written = e.written(*output as u32, &at)?;
        let to = e.index(&written.to)?.text;
        let line = e.buffers[buffers[*output]].store_words(&to, "found0");
        e.line(written.guarded(&line));
    }
    Ok(e.close().join("\n"))
}

/// The axis of an operand along which eight elements are loaded.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Along {
    /// Vector load along K.
    K,
    /// Vector load along the N axis of the right operand.
    Own,
    /// Scalar loads along K.
    None,
    /// Scalar loads along the N axis, starting at a multiple of eight.
    OwnEach,
}

/// Code that moves eight elements of an operand to shared memory. They start at K position `k` and row or column `m` or
/// `n`.
struct Pieces {
    /// GLSL type of the register that holds them.
    ty: String,
    /// Lines that load the register; zero past the end of K.
    load: String,
    /// Lines before the store to shared memory.
    lines: String,
    value: String,
    /// Lines per scalar load; 0 for vector loads.
    each: usize,
}

/// Selects how the right operand is loaded; the axis also determines the layout of its K tile in shared memory.
fn right(
    e: &mut Emitter<'_>,
    form: &ContractionForm,
    batch: &Index,
    rhs: Value,
    array: &str,
) -> Result<(Pieces, Along), CodegenError> {
    let shape = e.body.ty(rhs).shape.clone();
    let columns = shape.dims()[shape.rank() - 1].clone();
    let mut at = |e: &mut Emitter<'_>, column: Index, k: Index| {
        let mut at = batch_at(e, &form.batch, &shape, batch);
        at.extend([k, column]);
        at
    };
    for along in [Along::K, Along::Own] {
        if let Some(pieces) = pieces(e, form, rhs, ("n", &columns), (along, array), &mut at)? {
            return Ok((pieces, along));
        }
    }
    // Scalar loads, along the axis that needs fewer lines per element.
    let mut found = vec![];
    for along in [Along::None, Along::OwnEach] {
        e.open();
        let pieces = pieces(e, form, rhs, ("n", &columns), (along, array), &mut at)?;
        let (_, uses) = e.close_alternative();
        found.extend(pieces.map(|pieces| (pieces, along, uses)));
    }
    let least = found.into_iter().min_by_key(|(pieces, ..)| pieces.each);
    let (pieces, along, uses) = least.ok_or_else(|| CodegenError::Node(e.body.node_text(rhs.node)))?;
    e.uses().extend(uses);
    Ok((pieces, along))
}

/// Code that loads eight elements along `along` into element `t` of the array. `None` if the operand cannot be loaded
/// this way.
fn pieces(
    e: &mut Emitter<'_>,
    form: &ContractionForm,
    value: Value,
    (name, extent): (&str, &Dim),
    (along, array): (Along, &str),
    at: &mut dyn FnMut(&mut Emitter<'_>, Index, Index) -> Vec<Index>,
) -> Result<Option<Pieces>, CodegenError> {
    // The conversion to f16 already does this rounding.
    let value = matrix::rounded(e.body, value).unwrap_or(value);
    let divides = |dim: &Dim, by: i64| dim.as_const().is_some_and(|d| d % by == 0);
    let k_end = e.dim(&form.k);
    let item = format!("{array}[t]");
    let mut pieces = Pieces {
        ty: "uvec4".into(),
        load: String::new(),
        lines: String::new(),
        value: item.clone(),
        each: 0,
    };
    e.open();
    let (own, probe) = match along {
        Along::K | Along::None => (e.atom(extent, name), e.atoms.fresh(&form.k, AtomDef::Free)),
        Along::Own | Along::OwnEach => (e.atom(&form.k, "k"), e.atoms.fresh(extent, AtomDef::Free)),
    };
    let probed = e.atoms.index(probe);
    let (found, last) = match along {
        Along::None | Along::OwnEach => (None, ""),
        Along::K if !divides(&form.k, operand::WIDE) => (None, ""),
        Along::Own if !divides(extent, operand::WIDE) => (None, ""),
        Along::K => {
            let at = at(e, own.clone(), probed);
            (operand::wide(e, value, &at, probe), "k")
        }
        Along::Own => {
            let at = at(e, probed, own.clone());
            (operand::wide(e, value, &at, probe), name)
        }
    };
    let mut lines = vec![];
    match (found, along) {
        (Some((buffer, offset)), _) => {
            let offset = e.index(&offset)?.text;
            let b = e.buffers[buffer].binding;
            lines.extend(e.close());
            let raw = match e.buffers[buffer].dtype {
                DType::Block(format) if slices_divide(form) => dequant_f16::of(format),
                _ => None,
            };
            if let Some(halves) = raw {
                e.buffers[buffer].pairs = true;
                e.buffers[buffer].wide |= halves.wide;
                pieces.ty = format!("Raw{b}");
                pieces.lines = lines.join("\n");
                pieces.value = format!("halves{b}({item}, {offset} + {last})");
                lines.push(format!("{item} = raw{b}({offset} + {last});"));
            } else if e.buffers[buffer].dtype == DType::F16 {
                // f16 elements are copied to shared memory without conversion.
                lines.push(format!("{item} = wide{b}(({offset} + {last}) >> 3);"));
            } else {
                lines.push("float w[8];".into());
                lines.push(e.buffers[buffer].load_eight(&format!("{offset} + {last}"), "w"));
                lines.push(format!("{item} = packed(w);"));
            }
            if !slices_divide(form) {
                lines = block(&format!("if (k < {k_end})"), lines);
                lines.insert(0, format!("{item} = uvec4(0u);"));
            }
        }
        (None, Along::K | Along::Own) => {
            e.close();
            return Ok(None);
        }
        (None, Along::OwnEach) => {
            let eight = Dim::constant(operand::WIDE);
            let Some(groups) = extent.div_exact(&eight).filter(|n| !n.is(0)) else {
                e.close();
                return Ok(None);
            };
            e.line(format!("const uint g = {name} / 8u;"));
            let g = e.atom(&groups, "g");
            e.open(); // one element
            let j = e.atom(&eight, "j");
            let column = e.atoms.add(&g.scale(&eight), &j);
            let at = at(e, column, own);
            let x = e.value(value, &at)?;
            let mut each = e.close();
            lines.extend(e.close());
            each.push(format!("w[j] = float({});", x.text));
            pieces.each = each.len();
            lines.extend(block("[[unroll]] for (uint j = 0u; j < 8u; ++j)", each));
            lines.push(format!("{item} = packed(w);"));
            if !slices_divide(form) {
                lines = block(&format!("if (k < {k_end})"), lines);
                lines.insert(0, format!("{item} = uvec4(0u);"));
            }
            lines.insert(0, "float w[8];".into());
        }
        (None, Along::None) => {
            e.open();
            let k = e.atom(&form.k, "at");
            let at = at(e, own, k);
            let x = e.value(value, &at)?;
            let mut each = e.close();
            lines.extend(e.close());
            each.push(format!("w[j] = float({});", x.text));
            if !slices_divide(form) {
                each = block(&format!("if (at < {k_end})"), each);
                each.insert(0, "w[j] = 0.0;".into());
            }
            each.insert(0, "const uint at = k + j;".into());
            pieces.each = each.len();
            lines.push("float w[8];".into());
            lines.extend(block("[[unroll]] for (uint j = 0u; j < 8u; ++j)", each));
            lines.push(format!("{item} = packed(w);"));
        }
    }
    pieces.load = lines.join("\n");
    Ok(Some(pieces))
}
