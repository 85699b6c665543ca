//! Flash attention of many queries with cooperative matrices: 16 or 32 queries per subgroup, tiles of keys staged in
//! shared memory, online softmax.
//!
//! `attention_flash_shared.comp` passes scores through shared memory. Where the fragment layout is known,
//! `attention_flash_registers.comp` leaves them in registers.

use std::f64::consts::LOG2_E;

use minijinja::context;
use tallow_ir::access::neighbours;
use tallow_ir::form::AttentionForm;
use tallow_ir::index::{AtomDef, Atoms, Index};
use tallow_ir::{DType, DeviceCaps, Dim, ElementwiseOp, Graph, Op, Value, cost, matrix};

use super::operands::store;
use crate::assemble::{Parts, finish, whole};
use crate::blocks::coopmat::matrix_extensions;
use crate::blocks::{operand, vector_group};
use crate::emit::Emitter;
use crate::kernel::{CodegenError, Count, Kernel};
use crate::library as lib;
use crate::scalar::{self, Glsl};
use crate::schedule::{Algorithm, Epilogue, Schedule, Tile};

/// Queries per workgroup.
const QUERIES: u32 = SUBGROUPS * SIDE;

/// Subgroups per workgroup at 16 queries each; all share the tiles of keys and values.
const SUBGROUPS: u32 = 8;

/// Invocations per subgroup: two for each of its queries.
const LANES: u32 = 2 * SIDE;

/// Rows and columns of a cooperative matrix.
const SIDE: u32 = 16;

/// Keys per tile.
const KEYS: u32 = 32;

/// Widest head and value; a subgroup holds its queries and accumulators in registers.
const WIDEST: i64 = 128;

/// Stride between rows of scores, in 16-byte words: 32 f32 scores, and one word of padding against bank conflicts.
const STRIDE: u32 = KEYS / 4 + 1;

/// Whether `value [heads, rows, width]` is an f16 buffer whose rows are contiguous.
fn rows_of_f16(body: &Graph, value: Value) -> bool {
    let dims = body.ty(value).shape.dims();
    let mut atoms = Atoms::default();
    let (head, row) = (atoms.free(&dims[0]), atoms.free(&dims[1]));
    let probe = atoms.fresh(&dims[2], AtomDef::Free);
    let at = [head, row, atoms.index(probe)];
    let leaf = neighbours(body, value, &at, probe, operand::WIDE, &mut atoms);
    leaf.is_some_and(|(leaf, _)| {
        body.ty(leaf).dtype == DType::F16 && matches!(body.op(leaf), Op::Param { .. })
    })
}

/// Shared memory in 16-byte words: tiles of keys and values, and for each subgroup its scores and rescaling factors.
fn words(d: u32, e: u32) -> u32 {
    KEYS * (d / 8 + 1) + KEYS * (e / 8 + 1) + SUBGROUPS * (SIDE * STRIDE + 64)
}

/// Tile sizes of `attention_flash_registers.comp`.
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
    /// For many workgroups: each fragment loaded from shared memory is multiplied twice, and two workgroups run per
    /// core. This needs all registers, so it is not used where the softmax weights are two matrices (unrounded
    /// weights).
    const LARGE: FlashTile = FlashTile { subgroups: 4, blocks: 2, keys: 16 };

    /// Otherwise: more subgroups for the same queries.
    const SMALL: FlashTile = FlashTile { subgroups: SUBGROUPS, blocks: 1, keys: 32 };

    /// Large if most cores get two workgroups and weights are rounded, so that they are one matrix.
    fn of(caps: &DeviceCaps, heads: &Dim, queries: &Dim, rounds: bool) -> FlashTile {
        let workgroups = heads.max_value().saturating_mul(queries.max_value()) / i64::from(QUERIES);
        if rounds && workgroups >= 2 * i64::from(cost::workgroups_to_mostly_fill(caps)) {
            FlashTile::LARGE
        } else {
            FlashTile::SMALL
        }
    }

    /// Whether a tile of rows of `width` elements divides evenly into 16-byte loads among the lanes.
    fn fills(self, width: u32) -> bool {
        (self.keys * width / 8).is_multiple_of(self.subgroups * LANES)
    }

    /// The row of a tile, and the group of eight elements in that row, of a lane's load `i`.
    fn piece(self, width: u32) -> [String; 2] {
        let (lanes, pieces) = (self.subgroups * LANES, width / 8);
        if lanes.is_multiple_of(pieces) {
            return [format!("i * {}u + lane / {pieces}u", lanes / pieces), format!("lane % {pieces}u")];
        }
        ["/", "%"].map(|op| format!("(i * {lanes}u + lane) {op} {pieces}u"))
    }

    /// Columns of results that are staged in shared memory at once.
    fn columns(e: u32) -> u32 {
        [64, 48, 32].into_iter().find(|columns| e.is_multiple_of(*columns)).unwrap_or(SIDE)
    }

    /// Shared memory in 16-byte words: a tile of keys and values, the space of one subgroup for queries and results in
    /// the same memory, and the total.
    fn words(self, d: u32, e: u32) -> [u32; 3] {
        let tile = self.keys * (d / 8 + 1) + self.keys * (e / 8 + 1);
        let own = SIDE * (d / 8 + 1).max(FlashTile::columns(e) / 4 + 1);
        [tile, own, (2 * tile).max(self.subgroups * own)]
    }
}

/// Whether this kernel supports an attention.
pub(crate) fn fits(e: &Emitter<'_>, form: &AttentionForm) -> bool {
    let node = e.body.node(form.node);
    let (q, v) = (e.body.ty(node.operands[0]).shape.dims(), e.body.ty(node.operands[2]).shape.dims());
    let side = i64::from(SIDE);
    let width = |dim: &Dim| dim.as_const().filter(|d| *d > 0 && d % side == 0 && *d <= WIDEST);
    let (Some(d), Some(width)) = (width(&q[2]), width(&v[2])) else { return false };
    let caps = e.caps;
    let (d, width) = (d as u32, width as u32);
    matrix::side(caps) == Some(SIDE)
        && caps.subgroup_shuffle
        && caps.scheduled_subgroup_size() == LANES
        && caps.max_workgroup_invocations >= SUBGROUPS * LANES
        && 16 * words(d, width) <= caps.shared_memory_bytes
        && q[1].max_value() >= side
        && q[1].as_const().is_none_or(|s| s >= side)
        && matches!(node.types[0].dtype, DType::F32 | DType::F16)
        && node.operands.get(3).is_none_or(|b| Glsl::of(e.body.ty(*b).dtype, caps) == Some(Glsl::Float))
        && node.operands[..3].iter().all(|v| rows_of_f16(e.body, *v))
}

/// The tuning candidates, the cost model's default first: scores in registers where the fragment layout is known.
/// Scores in shared memory remain a candidate there. The other kernel needs all registers, so its speed depends on the
/// driver.
pub(crate) fn schedules(e: &Emitter<'_>, form: &AttentionForm) -> Vec<Schedule> {
    let node = e.body.node(form.node);
    let Op::Attention(attrs) = node.op else { return vec![] };
    let queries = e.body.ty(node.operands[0]).shape.dims();
    let rows = FlashTile::of(e.caps, &queries[0], &queries[1], attrs.round_weights);
    let schedule = |epilogue, keys, subgroups| Schedule {
        tile: Tile { m: QUERIES, n: keys, k: 0 },
        epilogue,
        ..Schedule::new(Algorithm::FlashAttention, subgroups * LANES)
    };
    let shared = schedule(Epilogue::Shared, KEYS, SUBGROUPS);
    let registers = schedule(Epilogue::Registers, rows.keys, rows.subgroups);
    let width = |v: Value| e.body.ty(v).shape.dims()[2].max_value() as u32;
    let (d, e_width) = (width(node.operands[0]), width(node.operands[2]));
    let words = FlashTile::LARGE.words(d, e_width)[2].max(FlashTile::SMALL.words(d, e_width)[2]);
    match e.caps.coopmat_fragment_layout && 16 * words <= e.caps.shared_memory_bytes {
        true => vec![registers, shared],
        false => vec![shared],
    }
}

pub(crate) fn kernel(
    mut e: Emitter<'_>,
    form: &AttentionForm,
    schedule: Schedule,
) -> Result<Kernel, CodegenError> {
    let node = e.body.node(form.node);
    let Op::Attention(attrs) = node.op else {
        return Err(CodegenError::Node(e.body.node_text(form.node)));
    };
    let [q, k, v] = [node.operands[0], node.operands[1], node.operands[2]];
    let (qs, vs) = (e.body.ty(q).shape.clone(), e.body.ty(v).shape.clone());
    let [h, s, d, t, width] = [&qs.dims()[0], &qs.dims()[1], &qs.dims()[2], &vs.dims()[1], &vs.dims()[2]];
    let number = |x: &Dim| x.as_const().unwrap_or(1) as u32;
    let (t_text, s_text) = (e.dim(t), e.dim(s));
    let (hi, gi) = (e.atom(h, "h"), e.atom(&vs.dims()[0], "g"));
    // The lines that load eight elements of a row, inside the loop over rows.
    let mut piece = |value: Value, head: &Index, name: &str, extent: &Dim| -> Result<_, CodegenError> {
        e.open();
        let row = e.atom(extent, name);
        let probe = e.atoms.fresh(&e.body.ty(value).shape.dims()[2].clone(), AtomDef::Free);
        let at = [head.clone(), row, e.atoms.index(probe)];
        let found = operand::wide(&mut e, value, &at, probe);
        let (buffer, offset) = found.ok_or_else(|| CodegenError::Node(e.body.node_text(value.node)))?;
        let offset = e.index(&offset)?.text;
        let load = format!("wide{}(({offset} + part * 8u) >> 3)", e.buffers[buffer].binding);
        Ok((e.close().join("\n"), load))
    };
    let (q_lines, query) = piece(q, &hi, "s", s)?;
    let (k_lines, key) = piece(k, &gi, "t", t)?;
    let (v_lines, value) = piece(v, &gi, "t", t)?;
    e.open();
    let (si, ti) = (e.atom(s, "s"), e.atom(t, "t"));
    let bias = match node.operands.get(3) {
        Some(bias) => {
            let extents = e.body.ty(*bias).shape.dims().to_vec();
            let repeated =
                |(extent, at): (&Dim, &Index)| if extent.is(1) { Index::default() } else { at.clone() };
            let at: Vec<Index> = extents.iter().zip([&hi, &si, &ti]).map(repeated).collect();
            e.value(*bias, &at)?.text
        }
        None => String::new(),
    };
    let t_lines = e.close().join("\n");

    let by_rows = schedule.epilogue == Epilogue::Registers;
    let shape = node.types[0].shape.clone();
    let outputs: Vec<usize> = (0..e.body.outputs().len()).collect();
    let results = vector_group::Results { shape: &shape, outputs: &outputs };
    let size = results.size(e.body);
    e.open();
    let si = e.atom(s, "s");
    let store = if by_rows {
        let buffers: Vec<usize> = outputs.iter().map(|output| e.result(*output as u32)).collect();
        results.store(&mut e, ("piece", size), [hi, si], &[(form.node, "found".into())], &buffers)?
    } else {
        let ei = e.atom(width, "e");
        store(&mut e, form, DType::F32, [hi, si, ei])?
    };

    let rows = FlashTile::of(e.caps, h, s, attrs.round_weights);
    let mut call =
        |op: ElementwiseOp, x: String| scalar::elementwise(op, Glsl::Float, DType::F32, &[x], e.uses());
    let cap = attrs.softcap.map(|c| Glsl::Float.literal(c.as_f64())).unwrap_or_default();
    let uncapped = if by_rows { "value" } else { "score[c]" };
    let capped = attrs.softcap.map(|_| call(ElementwiseOp::Tanh, format!("{uncapped} / {cap}")));
    let [exp_score, exp_top] = ["score[c]", "top"].map(|x| call(ElementwiseOp::Exp, format!("{x} - now")));
    if !by_rows {
        // The template itself calls it.
        e.uses().add(lib::MAX_OF);
    }
    let limits = e.caps.max_workgroup_count;
    let grid = [
        Count { value: s.clone(), per: QUERIES, limit: limits[0] },
        Count { value: h.clone(), per: 1, limit: limits[1] },
        Count::constant(1),
    ];
    whole("attention", &grid)?;
    for extension in matrix_extensions() {
        e.extensions.insert(extension);
    }
    e.extensions.insert("GL_KHR_shader_subgroup_shuffle");
    e.extensions.insert("GL_KHR_shader_subgroup_vote");
    // No sequence has more keys than this.
    let window = attrs.window.map(|w| w.min(1 << 30));
    let ragged = t.as_const().is_none_or(|t| t % i64::from(rows.keys) != 0);
    // Loops over tiles, and whether each masks keys.
    let phases: &[bool] = match (window.is_some(), attrs.causal || ragged) {
        (true, _) => &[true],
        (false, true) => &[false, true],
        (false, false) => &[false],
    };
    let (d, width) = (number(d), number(width));
    let both = context! {
        hidden => Glsl::Float.literal(f64::NEG_INFINITY), d => d, e => width, t => t_text, s_extent => s_text,
        causal => attrs.causal, window => window, cap => cap, capped => capped,
        group => number(h) / number(&vs.dims()[0]).max(1), scale => Glsl::Float.literal(attrs.scale.as_f64()),
        q_lines => q_lines, q => query, k_lines => k_lines, k => key, v_lines => v_lines, v => value,
        t_lines => t_lines, bias => bias, store => store,
    };
    let own = if by_rows {
        let scale = attrs.scale.as_f64();
        // A scale of ordinary magnitude is folded into the exponent.
        let plain = attrs.softcap.is_none() && node.operands.len() == 3 && (1e-6..1e6).contains(&scale);
        let to_exponent = if plain { scale * LOG2_E } else { LOG2_E };
        let [tile, own, words] = rows.words(d, width);
        let pieces = |width: u32| (rows.keys * width / 8).div_ceil(rows.subgroups * LANES);
        // Whether a lane's loads may go past the last key.
        let clamped = ragged || window.is_some() || !rows.fills(d) || !rows.fills(width);
        let ([k_row, k_part], [v_row, v_part]) = (rows.piece(d), rows.piece(width));
        context! {
            subgroups => rows.subgroups, blocks => rows.blocks, keys => rows.keys, phases => phases.to_vec(),
            k_row => k_row, k_part => k_part, v_row => v_row, v_part => v_part,
            k_pieces => pieces(d), v_pieces => pieces(width), clamped => clamped,
            rounds => attrs.round_weights, plain => plain, to_exponent => Glsl::Float.literal(to_exponent),
            head_room => Glsl::Float.literal(6.0 / to_exponent), words => words, tile => tile, own => own,
            values0 => rows.keys * (d / 8 + 1), columns => FlashTile::columns(width), size => size,
        }
    } else {
        context! {
            exp_score, exp_top, keys => KEYS, subgroups => SUBGROUPS,
            stride => STRIDE, words => words(d, width), values0 => KEYS * (d / 8 + 1),
            own0 => KEYS * (d / 8 + 1) + KEYS * (width / 8 + 1), own => SIDE * STRIDE + 64,
            factors => SIDE * STRIDE,
        }
    };
    let parts = Parts {
        schedule,
        template: if by_rows { "attention_flash_registers.comp" } else { "attention_flash_shared.comp" },
        grid,
        functions: String::new(),
        holes: context! { ..both, ..own },
    };
    finish(e, parts)
}
