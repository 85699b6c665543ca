//! Integer dot products (dp4a): which matmuls can multiply packed 8-bit integers instead of floats.
//!
//! The left operand must be quantized to [`ACTIVATIONS`] blocks: 32 signed bytes `x` with one scale `d`. The product
//! with a block of weights `w = s q + o` is then `d (s sum(q x) + o sum(x))`. Its sums are over integers, which dot
//! product instructions compute exactly, four products at a time.

mod row_factor;

use crate::access::groups_along_k;
pub use crate::activations::{ACTIVATIONS, BLOCK, quantize_node};
use crate::caps::DeviceCaps;
use crate::dtype::{DType, Format};
use crate::form::{ContractionForm, are_few, param_through_reshapes};
use crate::graph::{Graph, GraphError, Node, NodeId, Value};
use crate::op::Op;
use crate::rewrite::rebuild;

/// Invocations that quantize one block together, four elements each.
pub const LANES: u32 = 8;

/// Group of weights that a kernel unpacks to bytes at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packing {
    /// 32 weights with one scale: `w = s q`.
    Scale,
    /// 32 weights with a scale and an offset: `w = s q + o`.
    Offset,
    /// 32 weights, with a scale and an offset per half.
    Halves,
    /// Two adjacent groups of 32 that are packed into the same bytes, with a scale and an offset per group.
    Pairs,
    /// The first and third, or the second and fourth, group of 32 out of 128 weights: each such pair shares bytes. A
    /// scale and an offset per half group.
    Quarters,
}

impl Packing {
    /// Adjacent weights whose packed bytes no other weights share. K is a multiple of it.
    pub fn granularity(self) -> i64 {
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

/// How kernels unpack weights of `format`; `None` if they do not.
pub fn packing(format: Format) -> Option<Packing> {
    match format {
        Format::Q8_0 | Format::IQ4_NL | Format::IQ4_XS | Format::MXFP4 => Some(Packing::Scale),
        Format::IQ1_S | Format::IQ2_XXS | Format::IQ3_XXS | Format::IQ3_S => Some(Packing::Scale),
        Format::Q4_0 | Format::Q4_1 | Format::Q5_0 | Format::Q5_1 | Format::TQ1_0 => Some(Packing::Offset),
        Format::Q4_K | Format::Q5_K | Format::TQ2_0 => Some(Packing::Pairs),
        Format::Q2_K | Format::Q3_K | Format::Q6_K => Some(Packing::Quarters),
        Format::NVFP4 | Format::IQ1_M | Format::IQ2_XS | Format::IQ2_S => Some(Packing::Halves),
        Format::Q8_1 | Format::Q8_K => None,
        Format::F16 | Format::BF16 | Format::F32 | Format::F64 => None,
        Format::I8 | Format::I16 | Format::I32 | Format::I64 => None,
    }
}

/// Whether the device supports the integer dot product kernels.
pub fn has_instructions(caps: &DeviceCaps) -> bool {
    caps.int_dot
        && caps.subgroup_arithmetic
        && caps.subgroup_shuffle
        && caps.has_fixed_subgroup_size()
        && caps.scheduled_subgroup_size() >= LANES
        && caps.scheduled_subgroup_size().is_power_of_two()
}

/// The weights of a matmul's right operand, if it reads them along K in multiples of [`Packing::granularity`].
pub fn weights(graph: &Graph, matmul: NodeId) -> Option<(Value, Format)> {
    weights_of(graph, graph.node(matmul).operands[1])
}

fn weights_of(graph: &Graph, rhs: Value) -> Option<(Value, Format)> {
    let leaf = groups_along_k(graph, rhs, BLOCK)?;
    let DType::Block(format) = graph.ty(leaf).dtype else { return None };
    let granularity = packing(format)?.granularity();
    groups_along_k(graph, rhs, granularity).map(|_| (leaf, format))
}

/// The param with the quantized blocks of a matmul's left operand, in row order, if another kernel quantized it.
pub fn blocks(body: &Graph, lhs: Value) -> Option<u32> {
    let Op::Dequantize(DType::F32) = body.op(lhs) else { return None };
    let blocks = body.node(lhs.node).operands[0];
    let rows = body.ty(blocks).dtype == DType::Block(ACTIVATIONS);
    param_through_reshapes(body, blocks).filter(|_| rows)
}

/// Whether a matmul's left operand is quantized to [`ACTIVATIONS`] blocks.
pub fn is_quantized(graph: &Graph, lhs: Value) -> bool {
    let blocks = |node: &Node| graph.ty(node.operands[0]).dtype == DType::Block(ACTIVATIONS);
    matches!(graph.op(lhs), Op::Dequantize(_)) && blocks(graph.node(lhs.node))
}

/// Bytes of shared memory for `rows` quantized rows of `k` elements: the bytes and a scale per block. A single row also
/// has the sums of the halves of each block; each of several rows is read for several columns, which share the sums.
pub fn shared_bytes(rows: i64, k: i64) -> u64 {
    let (rows, blocks) = (rows.max(0), k / BLOCK);
    let scales = if rows > 1 { 4 } else { 12 };
    let places = places(rows, blocks);
    ((upper(rows, blocks) + places) * (BLOCK / 2) + places * scales) as u64
}

/// Blocks for which `rows` rows of `blocks` blocks have room: for those of several rows, whose places are exchanged in
/// groups of four, whole groups.
pub fn places(rows: i64, blocks: i64) -> i64 {
    let all = rows * blocks;
    if rows > 1 { (all + 3) / 4 * 4 } else { all }
}

/// Start of the upper half-blocks of `rows` rows of `blocks` blocks, in half-blocks (16 bytes). They follow the lower
/// ones. The offset is odd, so that the two halves of a block, written at once, fall into different banks.
pub fn upper(rows: i64, blocks: i64) -> i64 {
    places(rows, blocks) | 1
}

/// Whether `rows` quantized rows of `k` elements fit into a workgroup's shared memory.
fn fits_shared_memory(rows: i64, k: i64, caps: &DeviceCaps) -> bool {
    // The rest is for the results and for reductions. Eight rows of 4096 elements need all of 36 KiB, and the half-block
    // before the upper halves.
    shared_bytes(rows, k) <= u64::from(caps.shared_memory_bytes) * 3 / 4 + BLOCK as u64 / 2
}

/// Whether integer dot products can compute a contraction whose left operand is quantized, in this kernel or before it.
pub fn supported(body: &Graph, form: &ContractionForm, caps: &DeviceCaps) -> bool {
    let anchors = || form.segments.iter().flat_map(|s| &s.anchors);
    let (m, Some(k)) = (form.m.max_value(), form.k.as_const()) else { return false };
    has_instructions(caps)
        && form.batch.numel().is(1)
        && fits_shared_memory(m, k, caps)
        && anchors().all(|id| weights(body, *id).is_some())
}

/// Quantizes the activations of each matmul that integer dot products can compute: few f32 rows times weights in a
/// format with a [`packing`].
///
/// The graph stays unchanged on a device without the instructions. Whether they are fast
/// ([`DeviceCaps::int_dot_accelerated`]) is the caller's question.
///
/// Row factors, such as that of a norm, are applied to the results where this lets the preceding kernel quantize.
///
/// Not one of the passes, because it changes results: callers decide. Each block is rounded to 8 bits: a relative error
/// of about 0.3 % per product, an NMSE of about 1e-5. Graphs without such matmuls stay unchanged.
///
/// # Errors
/// If the graph is invalid.
pub fn quantize_activations(graph: &Graph, caps: &DeviceCaps) -> Result<Graph, GraphError> {
    if !has_instructions(caps) {
        return Ok(graph.clone());
    }
    rebuild(graph, |new, node, operands| {
        if !matches!(node.op, Op::Matmul) {
            return Ok(None);
        }
        // Looked up in the new graph, which the operands belong to.
        let lhs = operands[0];
        let ty = new.ty(lhs).clone();
        let [.., m, k] = ty.shape.dims() else { return Ok(None) };
        let (rows, Some(inner)) = (m.max_value(), k.as_const()) else { return Ok(None) };
        let few = are_few(m) && ty.shape.numel() == m * k;
        // Rows too long for shared memory are not quantized: the float kernel would read them anyway.
        let can_quantize = inner > 0 && inner % BLOCK == 0 && fits_shared_memory(rows, inner, caps);
        if !(few && can_quantize && ty.dtype == DType::F32) || weights_of(new, operands[1]).is_none() {
            return Ok(None);
        }
        let split = row_factor::split(new, lhs)?;
        let blocks = new.add(Op::Quantize(ACTIVATIONS), &[split.as_ref().map_or(lhs, |split| split.rest)])?;
        let quantized = new.add(Op::Dequantize(DType::F32), &[blocks])?;
        let product = new.add(Op::Matmul, &[quantized, operands[1]])?;
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
    fn activations_are_quantized_where_kernels_multiply_integers() {
        let quantizes = |graph: &Graph, caps: &DeviceCaps| {
            let found = quantize_activations(graph, caps).expect("valid");
            found.nodes().any(|(_, n)| matches!(n.op, Op::Quantize(_)))
        };
        let h200 = caps::h200();
        assert!(quantizes(&linear(1, 4096, Format::Q4_0), &h200));
        assert!(quantizes(&linear(8, 256, Format::Q6_K), &h200));
        assert!(quantizes(&linear(1, 256, Format::IQ1_S), &h200));
        assert!(quantizes(&linear(8, 4096, Format::Q4_0), &h200));
        // Too many rows; no packing; rows too long for shared memory; no instructions.
        assert!(!quantizes(&linear(9, 256, Format::Q4_0), &h200));
        assert!(!quantizes(&linear(1, 256, Format::F16), &h200));
        assert!(!quantizes(&linear(1, 1 << 16, Format::Q4_0), &h200));
        assert!(!quantizes(&linear(1, 4096, Format::Q4_0), &caps::minimum()));
    }

    /// A linear layer's results times a sum over them, or over an input, and the value that is quantized then.
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
        // A factor that is known beforehand stays in the kernel that produces the row.
        let (graph, first, rest) = behind_a_norm(false);
        assert_ne!(rest, first);
        assert!(matches!(graph.op(rest), Op::Elementwise(crate::ElementwiseOp::Mul)));
    }
}
