//! What products and attention do: extents, and how a matmul's tiles load their operands.

use tallow_ir::{AttentionSide, DType, Graph, Op, Value};

use super::work::{WIDE, Work, adjacent, common};
use crate::instruction::Instruction;

/// The products of a kernel.
pub(super) struct Product {
    /// Batch, columns of all products together, and K.
    pub batch: f64,
    pub n: f64,
    pub k: f64,
    /// The largest number of rows and the largest K, which kernels are made for.
    pub most_m: f64,
    most_k: f64,
    /// How tiles of the left and of the right operand are loaded.
    pub loads: [Load; 2],
    /// Whether an operand is unpacked from blocks, and whether these refer to a codebook.
    pub blocks: bool,
    pub codebook: bool,
}

impl Product {
    /// `None` for a kernel without products.
    pub fn of(work: &Work<'_>) -> Option<Product> {
        let mut all =
            work.nodes(|op| matches!(op, Op::Matmul)).map(|(_, node)| (node.operands[0], node.operands[1]));
        let (lhs, rhs) = all.next()?;
        let last = |value: Value, from_end: usize| {
            work.extents(value).iter().rev().nth(from_end).copied().unwrap_or(1.0)
        };
        let n = last(rhs, 0) + all.map(|(_, rhs)| last(rhs, 0)).sum::<f64>();
        let k = last(lhs, 0);
        let most = |from_end: usize| {
            work.body
                .ty(lhs)
                .shape
                .dims()
                .iter()
                .rev()
                .nth(from_end)
                .map_or(1.0, |dim| dim.max_value() as f64)
        };
        let batch = |value: Value| work.extents(value).iter().rev().skip(2).product::<f64>();
        let dequantized = work.nodes(|op| matches!(op, Op::Dequantize(_)));
        let dtypes: Vec<DType> = dequantized.map(|(_, node)| work.body.ty(node.operands[0]).dtype).collect();
        let has_codebook =
            |dtype: &DType| matches!(dtype, DType::Block(format) if format.codebook().is_some());
        Some(Product {
            batch: batch(lhs).max(batch(rhs)),
            n,
            k,
            most_m: most(1),
            most_k: most(0),
            loads: [lhs, rhs].map(|operand| load(work, operand)),
            blocks: !dtypes.is_empty(),
            codebook: dtypes.iter().any(has_codebook),
        })
    }
}

impl Product {
    /// The K slices that compute, of so many for the largest K.
    pub fn slices(&self, slices: u32) -> f64 {
        let most = f64::from(slices.max(1));
        if self.k == self.most_k {
            most
        } else {
            (self.k * most / self.most_k.max(1.0)).ceil().clamp(1.0, most)
        }
    }
}

/// How elements of a tile are loaded from memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Load {
    /// 16 bytes at a time.
    Vector,
    /// One by one.
    Scalar,
    /// One by one from sliding windows or padding, where chunks of a tile lie in one row of the operand.
    Window,
    /// The same where each element has a row of its own to find.
    OddWindow,
}

/// What lies between an operand of a product and memory.
struct Path {
    /// Adjacent elements that are adjacent in memory, too, and those of the param itself.
    adjacent: u64,
    of_param: u64,
    /// Whether windows or padding are on the way.
    windowed: bool,
    /// Whether anything but casts and views is computed.
    computed: bool,
}

fn load(work: &Work<'_>, operand: Value) -> Load {
    let path = path(work, operand);
    // Elements of a row that a tile loads together, with one index.
    let chunk = match work.schedule.instruction {
        Some(Instruction::Coopmat | Instruction::Coopmat2) => WIDE,
        None | Some(Instruction::Fma | Instruction::Dot4) => 4,
    };
    match (path.adjacent >= WIDE, path.windowed) {
        (true, true) => Load::Vector,
        (true, false) if !path.computed => Load::Vector,
        (_, false) => Load::Scalar,
        (false, true) if path.of_param < chunk => Load::OddWindow,
        (false, true) => Load::Window,
    }
}

fn path(work: &Work<'_>, value: Value) -> Path {
    let node = work.body.node(value.node);
    if let Op::Param { ty, .. } = &node.op {
        let adjacent = adjacent(ty);
        return Path { adjacent, of_param: adjacent, windowed: false, computed: false };
    }
    // An index table is read once for a row.
    let read = if matches!(node.op, Op::Gather { .. }) { &node.operands[..1] } else { &node.operands[..] };
    let below = read.iter().map(|operand| path(work, *operand)).fold(
        Path { adjacent: WIDE, of_param: WIDE, windowed: false, computed: false },
        |a, b| Path {
            adjacent: a.adjacent.min(b.adjacent),
            of_param: a.of_param.min(b.of_param),
            windowed: a.windowed || b.windowed,
            computed: a.computed || b.computed,
        },
    );
    let at = |axis: usize, aligned: u64| match is_innermost(work.body, node.operands[0], axis) {
        true => below.adjacent.min(aligned),
        false => below.adjacent,
    };
    match &node.op {
        Op::Cast(_)
        | Op::Dequantize(_)
        | Op::Quantize(_)
        | Op::Reshape(_)
        | Op::Permute(_)
        | Op::Broadcast(_)
        | Op::Gather { .. } => below,
        Op::Slice { axis, start, .. } => Path { adjacent: at(*axis, common(start)), ..below },
        Op::Pad { axis, before, .. } => Path { adjacent: at(*axis, common(before)), windowed: true, ..below },
        Op::Window { axis, .. } => Path { adjacent: at(*axis, 1), windowed: true, ..below },
        Op::Flip { axis } | Op::Concat { axis } => Path { adjacent: at(*axis, 1), ..below },
        Op::Const(_) | Op::Iota { .. } | Op::DimValue { .. } | Op::Scalar { .. } => below,
        Op::Input { .. }
        | Op::Weight { .. }
        | Op::State { .. }
        | Op::Param { .. }
        | Op::Elementwise(_)
        | Op::Reduce { .. }
        | Op::Matmul
        | Op::Scan { .. }
        | Op::ArgSort { .. }
        | Op::MergeRuns { .. }
        | Op::Scatter(_)
        | Op::IndexAdd
        | Op::Attention(_)
        | Op::AttentionGrad(..)
        | Op::StateUpdate { .. }
        | Op::Custom(_)
        | Op::Fusion(_) => {
            let adjacent = if below.adjacent < WIDE { 1 } else { WIDE };
            Path { adjacent, computed: true, ..below }
        }
    }
}

/// Whether axes after this one have a single element.
fn is_innermost(body: &Graph, value: Value, axis: usize) -> bool {
    body.ty(value).shape.dims().iter().skip(axis + 1).all(|dim| dim.is(1))
}

/// The attention of a kernel.
pub(super) struct Scores {
    /// Heads and queries.
    pub heads: f64,
    pub queries: f64,
    /// Keys that a query is multiplied with in one slice, on average.
    pub keys: f64,
    /// Slices of the keys.
    pub slices: f64,
    /// Multiply-adds of a query and a key.
    pub width: f64,
}

impl Scores {
    /// `None` for a kernel without attention.
    pub fn of(work: &Work<'_>) -> Option<Scores> {
        let (_, node) = work.nodes(|op| matches!(op, Op::Attention(_) | Op::AttentionGrad(..))).next()?;
        let (Op::Attention(attention) | Op::AttentionGrad(attention, _)) = &node.op else { return None };
        let [q, k, v] = [0, 1, 2].map(|i| work.extents(node.operands[i]));
        let ([heads, queries, of_key], [groups, keys, _], [.., of_value]) = (&q[..], &k[..], &v[..]) else {
            return None;
        };
        // The gradient of keys walks over the queries of the heads that share a key head.
        let [heads, queries, keys] = match &node.op {
            Op::AttentionGrad(_, AttentionSide::Keys) => [groups, keys, &(queries * heads / groups.max(1.0))],
            _ => [heads, queries, keys],
        };
        let slices = work.slices(*keys);
        // A causal tile reads the keys up to its last query: half of all keys on average, and half of a tile.
        let tile = f64::from(work.schedule.tile.m.max(1)) / queries.max(1.0);
        let seen = if attention.causal { 0.5 + 0.5 * tile.min(1.0) } else { 1.0 };
        Some(Scores {
            heads: *heads,
            queries: *queries,
            keys: keys / slices * seen,
            slices,
            width: match &node.op {
                // Scores twice, and the gradients of weights and queries.
                Op::AttentionGrad(_, AttentionSide::Queries) => 3.0 * of_key + of_value,
                // Scores, and the gradients of weights, keys and values.
                Op::AttentionGrad(_, AttentionSide::Keys) => 2.0 * (of_key + of_value),
                _ => of_key + of_value,
            },
        })
    }
}
