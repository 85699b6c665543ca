//! Attention of several queries by multiply-adds: a tile of queries per workgroup, tiles of keys and values staged in
//! shared memory, scores and results in registers, online softmax.
//!
//! The rows of a tile are the queries of all heads that share a key head, so keys are read once for all of them. If
//! tiles are few, workgroups divide the keys, and the last workgroup to finish combines the partials.

use minijinja::{Value as Hole, context};
use tallow_ir::cost;
use tallow_ir::form::AttentionForm;
use tallow_ir::index::Index;
use tallow_ir::{DType, DeviceCaps, Dim, Value};

use super::operands::{Attention, Eight, has_eights, number};
use crate::assemble::{check_grid, finish};
use crate::blocks::last_workgroup;
use crate::emit::Emitter;
use crate::error::CodegenError;
use crate::glsl::Glsl;
use crate::kernel::{Count, Kernel};
use crate::library as lib;
use crate::schedule::{Algorithm, Schedule, Split, Tile};

/// Scores of a row that an invocation computes: one vector of shared memory.
const VECTOR: u32 = 4;

/// Elements that are loaded at once.
const STEP: u32 = 8;

/// Elements of queries and values, at most. An invocation holds `rows * width / columns` results in registers, 64 at
/// this width on GPUs with tiles of 16 keys or more.
const WIDEST: u32 = 256;

/// Largest part of a key that is staged at once, in elements.
const LONGEST_CHUNK: u32 = 48;

/// Rows of a tile and invocations of its workgroup, larger ones first, and keys of a tile. Each invocation has 4 x 4
/// scores at the larger sizes, so that 8 vectors of shared memory are read for 64 multiply-adds. Tiles of 16 rows have
/// 2 x 4, for more subgroups that hide latency.
const TILES: [[u32; 2]; 3] = [[64, 256], [32, 128], [16, 128]];
const KEYS: [u32; 2] = [64, 32];

/// The same for software devices, where each invocation and barrier costs time.
const SOFTWARE_TILES: [[u32; 2]; 2] = [[16, 16], [8, 16]];
const SOFTWARE_KEYS: [u32; 2] = [16, 8];

/// Most keys of a loop on software devices.
const SOFTWARE_MOST_KEYS: u32 = 65_535;

/// Fewest keys of a tile.
const FEWEST_KEYS: u32 = 8;

/// Most slices of the keys: the last workgroup reads the partials of all slices.
const MOST_SLICES: u32 = 32;

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
    /// `None` if this kernel does not support the attention.
    fn of(a: &Attention<'_>) -> Option<Extents> {
        let constant = |dim: &Dim| dim.as_const().and_then(|n| u32::try_from(n).ok()).filter(|n| *n > 0);
        let width = |dim: &Dim| constant(dim).filter(|n| *n <= WIDEST);
        let most = |dim: &Dim| u32::try_from(dim.max_value()).ok();
        let (d, width) = (width(a.d)?, width(a.width)?);
        let group = constant(a.h)? / constant(a.g)?;
        let rows = most(a.s)?.checked_mul(group)?;
        let several = a.s.max_value() > 1 && a.wide == DType::F32;
        let (heads, keys) = (most(a.g)?, most(a.t)?);
        several.then_some(Extents { group, rows, heads, keys, d, width })
    }
}

/// Sizes of a kernel, derived from its schedule and the shape.
struct Sizes {
    /// Rows and keys of a tile.
    m: u32,
    n: u32,
    workgroup: u32,
    /// Rows of an invocation, and invocations that share rows.
    rows: u32,
    columns: u32,
    /// Elements of a key, padded to whole chunks; elements of a chunk.
    depth: u32,
    chunk: u32,
    /// Vectors of results per row and invocation.
    values: u32,
    /// Keys whose values are staged at once.
    chunk_v: u32,
    /// Slices of the keys.
    slices: u32,
}

impl Sizes {
    fn of(schedule: &Schedule, x: &Extents) -> Sizes {
        let (Tile { m, n, .. }, workgroup) = (schedule.tile, schedule.workgroup);
        let columns = n / VECTOR;
        let depth = x.d.next_multiple_of(STEP);
        // A chunk costs two barriers, about as much as eight elements.
        let chunks = (STEP..=LONGEST_CHUNK.min(depth)).step_by(STEP as usize);
        let chunk = chunks.min_by_key(|chunk| depth.div_ceil(*chunk) * (chunk + STEP)).unwrap_or(STEP);
        let depth = depth.next_multiple_of(chunk);
        let values = x.width.next_multiple_of(STEP).div_ceil(VECTOR * columns);
        // As many values as fit where keys were, a power of two.
        let chunk_v = (n * (chunk / VECTOR + 1) / (columns * values)).max(VECTOR).min(n);
        let chunk_v = 1 << chunk_v.ilog2();
        let (rows, slices) = (m * columns / workgroup, schedule.split.slices);
        Sizes { m, n, workgroup, rows, columns, depth, chunk, values, chunk_v, slices }
    }

    /// Shared-memory strides between queries and between rows of weights, in vectors. One vector of padding, so that
    /// rows begin in different banks.
    fn strides(&self) -> [u32; 2] {
        [self.depth / VECTOR + 1, self.columns + 1]
    }

    /// Vectors of shared memory in which keys and values are staged.
    fn staged(&self) -> u32 {
        (self.n * (self.chunk / VECTOR + 1)).max(self.chunk_v * self.columns * self.values)
    }

    /// Bytes of shared memory.
    fn shared_bytes(&self) -> u32 {
        let [queries, weights] = self.strides();
        16 * (self.m * (queries + weights) + self.staged()) + 4 * self.m * self.columns + 4
    }

    /// Partials per row: weighted values, the largest score and the sum of weights.
    fn found_stride(&self) -> u32 {
        VECTOR * self.columns * self.values + 2
    }
}

/// Slices of the keys for so many workgroups without slices: two workgroups per core, and at least one tile of `n` keys
/// per slice. All slices but the last have equally many tiles. Partials take no more memory than the scores would.
fn slices(caps: &DeviceCaps, x: &Extents, workgroups: u32, n: u32) -> u32 {
    let tiles = x.keys.div_ceil(n).max(1);
    let wanted = cost::workgroups_of_waves(caps, 2) / workgroups.max(1);
    let partials = x.width + 2;
    let slices = wanted.min(MOST_SLICES).min(tiles).min(x.keys / partials).max(1);
    tiles.div_ceil(tiles.div_ceil(slices))
}

/// The schedules that fit the device, larger tiles first.
fn all(caps: &DeviceCaps, x: &Extents) -> Vec<Schedule> {
    let (tiles, keys): (&[[u32; 2]], _) = match cost::runs_workgroups_on_one_thread(caps) {
        true => (&SOFTWARE_TILES, SOFTWARE_KEYS),
        false => (&TILES, KEYS),
    };
    let smallest = tiles.iter().map(|[m, _]| *m).min().unwrap_or(1);
    let mut found = vec![];
    for [m, most] in tiles.iter().copied().filter(|[m, _]| *m == smallest || *m < 2 * x.rows) {
        for n in keys.map(|n| n.min(x.keys.max(1).next_power_of_two()).max(FEWEST_KEYS)) {
            let workgroup = most.min(m * n / VECTOR);
            let workgroups = x.rows.div_ceil(m).saturating_mul(x.heads);
            let slices = slices(caps, x, workgroups, n);
            let schedule = Schedule {
                tile: Tile { m, n, k: 0 },
                split: Split { slices, above: 0 },
                ..Schedule::new(Algorithm::TiledAttention, workgroup)
            };
            let fits = workgroup <= caps.max_workgroup_invocations
                && Sizes::of(&schedule, x).shared_bytes() <= caps.shared_memory_bytes;
            if fits && !found.contains(&schedule) {
                found.push(schedule);
            }
        }
    }
    // One thread runs a workgroup after the other there: slices are candidates alone.
    if cost::runs_workgroups_on_one_thread(caps) {
        let whole = found.iter().map(|s: &Schedule| Schedule { split: Split { slices: 1, above: 0 }, ..*s });
        let sliced = found.iter().copied().filter(|s| s.split.slices > 1);
        return whole.chain(sliced).collect();
    }
    found
}

/// Most keys for which tiles are the default, whatever else. A workgroup per query then has less work than its start and
/// end take. With more keys, the largest tiles are, if no keys are hidden. (H200, f32, us, per query and tiled: 12 heads of
/// 197 queries and keys of 64 20.0 and 15.1; 32 heads of 1197 queries and 16 keys of 128 93 and 58; the attention of
/// `network/vit/52` 135 and 80; but 7 queries and 586 keys 10.5 and 25.2, and causal 16 x 1024 x 64 302 and 450.)
const FEW_KEYS: i64 = 256;

/// Whether tiles are the default: where they were measured to be faster, where a query per workgroup exceeds the grid, and
/// on software devices, so that tests without a GPU cover them. Elsewhere they are candidates of the tuner.
pub(crate) fn is_default(e: &Emitter<'_>, form: &AttentionForm) -> bool {
    Attention::of(e, form).is_ok_and(|a| {
        let large = schedules(e, form).first().is_some_and(|first| first.tile.m == TILES[0][0]);
        // The tiles of a symbolic number of queries are those of the most.
        let all_seen = !a.attrs.causal && a.attrs.window.is_none() && a.s.as_const().is_some();
        a.t.max_value() <= FEW_KEYS
            || (large && all_seen)
            || a.grid(e, 1).is_err()
            || cost::runs_workgroups_on_one_thread(e.caps)
    })
}

/// Whether this kernel supports an attention: if a tile is at least half full, it computes at most twice as much as one
/// workgroup per query, but reads keys and values once for all of its rows.
pub(crate) fn supports(e: &Emitter<'_>, form: &AttentionForm) -> bool {
    let Ok(a) = Attention::of(e, form) else { return false };
    let Some(x) = Extents::of(&a) else { return false };
    let smallest = all(e.caps, &x).iter().map(|schedule| schedule.tile.m).min();
    // Mesa's software devices end a loop after 65535 iterations of all loops in it, without a word: up to 13 for a tile of
    // 16 keys.
    let ends = cost::runs_workgroups_on_one_thread(e.caps) && x.keys > SOFTWARE_MOST_KEYS;
    !ends && smallest.is_some_and(|m| 2 * x.rows >= m && grid(e, &a, &x, (m, 1)).is_ok())
}

/// The tuning candidates, the cost model's default first: the largest tiles that leave few cores idle, else the
/// smallest.
pub(crate) fn schedules(e: &Emitter<'_>, form: &AttentionForm) -> Vec<Schedule> {
    let x = Attention::of(e, form).ok().and_then(|a| Extents::of(&a));
    let Some(x) = x else { return vec![] };
    let mut all = all(e.caps, &x);
    let workgroups = |s: &Schedule| x.rows.div_ceil(s.tile.m).saturating_mul(x.heads * s.split.slices);
    let fills = |s: &Schedule| workgroups(s) >= cost::workgroups_to_mostly_fill(e.caps);
    let smallest = all.iter().map(|s| s.tile.m).min();
    let fills = |s: &Schedule| cost::runs_workgroups_on_one_thread(e.caps) || fills(s);
    let default = all.iter().position(fills).or_else(|| all.iter().position(|s| Some(s.tile.m) == smallest));
    if let Some(default) = default {
        all[..=default].rotate_right(1);
    }
    all
}

/// The grid: tiles of `m` rows, key heads, slices.
fn grid(
    e: &Emitter<'_>,
    a: &Attention<'_>,
    x: &Extents,
    (m, slices): (u32, u32),
) -> Result<[Count; 3], CodegenError> {
    let rows = a.s * &Dim::constant(x.group.into());
    let grid =
        [Count::along(e.caps, 0, rows, m), Count::along(e.caps, 1, a.g.clone(), 1), Count::constant(slices)];
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
    let x = Extents::of(&a).ok_or_else(|| CodegenError::Node(e.body.node_text(form.node)))?;
    let mut sizes = Sizes::of(&schedule, &x);
    let common = a.holes(&mut e, "score")?;
    let statements = statements(&mut e, &a, &sizes)?;
    let tiles = x.rows.div_ceil(sizes.m);
    let results = u64::from(tiles) * u64::from(x.heads);
    let partials =
        results.saturating_mul(u64::from(sizes.slices * sizes.m)).saturating_mul(sizes.found_stride().into());
    // The partials of slices need two more bindings and a buffer of their size, which a device may not have.
    if e.bindings.len() as u64 + 2 > u64::from(e.caps.max_storage_buffers)
        || partials.saturating_mul(4) > e.caps.max_storage_buffer_range
    {
        (sizes.slices, schedule.split.slices) = (1, 1);
    }
    let mut parts = String::new();
    if sizes.slices > 1 {
        parts = last_workgroup::partials(&mut e, "found", Glsl::Float, partials) + "\n";
        parts += &last_workgroup::counters(&mut e, results);
    }
    e.uses().add(lib::MAX_OF);
    let grid = grid(&e, &a, &x, (sizes.m, sizes.slices))?;
    let [query_stride, weight_stride] = sizes.strides();
    let elect = last_workgroup::elect("lane == 0u", &format!("g * {tiles}u + tile"), "parts").join("\n");
    let Sizes { m, n, workgroup, rows, columns, depth, chunk, values, chunk_v, slices } = sizes;
    let holes = context! {
        m, n, workgroup, rows, columns, depth, chunk, values, chunk_v, splits => slices, query_stride, weight_stride,
        staged => sizes.staged(), found_stride => sizes.found_stride(), tiles, parts, elect,
        ..context! { ..statements, ..common }
    };
    finish(e, schedule, "attention_tiled.comp", grid, String::new(), holes)
}

/// The holes of loads and stores.
fn statements(e: &mut Emitter<'_>, a: &Attention<'_>, sizes: &Sizes) -> Result<Hole, CodegenError> {
    let Sizes { m, n, columns, depth, chunk, values, chunk_v, .. } = *sizes;
    let group = number(a.h) / number(a.g).max(1);
    let [query_stride, _] = sizes.strides();
    let head = "const uint r = min(first_row + place, last_row)";
    let q = context! {
        beyond => "", array => "queries", count => m, across => depth / STEP, first => "",
        row => format!("{head}, s = r / {group}u, h = g * {group}u + r % {group}u;"),
        to => format!("place * {query_stride}u + d / 4u"), factor => format!(" * {}", a.ty.literal(a.attrs.scale.as_f64())),
        ..operand(e, a, a.q, &[(a.h, "h"), (a.s, "s")], ("d", depth))?
    };
    // Vector `j` of an invocation's keys is in row `j * columns + column`, so neighbours read neighbouring rows.
    let key = format!("place % {columns}u * {VECTOR}u + place / {columns}u");
    let k = context! {
        array => "staged", count => n, across => chunk / STEP, first => "d0 + ", beyond => "",
        row => format!("const uint t = min(t0 + {key}, end - 1u);"),
        to => format!("place * {}u + (d - d0) / 4u", chunk / VECTOR + 1), factor => "",
        ..operand(e, a, a.k, &[(a.g, "g"), (a.t, "t")], ("d", depth))?
    };
    let width = number(a.width).next_multiple_of(STEP);
    let v = context! {
        // Their weights are 0, but 0 times an infinite value would be no number.
        beyond => "t0 + j0 + place >= end",
        array => "staged", count => chunk_v, across => width / STEP, first => "",
        row => "const uint t = min(t0 + j0 + place, end - 1u);",
        to => format!("place * {}u + e / 4u", columns * values), factor => "",
        ..operand(e, a, a.v, &[(a.g, "g"), (a.t, "t")], ("e", width))?
    };
    let (bias, t_lines) = a.bias_at(e)?;
    let store = a.store_at(e)?;
    let [t_lines, store] = [t_lines, store].map(|lines| lines.join("\n"));
    Ok(context! { q, k, v, t_lines, bias, store })
}

/// The holes of the load of eight elements of a row of `value` from the variable `name` on: one vector load, or eight
/// elements. Elements from the row's width up to `padded` are 0.
fn operand(
    e: &mut Emitter<'_>,
    a: &Attention<'_>,
    value: Value,
    row: &[(&Dim, &str); 2],
    (name, padded): (&str, u32),
) -> Result<Hole, CodegenError> {
    let width = &e.body.ty(value).shape.dims()[2].clone();
    let eights = has_eights(e, value);
    let ((load, lines), row_lines) = e.scope(|e| {
        let row: Vec<Index> = row.iter().map(|(extent, name)| e.atom(extent, name)).collect();
        if eights {
            return Ok((Eight::of(e, value, &row)?.load(e, name), vec![]));
        }
        e.scope(|e| {
            let at = [&row[..], &[e.atom(width, name)]].concat();
            a.element(e, value, &at)
        })
    })?;
    let [lines, row_lines] = [lines, row_lines].map(|lines| lines.join("\n"));
    Ok(
        context! { name, eights, load, lines, row_lines, width => number(width), padded => padded > number(width) },
    )
}
