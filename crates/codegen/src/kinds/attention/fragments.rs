//! What attention kernels with cooperative matrices share: operand types, tiles of keys and values in shared memory, and
//! scores in registers.

use std::f64::consts::LOG2_E;

use minijinja::{Value as Hole, context};
use tallow_ir::access::neighbours;
use tallow_ir::index::{AtomDef, Atoms, Index};
use tallow_ir::matrix::{self, MatrixOperand};
use tallow_ir::{Graph, Op, Value};

use super::operands::{Attention, number, row};
use crate::blocks::operand;
use crate::emit::Emitter;
use crate::error::CodegenError;
use crate::glsl::Glsl;

/// Invocations per subgroup: two for each of 16 queries.
pub(super) const LANES: u32 = 2 * SIDE;

/// Rows and columns of a cooperative matrix.
pub(super) const SIDE: u32 = 16;

/// Registers of an invocation for addresses, counters and fragments of keys and values.
const OTHER_REGISTERS: u32 = 8;

/// The element type of the buffer whose contiguous rows `value [heads, rows, width]` is, if it is one of these.
pub(super) fn rows(body: &Graph, value: Value) -> Option<MatrixOperand> {
    let dims = body.ty(value).shape.dims();
    let mut atoms = Atoms::default();
    let (head, row) = (atoms.free(&dims[0]), atoms.free(&dims[1]));
    let probe = atoms.fresh(&dims[2], AtomDef::Free);
    let at = [head, row, atoms.index(probe)];
    let (leaf, _) = neighbours(body, value, &at, probe, operand::WIDE, &mut atoms)?;
    let is_of = |operand: &MatrixOperand| body.ty(leaf).dtype == operand.dtype();
    matches!(body.op(leaf), Op::Param { .. }).then(|| MatrixOperand::ALL.into_iter().find(is_of))?
}

/// The element type of queries, keys and values, and of softmax weights when they meet the values.
pub(super) fn operand_type(e: &Emitter<'_>, a: &Attention<'_>) -> Option<MatrixOperand> {
    let [q, k, v] = [a.q, a.k, a.v].map(|value| rows(e.body, value));
    let operand = q.filter(|_| q == k && k == v)?;
    let fits = matrix::holds_weights(e.body, e.body.node(a.id), operand);
    (fits && matrix::coopmat_size(e.caps, operand) == Some(SIDE)).then_some(operand)
}

/// Tiles of keys and values in shared memory.
#[derive(Clone, Copy)]
pub(super) struct Staging {
    /// Invocations that load a tile.
    pub lanes: u32,
    /// Keys of a tile.
    pub keys: u32,
}

impl Staging {
    /// Whether the 16-byte loads of a tile with rows of `width` elements divide evenly among the invocations.
    pub(super) fn divides_into_loads(self, width: u32) -> bool {
        (self.keys * width / 8).is_multiple_of(self.lanes)
    }

    /// The holes of the loads of a tile with rows of `width` elements. Counts of 16-byte words: `all` of the tile,
    /// `each` of an invocation, `across` of a row. For load `i` of an invocation: `row`, and the word `part` of that row.
    pub(super) fn loads(self, width: u32) -> Hole {
        let (lanes, across, all) = (self.lanes, width / 8, self.keys * width / 8);
        let [row, part] = match lanes.is_multiple_of(across) {
            true => [format!("i * {}u + lane / {across}u", lanes / across), format!("lane % {across}u")],
            false => ["/", "%"].map(|op| format!("(i * {lanes}u + lane) {op} {across}u")),
        };
        context! { all, each => all.div_ceil(lanes), across, row, part }
    }

    /// Shared memory in 16-byte words: a tile of keys, and tiles of keys and values together. Rows have `d` and `width`
    /// elements and one word of padding.
    pub(super) fn tiles(self, d: u32, width: u32) -> [u32; 2] {
        [self.keys * (d / 8 + 1), self.keys * (d / 8 + 1) + self.keys * (width / 8 + 1)]
    }

    /// The holes of the two tiles. Keys and values are loaded eight elements at a time, as `g`'s rows `t`.
    pub(super) fn holes(
        self,
        e: &mut Emitter<'_>,
        a: &Attention<'_>,
        g: &Index,
    ) -> Result<Vec<Hole>, CodegenError> {
        let (k, k_lines) = row(e, a.k, g, "t")?;
        let (v, v_lines) = row(e, a.v, g, "t")?;
        let [k, v] = [k, v].map(|row| row.word(e, "part * 8u"));
        let [k_lines, v_lines] = [k_lines, v_lines].map(|lines| lines.join("\n"));
        let (d, width) = (number(a.d), number(a.width));
        let at = self.tiles(d, width)[0];
        Ok(vec![
            context! { name => "keys", at => 0, lines => k_lines, load => k, ..self.loads(d) },
            context! { name => "values", at, lines => v_lines, load => v, ..self.loads(width) },
        ])
    }
}

/// Registers of an invocation with scores in registers, for so many blocks of 16 queries and of 16 keys. A lane has 8 of
/// the 256 elements of a matrix: 4 registers of 16-bit elements, 8 of sums. Weights that are not rounded are two matrices.
/// Each of a lane's rows has a limit, a base and a sum.
pub(super) fn register_count(a: &Attention<'_>, (blocks, keys): (u32, u32), staging: Staging) -> u32 {
    let (d, width) = (number(a.d) / SIDE, number(a.width) / SIDE);
    let weights = if a.attrs.round_weights { 4 } else { 8 };
    let loads = |across: u32| 4 * (2 * staging.keys * across).div_ceil(staging.lanes);
    let per_block = 4 * d + 8 * width + (8 + weights) * keys + 6;
    blocks * per_block + loads(d) + loads(width) + OTHER_REGISTERS
}

/// The holes of scores and weights in registers. A scale of ordinary magnitude is folded into the exponent. Sinks are not
/// scaled.
pub(super) fn score_holes(a: &Attention<'_>) -> Hole {
    let scale = a.attrs.scale.as_f64();
    let plain = a.attrs.softcap.is_none() && a.bias.is_none() && (1e-6..1e6).contains(&scale);
    let to_exponent = if plain { scale * LOG2_E } else { LOG2_E };
    context! {
        rounds => a.attrs.round_weights, plain, to_exponent => Glsl::Float.literal(to_exponent),
        head_room => Glsl::Float.literal(6.0 / to_exponent), sink_to_exponent => Glsl::Float.literal(LOG2_E),
    }
}
