//! Constant folding: evaluates elementwise ops and casts whose operands are uniform constants.

use crate::caps::DeviceCaps;
use crate::graph::{Graph, GraphError, Value};
use crate::op::Op;
use crate::rewrite::rebuild;
use crate::scalar::Scalar;
use crate::scalar_eval;

/// The pass.
pub fn run(graph: &Graph, _: &DeviceCaps) -> Result<Graph, GraphError> {
    rebuild(graph, |new, node, operands| {
        let folded = match &node.op {
            Op::Elementwise(op) => {
                let constants: Option<Vec<Scalar>> = operands.iter().map(|v| uniform(new, *v)).collect();
                constants.and_then(|c| scalar_eval::elementwise(*op, &c))
            }
            Op::Cast(dtype) => uniform(new, operands[0]).map(|c| scalar_eval::cast(c, *dtype)),
            // A symbolic extent that became constant.
            Op::DimValue { dim, dtype } => dim.as_const().map(|c| Scalar::of(*dtype, c as f64)),
            _ => None,
        };
        let Some(scalar) = folded else { return Ok(None) };
        let value = new.add(Op::Const(scalar), &[])?;
        new.broadcast(value, node.types[0].shape.clone()).map(Some)
    })
}

/// The constant that every element of `v` equals, looking through views.
pub fn uniform(graph: &Graph, v: Value) -> Option<Scalar> {
    let node = graph.node(v.node);
    match &node.op {
        Op::Const(s) => Some(*s),
        Op::Broadcast(_)
        | Op::Reshape(_)
        | Op::Permute(_)
        | Op::Slice { .. }
        | Op::Flip { .. }
        | Op::Window { .. } => uniform(graph, node.operands[0]),
        _ => None,
    }
}
