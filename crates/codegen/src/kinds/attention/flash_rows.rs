//! Flash attention of few queries with cooperative matrices: a tile of 16 to 64 rows per workgroup, and a slice of the keys.
//!
//! The rows of a tile are the queries of all heads that share a key head, so keys are read once for all of them. Several
//! subgroups have the same 16 rows and divide the keys of a tile. Where tiles leave cores idle, workgroups divide the keys,
//! and the last workgroup to finish combines the partials. Scores stay in registers, so the fragment layout must be known.

use minijinja::{Value as Hole, context};
use tallow_ir::cost;
use tallow_ir::form::AttentionForm;
use tallow_ir::{DeviceCaps, Dim};

use super::fragments::{LANES, SIDE, Staging, operand_type, register_count, score_holes};
use super::operands::{Attention, Eight, number};
use crate::assemble::{check_grid, finish};
use crate::blocks::coopmat::{element_type, matrix_extensions};
use crate::blocks::{last_workgroup, vector_group};
use crate::emit::Emitter;
use crate::error::CodegenError;
use crate::glsl::Glsl;
use crate::kernel::{Count, Kernel};
use crate::schedule::{Algorithm, Epilogue, Schedule, Split, Tile};

/// Rows of a tile, and the most subgroups that have the same 16 rows.
const ROWS: [u32; 3] = [16, 32, 64];
const MOST_SHARING: u32 = 8;

/// Most invocations of a workgroup.
const MOST_INVOCATIONS: u32 = 16 * LANES;

/// Most workgroups of a core: one computes while the other waits.
const MOST_WAVES: u32 = 2;

/// Most slices of the keys: the last workgroup reads the partials of all slices.
const MOST_SLICES: u32 = 32;

/// Columns of queries, and of results in f32, that a subgroup stages in shared memory at once, at most: both are eight
/// words of 16 bytes. One word of padding, so that rows begin in different banks.
const STAGED_QUERIES: u32 = 64;
const STAGED_RESULTS: u32 = 32;
const STRIDE: u32 = STAGED_QUERIES / 8 + 1;

/// The extents that sizes depend on.
struct Extents {
    /// Query heads that share a key head.
    group: u32,
    /// Queries of these heads, key heads, and keys, at most.
    rows: u32,
    heads: u32,
    keys: u32,
    /// Elements of a key and of a value.
    d: u32,
    width: u32,
}

impl Extents {
    fn of(a: &Attention<'_>) -> Option<Extents> {
        let most = |dim: &Dim| u32::try_from(dim.max_value()).ok();
        let group = number(a.h) / number(a.g).max(1);
        let rows = most(a.s)?.checked_mul(group)?;
        let (d, width) = (number(a.d), number(a.width));
        let several = a.s.max_value() > 1 && rows < u32::MAX / 2;
        several.then_some(Extents { group, rows, heads: most(a.g)?, keys: most(a.t)?, d, width })
    }
}

/// The tile of a workgroup.
#[derive(Clone, Copy)]
struct RowTile {
    /// Rows.
    m: u32,
    /// Subgroups that have the same 16 rows, each with 16 keys of a tile.
    sharing: u32,
    /// Slices of the keys.
    slices: u32,
}

impl RowTile {
    /// The tile of a schedule.
    fn of(schedule: &Schedule) -> RowTile {
        let Tile { m, n, .. } = schedule.tile;
        RowTile { m, sharing: n / SIDE, slices: schedule.split.slices }
    }

    fn schedule(self) -> Schedule {
        Schedule {
            tile: Tile { m: self.m, n: self.keys(), k: 0 },
            split: Split { slices: self.slices, above: 0 },
            epilogue: Epilogue::Registers,
            ..Schedule::new(Algorithm::FlashAttention, self.subgroups() * LANES)
        }
    }

    fn subgroups(self) -> u32 {
        self.m / SIDE * self.sharing
    }

    /// Keys of a tile.
    fn keys(self) -> u32 {
        SIDE * self.sharing
    }

    fn staging(self) -> Staging {
        Staging { lanes: self.subgroups() * LANES, keys: self.keys() }
    }

    /// Bases and sums in shared memory: of the rows of each subgroup, then of the rows of each slice.
    fn states(self) -> u32 {
        (self.subgroups() * SIDE).max(self.m * self.slices)
    }

    /// Shared memory in 16-byte words, with one or two tiles of keys and values, which alias the subgroups' queries and
    /// results.
    fn words(self, x: &Extents, buffers: u32) -> u32 {
        let [_, tile] = self.staging().tiles(x.d, x.width);
        (buffers * tile).max(self.subgroups() * SIDE * STRIDE)
    }

    /// Whether a workgroup fits with so many tiles of keys and values in shared memory.
    fn fits_with(self, caps: &DeviceCaps, x: &Extents, buffers: u32) -> bool {
        // Beside the words: bases, sums, and what elects the last workgroup.
        16 * self.words(x, buffers) + 8 * self.states() + 4 <= caps.shared_memory_bytes
    }

    /// Two tiles save a barrier per tile.
    fn buffers(self, caps: &DeviceCaps, x: &Extents) -> u32 {
        if self.fits_with(caps, x, 2) { 2 } else { 1 }
    }

    /// Registers of an invocation.
    fn registers(self, a: &Attention<'_>) -> u32 {
        register_count(a, (1, 1), self.staging())
    }

    fn fits(self, caps: &DeviceCaps, a: &Attention<'_>, x: &Extents) -> bool {
        let lanes = self.subgroups() * LANES;
        lanes <= MOST_INVOCATIONS.min(caps.max_workgroup_invocations)
            && self.fits_with(caps, x, 1)
            && self.registers(a) <= cost::registers_per_invocation(caps, lanes)
    }

    /// The tile of `m` rows with most subgroups that share rows: their steps wait for memory and for one another. `None`
    /// if none fits the device.
    fn largest(caps: &DeviceCaps, a: &Attention<'_>, x: &Extents, m: u32) -> Option<RowTile> {
        let sharing = std::iter::successors(Some(MOST_SHARING), |n| Some(n / 2)).take_while(|n| *n > 0);
        let used = |sharing: &u32| *sharing == 1 || sharing * SIDE < 2 * x.keys;
        let tiles = sharing.filter(used).map(|sharing| RowTile { m, sharing, slices: 1 });
        let sliced = tiles.map(|tile| RowTile { slices: tile.slices(caps, a, x), ..tile });
        sliced.into_iter().find(|tile| tile.fits(caps, a, x))
    }

    /// Slices of the keys: as many as balance the slices' reads and the last workgroup's, at most as many as cores hold at
    /// once, and at least one tile of keys per slice. All slices but the last have equally many tiles.
    fn slices(self, caps: &DeviceCaps, a: &Attention<'_>, x: &Extents) -> u32 {
        let tiles = x.keys.div_ceil(self.keys()).max(1);
        let workgroups = x.rows.div_ceil(self.m).saturating_mul(x.heads);
        let read = 2 * u64::from(x.keys) * u64::from(x.d + x.width);
        let partial = 4 * u64::from(self.m.min(x.rows)) * u64::from(x.width + 2);
        let wanted = cost::balanced_slices(read, partial);
        let waves =
            cost::resident_workgroups(caps, self.subgroups() * LANES, self.registers(a)).min(MOST_WAVES);
        let idle = cost::workgroups_of_waves(caps, waves) / workgroups.max(1);
        let slices = wanted.min(idle).min(tiles).clamp(1, MOST_SLICES);
        tiles.div_ceil(tiles.div_ceil(slices))
    }
}

/// Whether this kernel is the default where the kernel for many queries supports the attention, too, and leaves cores idle:
/// if one tile has all rows, and heads share their keys or the tile has at most 32 rows. (H100, f16, us, this kernel and
/// that one: 32 heads of 16 queries on 8 key heads, 4096 keys 12.8 and 30.0; of 256 queries 90.5 and 60.7; 8 heads of 45
/// queries, 1210 keys 5.4 and 2.9; bf16, 12 heads of 197 queries and keys 6.1 and 1.8.)
pub(crate) fn is_default(a: &Attention<'_>) -> bool {
    let [most, half] = [ROWS[2], ROWS[1]];
    Extents::of(a).is_some_and(|x| x.rows <= half || (x.group > 1 && x.rows <= most))
}

/// Whether a schedule of flash attention is one of this kernel.
pub(crate) fn is_of(schedule: &Schedule) -> bool {
    ROWS.contains(&schedule.tile.m)
}

/// The tuning candidates, the cost model's default first: the smallest tile that has all rows, else the largest; then
/// other tiles that are at least half full, and the default with half and twice as many slices. Requires what
/// `flash::supports` checks of operands.
pub(crate) fn schedules(e: &Emitter<'_>, a: &Attention<'_>) -> Vec<Schedule> {
    let Some(x) = Extents::of(a).filter(|_| e.caps.coopmat_fragment_layout) else { return vec![] };
    let fits_grid = grid(e, a, &x, RowTile { m: ROWS[0], sharing: 1, slices: 1 }).is_ok();
    let tiles = ROWS.into_iter().filter(|m| fits_grid && (*m == ROWS[0] || *m < 2 * x.rows));
    let mut tiles: Vec<RowTile> = tiles.filter_map(|m| RowTile::largest(e.caps, a, &x, m)).collect();
    let Some(default) = tiles.iter().position(|tile| tile.m >= x.rows).or(tiles.len().checked_sub(1)) else {
        return vec![];
    };
    tiles[..=default].rotate_right(1);
    let first = tiles[0];
    let others = [first.slices / 2, first.slices * 2].into_iter().filter(|_| first.slices > 1);
    let others = others.map(|slices| RowTile { slices, ..first });
    tiles.extend(others.filter(|tile| tile.slices <= MOST_SLICES && tile.fits(e.caps, a, &x)));
    tiles.into_iter().map(RowTile::schedule).collect()
}

/// The grid: tiles of rows, key heads, slices.
fn grid(e: &Emitter<'_>, a: &Attention<'_>, x: &Extents, tile: RowTile) -> Result<[Count; 3], CodegenError> {
    let rows = a.s * &Dim::constant(x.group.into());
    let along = |axis, n, per| Count::along(e.caps, axis, n, per);
    let grid = [along(0, rows, tile.m), along(1, a.g.clone(), 1), Count::constant(tile.slices)];
    check_grid("attention", &grid)?;
    Ok(grid)
}

/// Generates the kernel for one of [`schedules`].
pub(crate) fn kernel(
    mut e: Emitter<'_>,
    form: &AttentionForm,
    mut schedule: Schedule,
) -> Result<Kernel, CodegenError> {
    let mut a = Attention::of(&e, form)?;
    // A wider window masks nothing, and could overflow 32 bits.
    a.attrs.window = a.attrs.window.map(|w| w.min(1 << 30));
    let refused = || CodegenError::NoSuchSchedule { kind: "attention", schedule: schedule.to_string() };
    let operand = operand_type(&e, &a).ok_or_else(refused)?;
    let x = Extents::of(&a).ok_or_else(refused)?;
    let mut tile = RowTile::of(&schedule);
    let common = a.holes(&mut e, "value")?;
    let outputs: Vec<usize> = (0..e.body.outputs().len()).collect();
    let results = vector_group::Results { shape: &e.body.node(form.node).types[0].shape, outputs: &outputs };
    let size = results.size(e.body);
    let statements = loads_and_stores(&mut e, &a, tile, &results)?;
    let tiles = x.rows.div_ceil(tile.m);
    let counters = u64::from(tiles) * u64::from(x.heads);
    let row = u64::from(x.width + 2);
    let floats = counters.saturating_mul(u64::from(tile.slices * tile.m)).saturating_mul(row);
    // The partials of slices need two more bindings and a buffer of their size, which a device may not have.
    if e.bindings.len() as u64 + 2 > u64::from(e.caps.max_storage_buffers)
        || floats.saturating_mul(4) > e.caps.max_storage_buffer_range
    {
        (tile.slices, schedule.split.slices) = (1, 1);
    }
    let mut partials = String::new();
    if tile.slices > 1 {
        partials = last_workgroup::partials(&mut e, "partials", Glsl::Float, floats) + "\n";
        partials += &last_workgroup::counters(&mut e, counters);
    }
    let grid = grid(&e, &a, &x, tile)?;
    e.extensions.extend(matrix_extensions(operand));
    e.extensions.extend(["GL_KHR_shader_subgroup_shuffle", "GL_KHR_shader_subgroup_vote"]);
    let buffers = tile.buffers(e.caps, &x);
    let [values0, words] = [tile.staging().tiles(x.d, x.width)[0], tile.words(&x, buffers)];
    let holes = context! {
        element => context! { name => operand.dtype().name(), ty => element_type(operand) },
        m => tile.m, keys => tile.keys(), sharing => tile.sharing, slices => tile.slices, tiles, buffers, values0, words,
        tile => tile.staging().tiles(x.d, x.width)[1], subgroups => tile.subgroups(), states => tile.states(),
        per_subgroup => SIDE * STRIDE, stride => STRIDE, piece => divisor(x.d, STAGED_QUERIES),
        columns => divisor(x.width, STAGED_RESULTS), size, partials,
        ragged => a.t.as_const().is_none_or(|t| t % i64::from(tile.keys()) != 0),
        elect => last_workgroup::elect("lane == 0u", &format!("g * {tiles}u + tile"), "parts").join("\n"),
        ..context! { ..score_holes(&a), ..context! { ..statements, ..common } }
    };
    finish(e, schedule, "attention_flash_rows.comp", grid, String::new(), holes)
}

/// The largest multiple of [`SIDE`] up to `most` that divides `width`.
fn divisor(width: u32, most: u32) -> u32 {
    let columns = (1..=most / SIDE).rev().map(|matrices| matrices * SIDE);
    columns.into_iter().find(|columns| width.is_multiple_of(*columns)).unwrap_or(SIDE)
}

/// The holes of loads and stores.
fn loads_and_stores(
    e: &mut Emitter<'_>,
    a: &Attention<'_>,
    tile: RowTile,
    results: &vector_group::Results<'_>,
) -> Result<Hole, CodegenError> {
    let g = e.atom(a.g, "g");
    let (q, q_lines) = e.scope(|e| {
        let at = [e.atom(a.h, "h"), e.atom(a.s, "s")];
        Eight::of(e, a.q, &at)
    })?;
    let q = q.word(e, "part * 8u");
    let staged = tile.staging().holes(e, a, &g)?;
    let (bias, t_lines) = a.bias_at(e)?;
    let store = e.scoped_lines(|e| {
        let (h, s) = (e.atom(a.h, "h"), e.atom(a.s, "s"));
        let buffers: Vec<usize> = results.outputs.iter().map(|output| e.result(*output as u32)).collect();
        results.emit(e, "piece", [h, s], &[(a.id, "found".into())], &buffers)
    })?;
    let [q_lines, t_lines, store] = [q_lines, t_lines, store].map(|lines| lines.join("\n"));
    Ok(context! { q_lines, q, t_lines, bias, store, staged })
}
