//! Flash attention of many queries with cooperative matrices: 16 or 32 queries per subgroup, tiles of keys staged in
//! shared memory, online softmax. Shapes: queries `[h, s, d]`, keys `[g, t, d]`, values `[g, t, width]`.
//!
//! `attention_flash_shared.comp` passes scores through shared memory. Where the fragment layout is known,
//! `attention_flash_registers.comp` leaves them in registers.

use minijinja::{Value as Hole, context};
use tallow_ir::form::AttentionForm;
use tallow_ir::matrix::MatrixOperand;
use tallow_ir::{DType, DeviceCaps, Dim, cost};

use super::flash_rows;
use super::fragments::{LANES, SIDE, Staging, operand_type, register_count, score_holes};
use super::operands::{Attention, number, row};
use crate::assemble::finish;
use crate::blocks::coopmat::{element_type, matrix_extensions};
use crate::blocks::vector_group;
use crate::emit::Emitter;
use crate::error::CodegenError;
use crate::glsl::Glsl;
use crate::kernel::Kernel;
use crate::library as lib;
use crate::schedule::{Algorithm, Epilogue, Schedule, Tile};

/// Queries per workgroup.
const QUERIES: u32 = SUBGROUPS * SIDE;

/// Subgroups per workgroup at 16 queries each; all share the tiles of keys and values.
const SUBGROUPS: u32 = 8;

/// Keys per tile.
const KEYS: u32 = 32;

/// Most elements of a query and of a value with scores in shared memory. At this width RADV spills 50 of 256 registers.
const WIDEST_SHARED: u32 = 128;

/// Most columns of queries that are staged in shared memory at once.
const STAGED_QUERIES: u32 = 128;

/// Stride between rows of scores in shared memory, in 16-byte words: 32 f32 scores, and one word of padding against
/// bank conflicts.
const STRIDE: u32 = KEYS / 4 + 1;

/// The tile of a workgroup.
#[derive(Clone, Copy)]
struct FlashTile {
    /// Subgroups per workgroup.
    subgroups: u32,
    /// Blocks of 16 queries per subgroup.
    blocks: u32,
    /// Keys per tile.
    keys: u32,
}

impl FlashTile {
    /// For many workgroups: each key or value fragment loaded from shared memory is used by two blocks of queries, and
    /// two workgroups run per core. This needs all registers, so it is not used if softmax weights are unrounded, which
    /// takes two matrices (high and low parts).
    const LARGE: FlashTile = FlashTile { subgroups: 4, blocks: 2, keys: 16 };

    /// For few workgroups, and for scores in shared memory: more subgroups for the same queries.
    const SMALL: FlashTile = FlashTile { subgroups: SUBGROUPS, blocks: 1, keys: KEYS };

    /// For wide rows: half as many keys, for fewer registers and less shared memory.
    const WIDE: FlashTile = FlashTile { subgroups: SUBGROUPS, blocks: 1, keys: 16 };

    /// The tile with scores in registers. Large if most cores get two workgroups and softmax weights are rounded. `None`
    /// if none fits the device.
    fn of(caps: &DeviceCaps, a: &Attention<'_>) -> Option<FlashTile> {
        let workgroups = a.h.max_value().saturating_mul(a.s.max_value()) / i64::from(QUERIES);
        let many = workgroups >= 2 * i64::from(cost::workgroups_to_mostly_fill(caps));
        let large = (a.attrs.round_weights && many).then_some(FlashTile::LARGE);
        let tiles = large.into_iter().chain([FlashTile::SMALL, FlashTile::WIDE]);
        let fits = |tile: &FlashTile| {
            let [_, words] = tile.words(Epilogue::Registers, number(a.d), number(a.width));
            16 * words <= caps.shared_memory_bytes
                && register_count(a, (tile.blocks, tile.keys / SIDE), tile.staging())
                    <= cost::registers_per_invocation(caps, tile.subgroups * LANES)
        };
        tiles.into_iter().find(fits).filter(|_| caps.coopmat_fragment_layout)
    }

    fn staging(self) -> Staging {
        Staging { lanes: self.subgroups * LANES, keys: self.keys }
    }

    /// Columns of results that are staged in shared memory at once, a divisor of `width`.
    fn staged_columns(width: u32) -> u32 {
        [64, 48, 32].into_iter().find(|columns| width.is_multiple_of(*columns)).unwrap_or(SIDE)
    }

    /// Columns of queries that are staged in shared memory at once, a divisor of `d`.
    fn staged_queries(d: u32) -> u32 {
        let pieces = (1..=STAGED_QUERIES / SIDE).rev().map(|matrices| matrices * SIDE);
        pieces.into_iter().find(|columns| d.is_multiple_of(*columns)).unwrap_or(SIDE)
    }

    /// Shared memory in 16-byte words: of one subgroup, and in total. With scores in registers, two tiles of keys and
    /// values alias the subgroups' queries and results. Otherwise there is one tile, and each subgroup's scores and
    /// rescaling factors.
    fn words(self, scores: Epilogue, d: u32, width: u32) -> [u32; 2] {
        let [_, tile] = self.staging().tiles(d, width);
        if scores == Epilogue::Registers {
            let [queries, columns] = [FlashTile::staged_queries(d), FlashTile::staged_columns(width)];
            let per_subgroup = SIDE * (queries / 8 + 1).max(columns / 4 + 1);
            return [per_subgroup, (2 * tile).max(self.subgroups * per_subgroup)];
        }
        let per_subgroup = SIDE * STRIDE + 64;
        [per_subgroup, tile + self.subgroups * per_subgroup]
    }

    /// The holes that depend on the tile.
    fn holes(self, a: &Attention<'_>, scores: Epilogue) -> Hole {
        let (d, width, window) = (number(a.d), number(a.width), a.attrs.window);
        let divides = [d, width].into_iter().all(|n| self.staging().divides_into_loads(n));
        let ragged = a.t.as_const().is_none_or(|t| t % i64::from(self.keys) != 0);
        // Loops over tiles of keys, one after the other, and whether each masks keys.
        let phases: &[bool] = match (window.is_some(), a.attrs.causal || ragged) {
            (true, _) => &[true],
            (false, true) => &[false, true],
            (false, false) => &[false],
        };
        let ([values0, tile], [per_subgroup, words]) =
            (self.staging().tiles(d, width), self.words(scores, d, width));
        context! {
            subgroups => self.subgroups, blocks => self.blocks, keys => self.keys, phases => phases.to_vec(), tile,
            per_subgroup, words, values0,
            // Whether loads are clamped to the last key.
            clamped => ragged || window.is_some() || !divides,
            columns => FlashTile::staged_columns(width),
            piece => FlashTile::staged_queries(d), stride => STRIDE, ..score_holes(a),
        }
    }
}

/// Whether the tile with scores in shared memory fits the device.
fn fits_shared(caps: &DeviceCaps, a: &Attention<'_>) -> bool {
    let (d, width) = (number(a.d), number(a.width));
    let [_, words] = FlashTile::SMALL.words(Epilogue::Shared, d, width);
    d.max(width) <= WIDEST_SHARED && 16 * words <= caps.shared_memory_bytes
}

/// Whether this kernel supports an attention.
pub(crate) fn supports(e: &Emitter<'_>, form: &AttentionForm) -> bool {
    let Ok(a) = Attention::of(e, form) else { return false };
    let side = i64::from(SIDE);
    let divides = |dim: &Dim| dim.as_const().is_some_and(|d| d > 0 && d % side == 0 && d < 1 << 16);
    let caps = e.caps;
    let Some(operand) = operand_type(e, &a) else { return false };
    let result = e.body.node(form.node).types[0].dtype;
    caps.subgroup_shuffle
        && caps.scheduled_subgroup_size() == LANES
        && caps.max_workgroup_invocations >= SUBGROUPS * LANES
        && divides(a.d)
        && divides(a.width)
        && (result == DType::F32 || result == operand.dtype())
        && [a.bias, a.sinks]
            .iter()
            .flatten()
            .all(|v| Glsl::of(e.body.ty(*v).dtype, caps) == Some(Glsl::Float))
        && !schedules(e, form).is_empty()
}

/// The tuning candidates, the cost model's default first: tiles of few rows and slices of the keys where tiles of 128
/// queries leave cores idle or do not support the attention, else these.
pub(crate) fn schedules(e: &Emitter<'_>, form: &AttentionForm) -> Vec<Schedule> {
    let Ok(a) = Attention::of(e, form) else { return vec![] };
    let many = of_many_queries(e.caps, &a);
    let workgroups =
        a.h.max_value()
            .saturating_mul(a.s.max_value().saturating_add(i64::from(QUERIES) - 1) / i64::from(QUERIES));
    if many.is_empty() {
        return flash_rows::schedules(e, &a);
    }
    if workgroups >= i64::from(cost::workgroups_to_mostly_fill(e.caps)) {
        return many;
    }
    let rows = flash_rows::schedules(e, &a);
    if flash_rows::is_default(&a) { [rows, many].concat() } else { [many, rows].concat() }
}

/// The schedules of tiles of 128 queries. If the fragment layout is known, the default keeps scores in registers. Scores
/// in shared memory remain a candidate, because the default needs all registers and its speed depends on the driver.
fn of_many_queries(caps: &DeviceCaps, a: &Attention<'_>) -> Vec<Schedule> {
    let side = i64::from(SIDE);
    let most = i64::from(QUERIES) * i64::from(caps.max_workgroup_count[1]);
    if !(side..=most).contains(&a.s.max_value()) || a.s.as_const().is_some_and(|s| s < side) {
        return vec![];
    }
    let schedule = |epilogue, FlashTile { subgroups, keys, .. }| Schedule {
        tile: Tile { m: QUERIES, n: keys, k: 0 },
        epilogue,
        ..Schedule::new(Algorithm::FlashAttention, subgroups * LANES)
    };
    let registers = FlashTile::of(caps, a).map(|tile| schedule(Epilogue::Registers, tile));
    let shared = fits_shared(caps, a).then(|| schedule(Epilogue::Shared, FlashTile::SMALL));
    registers.into_iter().chain(shared).collect()
}

/// Generates the kernel for one of [`schedules`].
pub(crate) fn kernel(
    mut e: Emitter<'_>,
    form: &AttentionForm,
    schedule: Schedule,
) -> Result<Kernel, CodegenError> {
    if flash_rows::is_of(&schedule) {
        return flash_rows::kernel(e, form, schedule);
    }
    let mut a = Attention::of(&e, form)?;
    // A wider window masks nothing, and could overflow 32 bits.
    a.attrs.window = a.attrs.window.map(|w| w.min(1 << 30));
    let refused = || CodegenError::NoSuchSchedule { kind: "attention", schedule: schedule.to_string() };
    let operand = operand_type(&e, &a).ok_or_else(refused)?;
    let registers = schedule.epilogue == Epilogue::Registers;
    let (tile, score) = match registers {
        true => (FlashTile::of(e.caps, &a).ok_or_else(refused)?, "value"),
        false => (FlashTile::SMALL, "score[c]"),
    };
    let common = a.holes(&mut e, score)?;
    let outputs: Vec<usize> = (0..e.body.outputs().len()).collect();
    let results = vector_group::Results { shape: &e.body.node(form.node).types[0].shape, outputs: &outputs };
    let size = results.size(e.body);
    let statements = loads_and_stores(&mut e, &a, tile, registers.then_some(&results))?;
    if !registers {
        // The template itself calls them.
        e.uses().add(lib::MAX_OF);
        if operand == MatrixOperand::Bf16 {
            e.uses().add(lib::BITS_BF16);
        }
    }
    let grid = a.grid_by_heads(&e, QUERIES)?;
    e.extensions.extend(matrix_extensions(operand));
    e.extensions.extend(["GL_KHR_shader_subgroup_shuffle", "GL_KHR_shader_subgroup_vote"]);
    let template = if registers { "attention_flash_registers.comp" } else { "attention_flash_shared.comp" };
    let element = context! { name => operand.dtype().name(), ty => element_type(operand) };
    let holes = context! { size, element, ..context! { ..tile.holes(&a, schedule.epilogue), ..statements, ..common } };
    finish(e, schedule, template, grid, String::new(), holes)
}

/// The holes of loads and stores. Queries, keys and values are loaded eight elements at a time. `results` are stored in
/// groups; without them, one element at a time.
fn loads_and_stores(
    e: &mut Emitter<'_>,
    a: &Attention<'_>,
    tile: FlashTile,
    results: Option<&vector_group::Results<'_>>,
) -> Result<Hole, CodegenError> {
    let (h, g) = (e.atom(a.h, "h"), e.atom(a.g, "g"));
    let (q, q_lines) = row(e, a.q, &h, "s")?;
    let q = q.word(e, "part * 8u");
    let staged = tile.staging().holes(e, a, &g)?;
    let (bias, t_lines) = e.scope(|e| {
        let (s, t) = (e.atom(a.s, "s"), e.atom(a.t, "t"));
        a.bias(e, [&h, &s, &t])
    })?;
    let store = e.scoped_lines(|e| {
        let s = e.atom(a.s, "s");
        let Some(results) = results else {
            let column = e.atom(a.width, "e");
            return a.store(e, [h, s, column]);
        };
        let buffers: Vec<usize> = results.outputs.iter().map(|output| e.result(*output as u32)).collect();
        results.emit(e, "piece", [h, s], &[(a.id, "found".into())], &buffers)
    })?;
    let [q_lines, t_lines, store] = [q_lines, t_lines, store].map(|lines| lines.join("\n"));
    Ok(context! { q_lines, q, t_lines, bias, store, staged })
}
