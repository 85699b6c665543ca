//! Integer dot products: which matmuls can multiply packed 8-bit integers instead of floats.
//!
//! The left operand must have been rounded to blocks of [`ACTIVATIONS`], 32 signed bytes `x` with one scale `d`. Over
//! a block of weights `w = s q + o` the product is then `d (s sum(q x) + o sum(x))`: sums of integers, which dot
//! product instructions compute exactly, four products at a time.

mod row_factor;

use crate::access::inner_runs;
use crate::caps::DeviceCaps;
use crate::dtype::{DType, Format};
use crate::form::{ContractionForm, MATVEC_MAX_ROWS, whole_param};
use crate::graph::{Graph, GraphError, NodeId, Value};
use crate::op::Op;
use crate::rewrite::rebuild;

/// What activations are rounded to.
pub const ACTIVATIONS: Format = Format::Q8_1;

/// Elements that share a scale of the activations.
pub const BLOCK: i64 = 32;

/// Invocations that round a block together, four elements each.
pub const LANES: u32 = 8;

/// What the weights are that are unpacked at once, besides bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packing {
    /// 32 with one scale: `w = s q`.
    Scale,
    /// 32 with a scale and an offset: `w = s q + o`.
    Offset,
    /// 32, a scale and an offset for each half.
    Halves,
    /// Two neighbouring groups of 32, which share the bytes that hold them, a scale and an offset for each.
    Pairs,
    /// Of 128 weights the first and the third group of 32, or the second and the fourth, which share bytes; a scale and an
    /// offset for each half of a group.
    Quarters,
}

impl Packing {
    /// Neighbouring weights that are unpacked whole, at once or in two parts.
    pub fn run(self) -> i64 {
        match self {
            Packing::Scale | Packing::Offset | Packing::Halves => BLOCK,
            Packing::Pairs => 2 * BLOCK,
            Packing::Quarters => 4 * BLOCK,
        }
    }

    /// Weights that are unpacked at once.
    pub fn elements(self) -> i64 {
        match self {
            Packing::Scale | Packing::Offset | Packing::Halves => BLOCK,
            Packing::Pairs | Packing::Quarters => 2 * BLOCK,
        }
    }
}

/// As what kernels unpack weights of `format`, if they do.
pub fn packing(format: Format) -> Option<Packing> {
    match format {
        Format::Q8_0 | Format::IQ4_NL | Format::IQ4_XS | Format::MXFP4 => Some(Packing::Scale),
        Format::Q4_0 | Format::Q4_1 | Format::Q5_0 | Format::Q5_1 => Some(Packing::Offset),
        Format::Q4_K | Format::Q5_K | Format::TQ2_0 => Some(Packing::Pairs),
        Format::Q2_K | Format::Q3_K | Format::Q6_K => Some(Packing::Quarters),
        Format::NVFP4 => Some(Packing::Halves),
        // Values from codebooks in memory, and powers of 3: finding each costs more than the products.
        Format::IQ1_S | Format::IQ1_M | Format::IQ2_XXS | Format::IQ2_XS | Format::IQ2_S => None,
        Format::IQ3_XXS | Format::IQ3_S | Format::TQ1_0 => None,
        Format::Q8_1 | Format::Q8_K => None,
        Format::F16 | Format::BF16 | Format::F32 | Format::F64 => None,
        Format::I8 | Format::I16 | Format::I32 | Format::I64 => None,
    }
}

/// Whether a device has what the kernels of integer products need.
pub fn has_instructions(caps: &DeviceCaps) -> bool {
    caps.int_dot
        && caps.subgroup_arithmetic
        && caps.subgroup_shuffle
        && caps.has_fixed_subgroup_size()
        && caps.scheduled_subgroup_size() >= LANES
        && caps.scheduled_subgroup_size().is_power_of_two()
}

/// The weights that a matmul's right operand reads in whole [runs](Packing::run) along the inner extent.
pub fn weights(graph: &Graph, matmul: NodeId) -> Option<(Value, Format)> {
    weights_of(graph, graph.node(matmul).operands[1])
}

fn weights_of(graph: &Graph, rhs: Value) -> Option<(Value, Format)> {
    let leaf = inner_runs(graph, rhs, BLOCK)?;
    let DType::Block(format) = graph.ty(leaf).dtype else { return None };
    let run = packing(format)?.run();
    let shape = &graph.ty(rhs).shape;
    let whole = shape.dims()[shape.rank() - 2].as_const().is_some_and(|k| k % run == 0);
    (whole && inner_runs(graph, rhs, run).is_some()).then_some((leaf, format))
}

/// The node that rounds a matmul's left operand to [`ACTIVATIONS`] blocks in the same kernel.
pub fn rounding(body: &Graph, lhs: Value) -> Option<NodeId> {
    let Op::Dequantize(DType::F32) = body.op(lhs) else { return None };
    let blocks = body.node(lhs.node).operands[0];
    matches!(body.op(blocks), Op::Quantize(format) if *format == ACTIVATIONS).then_some(blocks.node)
}

/// The param that holds the blocks of a matmul's left operand, row by row, if that was rounded by another kernel.
pub fn blocks(body: &Graph, lhs: Value) -> Option<u32> {
    let Op::Dequantize(DType::F32) = body.op(lhs) else { return None };
    let blocks = body.node(lhs.node).operands[0];
    let rows = body.ty(blocks).dtype == DType::Block(ACTIVATIONS);
    whole_param(body, blocks).filter(|_| rows)
}

/// Bytes of shared memory that hold `rows` rounded rows of `k` elements: the bytes, and for each block a scale and
/// the sums of its halves.
pub fn shared_bytes(rows: i64, k: i64) -> u64 {
    let blocks = rows.max(0) * k / BLOCK;
    ((upper(rows.max(0), k / BLOCK) + blocks) * (BLOCK / 2) + blocks * 12) as u64
}

/// Where upper halves of `rows` rows of `blocks` blocks lie, in halves: behind the lower ones, and an odd number, so that both
/// halves of a block, which are written at once, lie in different banks.
pub fn upper(rows: i64, blocks: i64) -> i64 {
    (rows * blocks) | 1
}

/// Whether so many rounded rows fit into the shared memory of a workgroup.
fn fits(rows: i64, k: i64, caps: &DeviceCaps) -> bool {
    // The rest is for the results and for reductions.
    shared_bytes(rows, k) <= u64::from(caps.shared_memory_bytes) * 3 / 4
}

/// Whether a contraction whose left operand is rounded, in the kernel or before it, can be computed so.
pub fn supported(body: &Graph, form: &ContractionForm, caps: &DeviceCaps) -> bool {
    let anchors = || form.segments.iter().flat_map(|s| &s.anchors);
    let extents = (form.m.as_const(), form.k.as_const());
    let (Some(m), Some(k)) = extents else { return false };
    has_instructions(caps)
        && form.batch.numel().is(1)
        && fits(m, k, caps)
        && anchors().all(|id| weights(body, *id).is_some())
}

/// Rounds the activations of each matmul that a device can compute so: few rows of f32 times weights in a format
/// with a [`packing`]. Nothing happens on a device without the instructions; whether they are fast
/// ([`DeviceCaps::int_dot_accelerated`]) is for the caller to ask.
///
/// Factors of a row, such as that of a norm, are left to the results where that allows the kernel in front to round.
///
/// Not one of the passes: it changes results (by the rounding of each block to 8 bits, a relative error of about
/// 0.3 % of each product, NMSE about 1e-5), so callers decide. Graphs without such matmuls stay as they are.
///
/// # Errors
/// Only of a graph that is not valid.
pub fn quantize_activations(graph: &Graph, caps: &DeviceCaps) -> Result<Graph, GraphError> {
    if !has_instructions(caps) {
        return Ok(graph.clone());
    }
    rebuild(graph, |new, node, operands| {
        if !matches!(node.op, Op::Matmul) {
            return Ok(None);
        }
        // In the new graph, whose nodes the operands are.
        let lhs = operands[0];
        let ty = new.ty(lhs).clone();
        let [.., m, k] = ty.shape.dims() else { return Ok(None) };
        let (Some(rows), Some(inner)) = (m.as_const(), k.as_const()) else { return Ok(None) };
        let few = rows <= MATVEC_MAX_ROWS && ty.shape.numel() == m * k;
        // Rows that do not fit would be rounded for nothing: the float kernel would read them.
        let whole = inner > 0 && inner % BLOCK == 0 && fits(rows, inner, caps);
        if !(few && whole && ty.dtype == DType::F32) || weights_of(new, operands[1]).is_none() {
            return Ok(None);
        }
        let split = row_factor::split(new, lhs)?;
        let blocks = new.add(Op::Quantize(ACTIVATIONS), &[split.as_ref().map_or(lhs, |split| split.rest)])?;
        let rounded = new.add(Op::Dequantize(DType::F32), &[blocks])?;
        let product = new.add(Op::Matmul, &[rounded, operands[1]])?;
        split.map_or(Ok(product), |split| split.times(new, product)).map(Some)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::caps;

    /// A matmul of `rows` rows of `k` elements with a weight in `format`.
    fn linear(rows: i64, k: i64, format: Format) -> Graph {
        let mut graph = Graph::new("linear");
        let x = graph.input("x", DType::F32, [rows, k]).expect("a type");
        let w = graph.weight("w", DType::Block(format), [16, k]).expect("whole blocks");
        let w = graph.add(Op::Dequantize(DType::F32), &[w]).expect("blocks");
        let w = graph.permute(w, &[1, 0]).expect("a matrix");
        let y = graph.add(Op::Matmul, &[x, w]).expect("fits");
        graph.output("y", y).expect("new");
        graph
    }

    #[test]
    fn activations_are_rounded_where_kernels_multiply_them() {
        let rounds = |graph: &Graph, caps: &DeviceCaps| {
            let found = quantize_activations(graph, caps).expect("valid");
            found.nodes().any(|(_, n)| matches!(n.op, Op::Quantize(_)))
        };
        let h200 = caps::h200();
        assert!(rounds(&linear(1, 4096, Format::Q4_0), &h200));
        assert!(rounds(&linear(8, 256, Format::Q6_K), &h200));
        // Too many rows, no packing, rows beyond the shared memory, no instructions.
        assert!(!rounds(&linear(9, 256, Format::Q4_0), &h200));
        assert!(!rounds(&linear(1, 256, Format::IQ1_S), &h200));
        assert!(!rounds(&linear(1, 1 << 16, Format::Q4_0), &h200));
        assert!(!rounds(&linear(1, 4096, Format::Q4_0), &caps::minimum()));
    }

    /// Results of a linear layer times a sum over them, or over an input, and what is rounded of that.
    fn behind_a_norm(of_results: bool) -> (Graph, Value, Value) {
        let mut graph = linear(1, 256, Format::Q4_0);
        let first = graph.outputs()[0].value;
        let x = graph.input("z", DType::F32, [1, 16]).expect("a type");
        let scaled = if of_results { first } else { x };
        let factor = graph.reduce_keepdim(crate::ReduceKind::Sum, scaled, &[1]).expect("a row");
        let factor = graph.broadcast(factor, [1, 16]).expect("a row");
        let mul =
            |graph: &mut Graph, a, b| graph.elementwise(crate::ElementwiseOp::Mul, &[a, b]).expect("rows");
        let normed = mul(&mut graph, first, factor);
        let split = row_factor::split(&mut graph, normed).expect("valid");
        (graph, first, split.map_or(normed, |split| split.rest))
    }

    #[test]
    fn a_factor_of_a_row_is_left_to_the_results_if_it_waits_for_them() {
        let (_, first, rest) = behind_a_norm(true);
        assert_eq!(rest, first);
        // Known beforehand, it may as well be multiplied where the row is made.
        let (graph, first, rest) = behind_a_norm(false);
        assert_ne!(rest, first);
        assert!(matches!(graph.op(rest), Op::Elementwise(crate::ElementwiseOp::Mul)));
    }
}
