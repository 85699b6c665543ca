//! One kernel of a fused graph as a graph by itself, for the symbol values of one run.

use crate::dim::{Bindings, Dim};
use crate::dtype::DType;
use crate::fusion::Fusion;
use crate::graph::{Graph, GraphError, Value};
use crate::op::Op;
use crate::shape::{Shape, TensorType};
use crate::verify::updated_param;

/// The name of operand `index` in an [`isolated`] kernel.
pub fn operand_name(index: usize) -> String {
    format!("operand {index}")
}

/// The name of result `index` of an [`isolated`] kernel that is no new version of a state.
pub fn result_name(index: usize) -> String {
    format!("result {index}")
}

/// What a kernel computes, as a graph without fusions: its operands are inputs, those of blocks are weights, those that it
/// updates are states, and extents have the values that `values` gives their symbols. Symbols that it does not name stay.
///
/// Constant extents make sums as short as they are in that run, and so the error that they may have.
///
/// # Errors
/// When the types do not fit each other under these values.
pub fn isolated(fusion: &Fusion, values: &Bindings) -> Result<Graph, GraphError> {
    let body = &fusion.body;
    let updates = |result: u32| match body.op(body.outputs()[result as usize].value) {
        Op::StateUpdate { .. } => updated_param(fusion, result),
        _ => None,
    };
    let results = body.outputs().len() as u32;
    let is_state = |param: u32| (0..results).any(|result| updates(result) == Some(param));
    let mut graph = Graph::new(fusion.kind.name());
    let mut map: Vec<Vec<Value>> = Vec::with_capacity(body.len());
    for (_, node) in body.nodes() {
        let operands: Vec<Value> =
            node.operands.iter().map(|v| map[v.node.index()][v.result as usize]).collect();
        let op = match &node.op {
            Op::Param { index, ty } => {
                let (name, ty) = (operand_name(*index as usize), bound_type(ty, values));
                // An input cannot hold blocks.
                let is_blocks = matches!(ty.dtype, DType::Block(_));
                match (is_state(*index), is_blocks) {
                    (true, _) => Op::State { name, ty },
                    (false, true) => Op::Weight { name, ty },
                    (false, false) => Op::Input { name, ty },
                }
            }
            op => bound_op(op, values),
        };
        let id = graph.add_node(op, &operands)?;
        map.push((0..node.types.len() as u32).map(|result| Value { node: id, result }).collect());
    }
    for (at, output) in body.outputs().iter().enumerate() {
        let value = map[output.value.node.index()][output.value.result as usize];
        match updates(at as u32) {
            Some(_) => graph.keep(value)?,
            None => graph.output(&result_name(at), value)?,
        }
    }
    Ok(graph)
}

fn bound(dim: &Dim, values: &Bindings) -> Dim {
    dim.eval(values).map_or_else(|| dim.clone(), Dim::constant)
}

fn bound_shape(shape: &Shape, values: &Bindings) -> Shape {
    Shape::new(shape.dims().iter().map(|dim| bound(dim, values)).collect())
}

fn bound_type(ty: &TensorType, values: &Bindings) -> TensorType {
    TensorType::new(ty.dtype, bound_shape(&ty.shape, values))
}

/// The op with values in place of symbols in its attributes.
fn bound_op(op: &Op, values: &Bindings) -> Op {
    let dim = |d: &Dim| bound(d, values);
    match op {
        Op::Iota { len, dtype } => Op::Iota { len: dim(len), dtype: *dtype },
        Op::DimValue { dim: of, dtype } => Op::DimValue { dim: dim(of), dtype: *dtype },
        Op::Reshape(shape) => Op::Reshape(bound_shape(shape, values)),
        Op::Broadcast(shape) => Op::Broadcast(bound_shape(shape, values)),
        Op::Slice { axis, start, len } => Op::Slice { axis: *axis, start: dim(start), len: dim(len) },
        Op::Pad { axis, before, after, value } => {
            Op::Pad { axis: *axis, before: dim(before), after: dim(after), value: *value }
        }
        Op::StateUpdate { offsets, rows } => {
            Op::StateUpdate { offsets: offsets.iter().map(dim).collect(), rows: *rows }
        }
        Op::Custom(kernel) => {
            let mut kernel = kernel.clone();
            kernel.shapes = kernel.shapes.iter().map(|shape| bound_shape(shape, values)).collect();
            kernel.invocations = kernel.invocations.each_ref().map(dim);
            Op::Custom(kernel)
        }
        // Bodies hold neither, and the others have no extents. What a scalar's symbol is worth is no extent.
        Op::Input { .. }
        | Op::Weight { .. }
        | Op::State { .. }
        | Op::Fusion(_)
        | Op::Param { .. }
        | Op::Const(_)
        | Op::Scalar { .. }
        | Op::Elementwise(_)
        | Op::Cast(_)
        | Op::Permute(_)
        | Op::Flip { .. }
        | Op::Window { .. }
        | Op::Concat { .. }
        | Op::Reduce { .. }
        | Op::Scan { .. }
        | Op::ArgSort { .. }
        | Op::MergeRuns { .. }
        | Op::Scatter(_)
        | Op::IndexAdd
        | Op::Matmul
        | Op::Gather { .. }
        | Op::Dequantize(_)
        | Op::Quantize(_)
        | Op::Attention(_)
        | Op::AttentionGrad(..) => op.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::parse;
    use crate::{FusionKind, verify};

    #[test]
    fn a_kernel_becomes_a_graph_of_inputs_and_states() {
        let body = parse(
            r#"graph "body" {
  symbol pos <= 8
  symbol seq <= 4
  %0 = param 0 : f32[8,2]
  %1 = param 1 : f32[seq,2]
  %2 = neg %1 : f32[seq,2]
  %3 = state_update %0 %2 at=[pos,0] : f32[8,2]
  %4 = slice %3 axis=0 start=0 len=pos+seq : f32[pos+seq,2]
  %5 = reduce_sum %4 axes=[0] : f32[2]
  return %3
  return %5
}"#,
        )
        .unwrap();
        let fusion = Fusion::new(FusionKind::Map, body);
        let values: Bindings = [("pos".to_string(), 3), ("seq".to_string(), 2)].into_iter().collect();
        let graph = isolated(&fusion, &values).unwrap();
        let text = r#"graph "map" {
  %0 = state "operand 0" : f32[8,2]
  %1 = input "operand 1" : f32[2,2]
  %2 = neg %1 : f32[2,2]
  %3 = state_update %0 %2 at=[3,0] : f32[8,2]
  %4 = slice %3 axis=0 start=0 len=5 : f32[5,2]
  %5 = reduce_sum %4 axes=[0] : f32[2]
  return %3
  return %5 as "result 1"
}
"#;
        assert_eq!(graph.to_string(), text);
        assert!(verify(graph).is_ok());
    }
}
