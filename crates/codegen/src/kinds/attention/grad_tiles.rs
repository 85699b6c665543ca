//! Gradients of attention with cooperative matrices: 16 or 32 rows of one side per subgroup, tiles of the other side staged
//! in shared memory, scores and their gradients in registers. Requires that the fragment layout is known.
//!
//! Rows are queries with the gradients of their results, or keys with their values.

use minijinja::{Value as Hole, context};
use tallow_ir::form::SingleForm;
use tallow_ir::index::Index;
use tallow_ir::matrix::{self, MatrixOperand};
use tallow_ir::{AttentionSide, DType, DeviceCaps, Dim, Shape, Value, cost};

use super::fragments::{LANES, SIDE, Staging, rows, score_holes};
use super::grad::Gradient;
use super::operands::{Eight, number};
use crate::assemble::finish;
use crate::blocks::coopmat::{element_type, matrix_extensions};
use crate::blocks::vector_group;
use crate::emit::Emitter;
use crate::error::CodegenError;
use crate::glsl::Glsl;
use crate::kernel::Kernel;
use crate::schedule::{Algorithm, Schedule, Tile};

/// Subgroups per workgroup; all share the tiles of the other side.
const SUBGROUPS: u32 = 4;

/// Registers of an invocation for addresses, counters and fragments of the other side.
const OTHER_REGISTERS: u32 = 16;

/// The tile of a workgroup.
#[derive(Clone, Copy, PartialEq, Eq)]
struct GradTile {
    /// Blocks of 16 rows per subgroup.
    blocks: u32,
    /// Rows of the other side per tile.
    others: u32,
}

impl GradTile {
    /// The most rows first: each fragment that is loaded from shared memory is used by all blocks of a subgroup.
    const ALL: [GradTile; 3] = [
        GradTile { blocks: 2, others: 16 },
        GradTile { blocks: 1, others: 32 },
        GradTile { blocks: 1, others: 16 },
    ];

    fn rows(self) -> u32 {
        SUBGROUPS * self.blocks * SIDE
    }

    fn staging(self) -> Staging {
        Staging { lanes: SUBGROUPS * LANES, keys: self.others }
    }

    /// Registers of an invocation. A lane has 8 of the 256 elements of a matrix: 4 registers of 16-bit elements, 8 of sums.
    fn registers(self, side: AttentionSide, d: u32, width: u32) -> u32 {
        let (d, width, others) = (d / SIDE, width / SIDE, self.others / SIDE);
        let (values, weights) = match side {
            AttentionSide::Queries => (0, 0),
            AttentionSide::Keys => (8 * width, 4),
        };
        let per_block = 4 * (d + width) + 8 * d + values + (16 + 4 + weights) * others + 8;
        let staging = self.staging();
        let loads = |across: u32| 4 * (2 * staging.keys * across).div_ceil(staging.lanes);
        self.blocks * per_block + loads(d) + loads(width) + OTHER_REGISTERS
    }

    /// Shared memory in 16-byte words: of one subgroup, and in total. Two tiles of the other side alias the subgroups' rows
    /// and results.
    fn words(self, d: u32, width: u32) -> [u32; 2] {
        let [_, tile] = self.staging().tiles(d, width);
        let own = SIDE * (d.max(width) / 8 + 1);
        let results = SIDE * (columns(d).max(columns(width)) / 4 + 1);
        let per_subgroup = own.max(results);
        [per_subgroup, (2 * tile).max(SUBGROUPS * per_subgroup)]
    }

    fn fits(self, caps: &DeviceCaps, gradient: &Gradient<'_>) -> bool {
        let a = &gradient.attention;
        let (d, width) = (number(a.d), number(a.width));
        let [_, words] = self.words(d, width);
        // Tiles, and of each of their queries two numbers.
        16 * words + 16 * self.others <= caps.shared_memory_bytes
            && self.registers(gradient.side, d, width)
                <= cost::registers_per_invocation(caps, SUBGROUPS * LANES)
            && gradient.grid_by_heads(caps, self.rows()).is_ok()
    }

    fn schedule(self) -> Schedule {
        Schedule {
            tile: Tile { m: self.rows(), n: self.others, k: 0 },
            ..Schedule::new(Algorithm::FlashAttentionGrad, SUBGROUPS * LANES)
        }
    }
}

/// Columns of results that are staged in shared memory at once, a divisor of `width`.
fn columns(width: u32) -> u32 {
    [64, 48, 32].into_iter().find(|columns| width.is_multiple_of(*columns)).unwrap_or(SIDE)
}

/// The element type of all matrices.
fn operand_type(e: &Emitter<'_>, gradient: &Gradient<'_>) -> Option<MatrixOperand> {
    let a = &gradient.attention;
    let all = [a.q, a.k, a.v, gradient.g].map(|value| rows(e.body, value));
    let operand = all[0].filter(|first| all.iter().all(|one| *one == Some(*first)))?;
    // What is rounded to the type of the gradient must fit the matrices.
    let is_rounded = e.body.ty(gradient.g).dtype == operand.dtype();
    (is_rounded && matrix::coopmat_size(e.caps, operand) == Some(SIDE)).then_some(operand)
}

/// Whether this kernel supports a gradient of attention.
pub(crate) fn supports(e: &Emitter<'_>, form: &SingleForm) -> bool {
    let Ok(gradient) = Gradient::of(e, form) else { return false };
    let (a, caps) = (&gradient.attention, e.caps);
    let divides = |dim: &Dim| dim.as_const().is_some_and(|d| d > 0 && d % i64::from(SIDE) == 0);
    caps.coopmat_fragment_layout
        && caps.subgroup_shuffle
        && caps.scheduled_subgroup_size() == LANES
        && caps.max_workgroup_invocations >= SUBGROUPS * LANES
        && a.wide == DType::F32
        && divides(a.d)
        && divides(a.width)
        && operand_type(e, &gradient).is_some()
        && a.bias.is_none_or(|b| Glsl::of(e.body.ty(b).dtype, caps) == Some(Glsl::Float))
        && !schedules(e, form).is_empty()
}

/// The tuning candidates, the default first.
pub(crate) fn schedules(e: &Emitter<'_>, form: &SingleForm) -> Vec<Schedule> {
    let Ok(gradient) = Gradient::of(e, form) else { return vec![] };
    let fits = |tile: &GradTile| tile.fits(e.caps, &gradient);
    GradTile::ALL.into_iter().filter(fits).map(GradTile::schedule).collect()
}

/// Generates the kernel for one of [`schedules`].
pub(crate) fn kernel(
    mut e: Emitter<'_>,
    form: &SingleForm,
    schedule: Schedule,
) -> Result<Kernel, CodegenError> {
    let mut gradient = Gradient::of(&e, form)?;
    // A wider window masks nothing, and could overflow 32 bits.
    gradient.attention.attrs.window = gradient.attention.attrs.window.map(|w| w.min(1 << 30));
    let refused =
        || CodegenError::NoSuchSchedule { kind: "gradient of attention", schedule: schedule.to_string() };
    let operand = operand_type(&e, &gradient).ok_or_else(refused)?;
    let tile = GradTile::ALL.into_iter().find(|tile| tile.schedule().tile == schedule.tile);
    let tile = tile.ok_or_else(refused)?;
    let a = &gradient.attention;
    let common = a.holes(&mut e, "value")?;
    let statements = statements(&mut e, &gradient, tile)?;
    let grid = gradient.grid_by_heads(e.caps, tile.rows())?;
    e.extensions.extend(matrix_extensions(operand));
    e.extensions.extend(["GL_KHR_shader_subgroup_shuffle"]);
    let (d, width) = (number(a.d), number(a.width));
    let ([values0, tile_words], [per_subgroup, words]) =
        (tile.staging().tiles(d, width), tile.words(d, width));
    let (keys, others) = match gradient.side {
        AttentionSide::Queries => (false, a.t),
        AttentionSide::Keys => (true, a.s),
    };
    let ragged = others.as_const().is_none_or(|n| n % i64::from(tile.others) != 0);
    let holes = context! {
        element => context! { name => operand.dtype().name(), ty => element_type(operand) },
        keys, subgroups => SUBGROUPS, blocks => tile.blocks, others => tile.others, rows => tile.rows(), ragged,
        masked => ragged || a.attrs.causal || a.attrs.window.is_some(),
        values0, tile_words, per_subgroup, words, infinity => Glsl::Float.literal(f64::INFINITY),
        log2_e => Glsl::Float.literal(std::f64::consts::LOG2_E), ln_2 => Glsl::Float.literal(std::f64::consts::LN_2),
        ..context! { ..score_holes(a), ..context! { ..statements, ..common } }
    };
    finish(e, schedule, "attention_grad_tiles.comp", grid, String::new(), holes)
}

/// Row `[head, row]` of an operand: the lines that find it, and the load of eight elements as a word.
fn word(e: &mut Emitter<'_>, value: Value, at: [(&Dim, &str); 2]) -> Result<Hole, CodegenError> {
    let (row, lines) = e.scope(|e| {
        let at = at.map(|(extent, name)| e.atom(extent, name));
        Eight::of(e, value, &at)
    })?;
    let (load, width) = (row.word(e, "part * 8u"), number(&e.body.ty(value).shape.dims()[2]));
    Ok(context! { lines => lines.join("\n"), load, width })
}

/// The holes of loads and stores.
fn statements(e: &mut Emitter<'_>, gradient: &Gradient<'_>, tile: GradTile) -> Result<Hole, CodegenError> {
    let a = &gradient.attention;
    let (of_query, of_key) = ([(a.h, "h"), (a.s, "s")], [(a.g, "g"), (a.t, "t")]);
    let queries = [word(e, a.q, of_query)?, word(e, gradient.g, of_query)?];
    let keys = [word(e, a.k, of_key)?, word(e, a.v, of_key)?];
    let is_of_keys = gradient.side == AttentionSide::Keys;
    let (own, other) = if is_of_keys { (keys, queries) } else { (queries, keys) };
    let at = tile.staging().tiles(number(a.d), number(a.width))[0];
    let [first, second] = other;
    let staged = vec![
        context! { name => "first", at => 0, ..context! { ..tile.staging().loads(number(a.d)), ..first } },
        context! { name => "second", at, ..context! { ..tile.staging().loads(number(a.width)), ..second } },
    ];
    let (bias, bias_lines) = a.bias_at(e)?;
    let (means, means_lines) = gradient.of_query(e, gradient.means)?;
    let (sums, sums_lines) = match gradient.sums {
        Some(sums) => gradient.of_query(e, sums)?,
        None => (String::new(), vec![]),
    };
    let row_lines = [means_lines, sums_lines].concat().join("\n");
    let mut stores = vec![];
    let results: &[(u32, [(&Dim, &str); 2])] =
        if is_of_keys { &[(0, of_key), (1, of_key)] } else { &[(0, of_query)] };
    for (result, at) in results {
        stores.push(stored(e, gradient, *result, *at)?);
    }
    let store_sums = if is_of_keys { vec![] } else { gradient.store(e, 1, &of_query)? };
    Ok(context! {
        own_rows => own.to_vec(), staged, bias, bias_lines => bias_lines.join("\n"), means, of_sums => sums, row_lines, stores,
        store_sums => store_sums.join("\n"),
    })
}

/// The stores of a result's rows in groups: columns that are staged at once, elements of a group, and the lines.
fn stored(
    e: &mut Emitter<'_>,
    gradient: &Gradient<'_>,
    result: u32,
    at: [(&Dim, &str); 2],
) -> Result<Hole, CodegenError> {
    let id = gradient.attention.id;
    let shape: Shape = e.body.node(id).types[result as usize].shape.clone();
    let outputs = [result as usize];
    let results = vector_group::Results { shape: &shape, outputs: &outputs };
    let size = results.size(e.body);
    let lines = e.scoped_lines(|e| {
        let at: [Index; 2] = at.map(|(extent, name)| e.atom(extent, name));
        let mut buffers = vec![0; result as usize + 1];
        buffers[result as usize] = e.result(result);
        results.emit(e, "piece", at, &[(id, "found".into())], &buffers)
    })?;
    let width = number(&shape.dims()[2]);
    Ok(context! { size, lines => lines.join("\n"), width, columns => columns(width) })
}
