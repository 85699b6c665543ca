//! Matmul with subgroup-scope cooperative matrices of f16 or bf16 operands: each subgroup accumulates a grid of fragments.

use minijinja::{Value as Hole, context};
use tallow_ir::form::{ContractionForm, Segment};
use tallow_ir::matrix::{self, MatrixOperand};
use tallow_ir::{DeviceCaps, Dim, NodeId, Shape, cost};

use super::grid::columns_grid;
use super::k_tile::{HALVES, Layout, halves_stride};
use super::narrow;
use super::operands::is_multiple;
use super::prefetch;
use super::split_k::SplitK;
use super::staging_tile::{self, StagingTile};
use super::tile_code::{Accumulators, Epilogue, Matmul, TileCode, columns};
use crate::blocks::coopmat::{element_type, matrix_extensions};
use crate::blocks::vector_group::Results;
use crate::emit::Emitter;
use crate::error::CodegenError;
use crate::instruction::Instruction;
use crate::library as lib;
use crate::lines::{block, unrolled};
use crate::schedule::{Algorithm, Schedule, Split, Tile};
use crate::template::render;

/// The K tile, in elements.
const BK: u32 = 32;

/// The K tile of workgroups that wait for memory: twice as many bytes are in flight, for half as many barriers.
const LONG_BK: u32 = 2 * BK;

/// Subgroups along each side of a square tile: a workgroup has a 2 x 2 grid of subgroups.
const GRID: u32 = 2;

/// Subgroups of a workgroup that has a core to itself and multiplies several rows of fragments: while some wait for
/// shared memory or a barrier, others multiply.
const ALONE_GRID: [u32; 2] = [GRID, 2 * GRID];

/// Subgroups side by side in a flat tile, each with all of its rows.
const FLAT_GRID: u32 = GRID * GRID;

/// Rows, in fragments, of the tallest flat tile.
const FLAT_MATRICES: u32 = 4;

/// The output tile of a workgroup, and the fragments that its subgroups multiply.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fragments {
    /// Rows, and columns of all anchors together.
    rows: u32,
    columns: u32,
    /// Subgroups along the rows and along the columns.
    grid: [u32; 2],
    /// Rows and columns of a fragment (one cooperative matrix).
    matrix: u32,
    /// Elements of the K tile.
    k: u32,
    /// The element type of A and B.
    operand: MatrixOperand,
    workgroup: u32,
}

impl Fragments {
    /// Rows of fragments of a subgroup.
    fn matrices(self) -> u32 {
        self.rows / self.grid[0] / self.matrix
    }

    /// The same tile with a longer K tile, for workgroups that wait for memory, and with more subgroups where these divide it.
    fn waiting(self, caps: &DeviceCaps) -> Fragments {
        let [down, across] = ALONE_GRID.map(|subgroups| subgroups * self.matrix);
        let divides = self.rows.is_multiple_of(down) && self.columns.is_multiple_of(across);
        let grid = if divides { ALONE_GRID } else { self.grid };
        let workgroup = grid[0] * grid[1] * caps.scheduled_subgroup_size();
        Fragments { k: LONG_BK, grid, workgroup, ..self }
    }

    fn output(self) -> Tile {
        Tile { m: self.rows, n: self.columns, k: self.k }
    }
}

/// The fragments that the device multiplies: their element type, and their sides.
#[derive(Clone, Copy)]
struct Matrices {
    operand: MatrixOperand,
    side: u32,
}

impl Matrices {
    /// For this contraction; `None` if the device has none for it.
    fn of(e: &Emitter<'_>, form: &ContractionForm) -> Option<Matrices> {
        let operand = matrix::supported(e.body, form, e.caps)?;
        Some(Matrices { operand, side: matrix::coopmat_size(e.caps, operand)? })
    }

    /// The tile of these extents. Subgroups of a flat tile are side by side: the left operand is small, and each element
    /// of the right one is loaded from shared memory once.
    fn tile(self, rows: u32, columns: u32, caps: &DeviceCaps) -> Fragments {
        let grid = if rows >= columns { [GRID, GRID] } else { [1, FLAT_GRID] };
        let workgroup = grid[0] * grid[1] * caps.scheduled_subgroup_size();
        Fragments { rows, columns, grid, k: BK, matrix: self.side, operand: self.operand, workgroup }
    }
}

/// The tiles that fit, the cost model's choice first.
fn tiles(matrices: Matrices, e: &Emitter<'_>, form: &ContractionForm) -> Vec<Fragments> {
    let all = flat_tile(matrices, e, form).into_iter().chain(tall_tiles(matrices, e, form));
    all.filter(|tile| has_room(*tile, form, e.caps)).collect()
}

/// Tiles of many rows, the cost model's choice first: subgroups of 4 x 4, 4 x 3 or 2 x 2 fragments.
fn tall_tiles(matrices: Matrices, e: &Emitter<'_>, form: &ContractionForm) -> Vec<Fragments> {
    let caps = e.caps;
    let columns: u64 = form.segments.iter().map(|s| s.anchors.len() as u64 * s.n.max_value() as u64).sum();
    let [large, small] =
        [4, 2].map(|count| GRID * count * matrices.side).map(|side| matrices.tile(side, side, caps));
    let tiles = |tile: Fragments| {
        let [rows, columns] = [form.m.max_value() as u64, columns].map(|n| n.div_ceil(tile.rows.into()));
        rows * columns * form.batch.max_numel()
    };
    let workgroups = tiles(large) * u64::from(SplitK::slices(e, form, large.output(), tiles(large)));
    // Tiles of twice the side read half as much per product, but fewer workgroups may leave cores idle. Software that
    // emulates cooperative matrices is slow to compile unrolled loops: 2 s for the small tile, 7 s for the large one.
    // (H200, 128 x 4096 x 4096, us: 22.6 with the large tile in four slices of K, 28.9 with the small one in two.)
    let enough = !cost::runs_workgroups_on_one_thread(caps)
        && form.m.max_value() > small.rows.into()
        && columns > small.columns.into()
        && workgroups >= cost::workgroups_to_mostly_fill(caps).into();
    if !enough {
        return vec![small, large];
    }
    let narrower = matrices.tile(large.rows, large.columns / 4 * 3, caps);
    if !has_room(narrower, form, caps) {
        return vec![large, small];
    }
    // Workgroups that have a core each wait for memory, with more subgroups than three columns of fragments divide into.
    let alone = workgroups <= cost::workgroups_to_fill(caps).into();
    match waves(e, form, narrower).zip(waves(e, form, large)).filter(|_| !alone) {
        Some((less, all)) if NARROWER_LOADS * less < all => vec![narrower, large, small],
        Some(_) => vec![large, narrower, small],
        None => vec![large, small],
    }
}

/// Time per column of a tile with three columns of fragments a subgroup, relative to four. Each row of fragments that is loaded
/// from shared memory serves three products instead of four: 7 loads for 12 products, 8 for 16, which is 1.17. (H100 and H200,
/// bf16, us, 128 x 128 and 128 x 96: 8192 x 768 x 3072 187 and 165, 8192 x 2304 x 768 126 and 131.)
const NARROWER_LOADS: f64 = 1.17;

/// The time of all workgroups in units of a column of a tile: each core has two at a time, and the last wave takes as long as
/// the others however few it has. `None` if extents are known only at run time, or several products share a tile.
fn waves(e: &Emitter<'_>, form: &ContractionForm, tile: Fragments) -> Option<f64> {
    let [segment] = form.segments.as_slice() else { return None };
    let [m, n, batch] = [&form.m, &segment.n, &form.batch.numel()].map(|n| n.as_const()?.try_into().ok());
    let (m, n, batch): (u64, u64, u64) = (m?, n?, batch?);
    let tiles = m.div_ceil(tile.rows.into()) * n.div_ceil(tile.columns.into()) * batch;
    let slices = u64::from(SplitK::slices(e, form, tile.output(), tiles));
    // Exactly: a wave of one workgroup more is a wave.
    let at_once = u64::from(WAVES * e.caps.hardware.cores.max(1));
    let waves = (tiles * slices).div_ceil(at_once);
    (segment.anchors.len() == 1).then(|| (waves * u64::from(tile.columns)) as f64 / slices as f64)
}

/// The tile for few rows, which wait for the right operand: no more rows than needed, so that partials of split-K are
/// small, and many workgroups have loads in flight. `None` if there are more rows.
fn flat_tile(matrices: Matrices, e: &Emitter<'_>, form: &ContractionForm) -> Option<Fragments> {
    let (rows, caps) = (u32::try_from(form.m.max_value()).ok()?, e.caps);
    let side = matrices.side;
    if rows > FLAT_MATRICES * side {
        return None;
    }
    let count = rows.div_ceil(side).max(1).next_power_of_two();
    let least = FLAT_GRID * side;
    let fills = |columns: &u32| {
        let tile = matrices.tile(count * side, *columns, caps);
        let schedule = schedule(e, form, tile);
        let widths: Vec<u32> = form.segments.iter().map(|s| columns_of(tile, s)).collect();
        let across = columns_grid(form, &widths, caps.max_workgroup_count[1]).most();
        across * form.batch.max_numel() * u64::from(schedule.split.slices)
            >= cost::workgroups_to_mostly_fill(caps).into()
    };
    let wide = form.segments.iter().any(|s| s.anchors.len() as i64 * s.n.max_value() > i64::from(least));
    let columns = Some(2 * least).filter(|columns| wide && fills(columns)).unwrap_or(least);
    let tile = matrices.tile(count * side, columns, caps);
    // The tallest wait for memory only if K is long enough to be split. (H200, convolution of 7 channels to 43: 8.8 us,
    // with square tiles 6.0.)
    let waits = count < FLAT_MATRICES || schedule(e, form, tile).split.slices > 1;
    (tile.rows < tile.columns && waits).then_some(tile)
}

/// Columns of each anchor of a segment.
fn columns_of(tile: Fragments, segment: &Segment) -> u32 {
    columns(tile.columns, segment)
}

/// Whether this kind supports the contraction.
pub(crate) fn supports(e: &Emitter<'_>, form: &ContractionForm) -> bool {
    let Some(matrices) = Matrices::of(e, form) else { return false };
    let default = [flat_tile(matrices, e, form), tall_tiles(matrices, e, form).first().copied()];
    default.into_iter().flatten().any(|tile| has_room(tile, form, e.caps))
}

/// The candidate schedules, the cost model's default first.
pub(crate) fn schedules(e: &Emitter<'_>, form: &ContractionForm) -> Vec<Schedule> {
    let Some(matrices) = Matrices::of(e, form) else { return vec![] };
    tiles(matrices, e, form).into_iter().map(|tile| schedule(e, form, tile)).collect()
}

/// The default schedule with a longer prefetch, if K is long enough to gain from it.
pub(crate) fn longer_prefetch(form: &ContractionForm, default: &Schedule) -> Option<Schedule> {
    let longer = Schedule { prefetch: default.prefetch + 1, ..*default };
    let gains = longer.tiles_per_workgroup == 1
        && is_long(form, longer.split.slices, longer.prefetch * longer.tile.k);
    gains.then_some(longer)
}

/// The schedule with this tile, and the K tile that the cost model selects.
///
/// Where no core has two workgroups, nothing hides what a workgroup waits for: a K tile takes as long as memory needs to
/// answer. Longer K tiles and more subgroups have more in flight. (H100, f16 `[k, n]` 4096 x 4096, each kernel after the
/// one before, us. 64 rows: 32.2 with 64x128x32 and 128 invocations, 26.4 with 64x128x64, 23.7 with 256 invocations too.
/// 128 rows: 41.3, 38.7, 31.2. With two workgroups for each core 128 rows of 64 x 64 take 35.7, 37.2, 38.6. The same
/// for one and a half waves made `network/encoder/24` 6 % slower.)
///
/// Tiles of one row of fragments always wait. (16 rows: 19.8 with 16x128x32 and two K tiles in flight, 18.6 with one of
/// 64. Q4_K, 8B shape, all layers, us: 2463 and 2102 for the output and down projections, 2998 and 2599 for gate and up.)
fn schedule(e: &Emitter<'_>, form: &ContractionForm, tile: Fragments) -> Schedule {
    let (schedule, workgroups) = of_k_tile(e, form, tile);
    let alone = workgroups <= cost::workgroups_to_fill(e.caps).into() || tile.rows == tile.matrix;
    let long = tile.waiting(e.caps);
    // Part of a K tile has guarded loads, which unpack blocks at once.
    let whole = is_multiple(&form.k, LONG_BK) || !is_multiple(&form.k, BK);
    let able = alone
        && whole
        && !cost::runs_workgroups_on_one_thread(e.caps)
        && schedule.tiles_per_workgroup == 1
        && has_room(long, form, e.caps);
    if !able {
        return schedule;
    }
    let (longer, _) = of_k_tile(e, form, long);
    if is_long(form, longer.split.slices, LONG_BK) { longer } else { schedule }
}

/// The schedule with this tile, and the tiles per workgroup and K slices that the cost model selects; with the number of
/// its workgroups.
fn of_k_tile(e: &Emitter<'_>, form: &ContractionForm, tile: Fragments) -> (Schedule, u64) {
    let tiles: Vec<u32> = form.segments.iter().map(|s| columns_of(tile, s)).collect();
    let tiles_per_workgroup = tiles_per_workgroup(e.caps, form, tile, &tiles);
    let widths: Vec<u32> = tiles.iter().map(|bn| bn * tiles_per_workgroup).collect();
    let grid = columns_grid(form, &widths, e.caps.max_workgroup_count[1]);
    let rows = (form.m.max_value() as u64).div_ceil(tile.rows.into());
    let count = rows * grid.most() * form.batch.max_numel();
    let slices = if tiles_per_workgroup == 1 { SplitK::slices(e, form, tile.output(), count) } else { 1 };
    let schedule = Schedule {
        instruction: Some(Instruction::Coopmat),
        tile: tile.output(),
        split: Split { slices, above: 0 },
        tiles_per_workgroup,
        prefetch: if tiles_per_workgroup == 1 { prefetch_depth(form, tile, slices) } else { 1 },
        ..Schedule::new(Algorithm::Matmul, tile.workgroup)
    };
    (schedule, count * u64::from(slices))
}

/// K tiles in flight: more for the flattest tiles, if a slice of K is long enough.
fn prefetch_depth(form: &ContractionForm, tile: Fragments, slices: u32) -> u32 {
    let flat = tile.rows == tile.matrix && tile.k == BK && is_long(form, slices, prefetch::FLAT_K_TILES * BK);
    if flat { prefetch::FLAT_K_TILES } else { prefetch::K_TILES }
}

/// Whether a slice of K is four times as long as the K tiles in flight, which have so many elements.
fn is_long(form: &ContractionForm, slices: u32, in_flight: u32) -> bool {
    form.k.max_value() / i64::from(slices) >= i64::from(4 * in_flight)
}

/// Whether the tile fits the device's limits, and holds the columns that the epilogue needs together.
fn has_room(tile: Fragments, form: &ContractionForm, caps: &DeviceCaps) -> bool {
    // Split-K uses one more word of shared memory, for the completion count.
    let shared = 16 * words(tile, form) + 4 <= caps.shared_memory_bytes;
    let whole = |s: &Segment| {
        let columns = columns_of(tile, s);
        // Whole fragments, whole passes of the loads of a K tile, and whole groups of columns.
        let parts = [tile.grid[1] * tile.matrix, tile.workgroup / (tile.k / HALVES), s.tile.max(1)];
        columns > 0 && parts.iter().all(|part| columns.is_multiple_of(*part))
    };
    shared && tile.workgroup <= caps.max_workgroup_invocations && form.segments.iter().all(whole)
}

/// Shared memory in words of 16 bytes: K tiles of both operands, reused as the epilogue staging tiles.
fn words(tile: Fragments, form: &ContractionForm) -> u32 {
    let staging_words = |s: &Segment| {
        let [down, across] = tile.grid;
        let (rows, across) = if s.staged { (down, 1) } else { (down * across, across) };
        s.anchors.len() as u32 * rows * tile.matrix * staging_stride(columns_of(tile, s) / across)
    };
    form.segments.iter().map(staging_words).fold((tile.rows + tile.columns) * halves_stride(tile.k), u32::max)
}

/// Row stride of the epilogue staging tile, in words of 16 bytes. Eight floats of padding put the rows that a fragment
/// is stored to in different banks.
fn staging_stride(columns: u32) -> u32 {
    columns / 4 + 2
}

/// Number of K tiles up to which loading the first K tile and storing the results take longer than the rest of the
/// kernel.
const FEW_K_TILES: i64 = 8;

/// Waves of workgroups that must remain if each computes several tiles: two workgroups per core.
const WAVES: u32 = 2;

/// Output tiles per workgroup. Looping over adjacent column tiles overlaps the load of the next tile's first K tile
/// with this tile's epilogue.
///
/// It pays off for few K tiles and many output tiles. H200, 32 batches of 1024 x 128 x 1024: one tile per workgroup
/// takes 46.8 us, two 44.3, four 43.8, eight 43.1.
///
/// Returns 1 if an extent is known only at run time, because too few workgroups might remain.
fn tiles_per_workgroup(caps: &DeviceCaps, form: &ContractionForm, tile: Fragments, tiles: &[u32]) -> u32 {
    let ([segment], [bn]) = (form.segments.as_slice(), tiles) else { return 1 };
    let extents = [&form.m, &segment.n, &form.k, &form.batch.numel()].map(Dim::as_const);
    let [Some(m), Some(n), Some(k), Some(batch)] = extents else { return 1 };
    if k == 0 || k % i64::from(BK) != 0 || k > FEW_K_TILES * i64::from(BK) {
        return 1;
    }
    let across = (n as u64).div_ceil(u64::from(*bn));
    let all = (m as u64).div_ceil(tile.rows.into()) * across * batch as u64;
    let least = u64::from(cost::workgroups_of_waves(caps, WAVES));
    let fits = |tiles_per_workgroup: &u32| {
        across.is_multiple_of(u64::from(*tiles_per_workgroup))
            && all / u64::from(*tiles_per_workgroup) >= least
    };
    [8, 4, 2].into_iter().find(fits).unwrap_or(1)
}

impl Fragments {
    /// The code for one of [`schedules`].
    pub fn of(
        e: &mut Emitter<'_>,
        form: &ContractionForm,
        schedule: Schedule,
    ) -> Result<Fragments, CodegenError> {
        let refused = || CodegenError::NoSuchSchedule { kind: "matmul", schedule: schedule.to_string() };
        let matrices = Matrices::of(e, form).ok_or_else(refused)?;
        e.extensions.extend(matrix_extensions(matrices.operand));
        if matrices.operand == MatrixOperand::Bf16 {
            // The template itself calls it.
            e.uses().add(lib::BITS_BF16);
        }
        let tile = matrices.tile(schedule.tile.m, schedule.tile.n, e.caps);
        Ok(if schedule.tile.k == LONG_BK { tile.waiting(e.caps) } else { tile })
    }

    /// The GLSL type of a fragment.
    fn ty(&self, element: &str, usage: &str) -> String {
        let side = self.matrix;
        format!("coopmat<{element}, gl_ScopeSubgroup, {side}, {side}, gl_MatrixUse{usage}>")
    }

    /// Fragments of one anchor along the columns of a subgroup.
    fn across(&self, mm: &Matmul<'_>, number: usize) -> u32 {
        mm.columns[number] / self.grid[1] / self.matrix
    }

    /// Accumulators of a subgroup.
    fn sums(&self, mm: &Matmul<'_>, number: usize) -> u32 {
        mm.form.segments[number].anchors.len() as u32 * self.across(mm, number) * self.matrices()
    }

    /// Lines that write row `i` of the fragments of all anchors to a staging tile in shared memory. `at` is the place of
    /// fragment `j` of an anchor, in words.
    fn write_row(
        &self,
        mm: &Matmul<'_>,
        number: usize,
        (stride, at): (u32, &dyn Fn(u32) -> String),
    ) -> Vec<String> {
        let (wide, matrices) = (self.across(mm, number), self.matrices());
        let anchors = 0..mm.form.segments[number].anchors.len() as u32;
        let store = |anchor: u32| {
            let sum = format!("sums[{}u + j * {matrices}u + p]", anchor * wide * matrices);
            access("Store", &sum, "slices", &at(anchor), stride)
        };
        let columns = block(&unrolled("j", wide), anchors.map(store).collect());
        // Compared, not used as an index, which would put the fragments into memory.
        let lines = [vec!["if (p != i) continue;".to_string()], columns].concat();
        block(&unrolled("p", matrices), lines)
    }

    /// The epilogue of a workgroup-wide staging tile: rows of fragments of both halves of the tile.
    fn staged(
        &self,
        e: &mut Emitter<'_>,
        mm: &Matmul<'_>,
        number: usize,
    ) -> Result<Vec<String>, CodegenError> {
        let (side, matrices, rows) = (self.matrix, self.matrices(), self.grid[0] * self.matrix);
        let (stride, wide) = (staging_stride(mm.columns[number]), self.across(mm, number));
        let grid = self.grid[1];
        let at = |anchor: u32| {
            let row = format!("({}u + gl_SubgroupID / {grid}u * {side}u) * {stride}u", anchor * rows);
            format!("{row} + (gl_SubgroupID % {grid}u * {wide}u + j) * {}u", side / 4)
        };
        let write = self.write_row(mm, number, (stride, &at));
        let half = self.rows / self.grid[0];
        let staging = StagingTile {
            passes: format!("for (uint i = 0u; i < {matrices}u; ++i)"),
            write,
            rows,
            row: format!("r / {side}u * {half}u + i * {side}u + r % {side}u"),
            at: Box::new(move |anchor, _| format!("({}u + r) * {}u", anchor * rows, 4 * stride)),
        };
        staging_tile::epilogue(e, mm, number, staging)
    }

    /// The epilogue of a segment whose results depend on no other column: each subgroup stages rows of its own
    /// fragments, and its invocations store `group` adjacent results at a time.
    fn by_subgroups(
        &self,
        e: &mut Emitter<'_>,
        mm: &Matmul<'_>,
        number: usize,
        rows: &Results<'_>,
    ) -> Result<Vec<String>, CodegenError> {
        let (segment, side, bn) = (&mm.form.segments[number], self.matrix, mm.columns[number]);
        let (across, wide) = (bn / self.grid[1], self.across(mm, number));
        let (group, lanes) = (rows.size(e.body), e.caps.scheduled_subgroup_size());
        let whole = (side * across / HALVES).is_multiple_of(lanes);
        let narrow = group == HALVES && whole && narrow::converts(e, self.matrix, segment);
        let store = e.scoped_lines(|e| {
            let at = [mm.batch.clone(), e.atom(&mm.form.m, "m")];
            if narrow {
                return narrow::store(e, rows, at, &mm.buffers);
            }
            let name = |(i, id): (usize, &NodeId)| (*id, format!("found{i}"));
            let found: Vec<_> = segment.anchors.iter().enumerate().map(name).collect();
            rows.emit(e, "g", at, &found, &mm.buffers)
        })?;
        let stride = if narrow { across / HALVES + 1 } else { staging_stride(across) };
        let at = |anchor: u32| format!("strip0 + {}u + j * {}u", anchor * side * stride, side / 4);
        let write = if narrow { vec![] } else { self.write_row(mm, number, (stride, &at)) };
        let anchors = 0..segment.anchors.len() as u32;
        let found: Vec<_> =
            anchors.map(|i| context! { name => format!("found{i}"), row => i * side }).collect();
        let holes = context! {
            narrow, write => write.join("\n"), side, wide, across, group, lanes, stride, found, grid => self.grid[1],
            store => store.join("\n"),
            matrices => self.matrices(), half_rows => self.rows / self.grid[0], rows => segment.anchors.len() as u32 * side,
            m => &mm.m, columns => e.dim(&rows.groups(group)), half => self.ty("float16_t", "Accumulator"),
        };
        Ok(render("matmul_coopmat_epilogue.glsl", holes)?.lines().map(String::from).collect())
    }
}
/// The load or store of an accumulator in memory or shared memory.
fn access(call: &str, fragment: &str, array: &str, at: &str, stride: u32) -> String {
    format!("coopMat{call}({fragment}, {array}, {at}, {stride}u, gl_CooperativeMatrixLayoutRowMajor);")
}

impl TileCode for Fragments {
    fn layout(&self) -> Layout {
        Layout::Halves(self.operand)
    }

    fn right_at(&self) -> u32 {
        self.rows * halves_stride(self.k)
    }

    fn words(&self, form: &ContractionForm) -> u32 {
        words(*self, form)
    }

    fn start(&self, across: bool) -> Vec<String> {
        let (half, grid) = (self.rows / self.grid[0] * halves_stride(self.k), self.grid[1]);
        let half = if across { self.rows / self.grid[0] / HALVES } else { half };
        let left0 = format!("const uint left0 = gl_SubgroupID / {grid}u * {half}u;");
        let per_row = self.k / HALVES;
        if self.k == LONG_BK {
            // The words of a row that eight invocations store are in different banks.
            let quad = format!("const uint quad = lane / {per_row}u, part = lane % {per_row}u;");
            return vec![format!("// {per_row} invocations load a row."), quad, left0];
        }
        vec![
            "// Four invocations load a row. Rows that are stored at a time are four apart, in different banks.".into(),
            "const uint line = lane / 4u, part = lane % 4u;".into(),
            "const uint quad = (line & ~7u) | (line & 1u) << 2 | (line >> 1 & 3u);".into(),
            left0,
        ]
    }

    fn accumulators(&self, mm: &Matmul<'_>, number: usize) -> Accumulators {
        let ty = self.ty("float", "Accumulator");
        Accumulators { count: self.sums(mm, number), zero: format!("{ty}(0.0)"), ty }
    }

    fn products(&self, mm: &Matmul<'_>, number: usize, across: &[bool]) -> Result<String, CodegenError> {
        let (bn, wide) = (mm.columns[number], self.across(mm, number));
        let (left_across, by_columns) = across.split_first().unwrap_or((&false, &[]));
        let anchor = |(i, by_columns): (usize, &bool)| {
            let at = self.right_at() + i as u32 * bn * halves_stride(self.k);
            context! { by_columns, at, sum => i as u32 * wide * self.matrices() }
        };
        let holes = context! {
            anchors => by_columns.iter().enumerate().map(anchor).collect::<Vec<_>>(),
            left_across, bm => self.rows, bn, wide, bk => self.k, side => self.matrix, matrices => self.matrices(), stride => halves_stride(self.k),
            grid => self.grid[1], a => self.ty(element_type(self.operand), "A"), b => self.ty(element_type(self.operand), "B"),
        };
        render("matmul_coopmat.glsl", holes)
    }

    fn partials(&self, mm: &Matmul<'_>, number: usize) -> Hole {
        let (side, floats, ty) = (self.matrix, self.matrix * self.matrix, self.ty("float", "Accumulator"));
        let access = |call, sum, at| access(call, sum, "partial", &format!("{at} + i * {floats}u"), side);
        context! {
            first => format!("gl_SubgroupID * {}u", self.sums(mm, number) * floats),
            store => access("Store", "sums[i]", "to"), load => access("Load", "sums[i]", "from"),
            add => format!("{ty} other; {} sums[i] += other;", access("Load", "other", "from")),
        }
    }

    fn epilogue(
        &self,
        e: &mut Emitter<'_>,
        mm: &Matmul<'_>,
        number: usize,
    ) -> Result<Epilogue, CodegenError> {
        let segment = &mm.form.segments[number];
        if segment.staged {
            return Ok(Epilogue { lines: self.staged(e, mm, number)?, staged: true });
        }
        let all = Shape::new(vec![mm.form.batch.numel(), mm.form.m.clone(), segment.n.clone()]);
        let results = Results { shape: &all, outputs: &segment.outputs };
        let lines = self.by_subgroups(e, mm, number, &results)?;
        Ok(Epilogue { lines, staged: !results.size(e.body).is_multiple_of(4) })
    }
}
