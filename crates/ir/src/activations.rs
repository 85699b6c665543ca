//! Quantized activations: their blocks, and where a kernel makes them.

use crate::dtype::{DType, Format};
use crate::graph::{Graph, NodeId, Value};
use crate::op::Op;

/// Block format that activations are quantized to.
pub const ACTIVATIONS: Format = Format::Q8_1;

/// Elements per scale of the quantized activations.
pub const BLOCK: i64 = 32;

/// The node that quantizes a matmul's left operand to [`ACTIVATIONS`] blocks in the same kernel.
pub fn quantize_node(body: &Graph, lhs: Value) -> Option<NodeId> {
    let Op::Dequantize(DType::F32) = body.op(lhs) else { return None };
    let blocks = body.node(lhs.node).operands[0];
    matches!(body.op(blocks), Op::Quantize(format) if *format == ACTIVATIONS).then_some(blocks.node)
}
