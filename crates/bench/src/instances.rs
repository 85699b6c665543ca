//! One graph with many independent instances of a case, so that nothing lies between them, or each waits for the one
//! before.

use std::collections::HashMap;

use tallow::{DType, Device, Input};
use tallow_ir::{ElementwiseOp, Graph, Op, Shape, Value};

use crate::case::Case;
use crate::error::{BenchError, Result};

/// What a chained instance takes from the result of the one before it: this times its first element, far below
/// what the tolerance of any check sees, and not zero, which the compiler would fold.
const TINY: f64 = 1e-9;

/// The name of operand `operand` of instance `i`.
pub fn leaf_name(operand: &str, i: usize) -> String {
    format!("{operand}.{i}")
}

/// The graph of `count` instances of `case`, with these extents of its axes in place of its own. Operands are weights
/// called as [`leaf_name`] says, results are the outputs in order.
///
/// # Errors
/// When shapes or types do not fit the case's body.
pub fn graph(case: &Case, sizes: &HashMap<&str, usize>, count: usize) -> Result<Graph> {
    let extents = |axes: &[&'static str]| -> Vec<usize> { axes.iter().map(|a| sizes[a]).collect() };
    let inputs: Vec<Input> =
        case.operands.iter().map(|o| Input::new(o.name, o.computed, Shape::from(extents(&o.axes)))).collect();
    let function = tallow::compile(&Device::Cpu, &inputs, |tensors| Ok(vec![(case.body)(tensors)?]))?;
    let body = function.graph();
    let mut graph = Graph::new(&case.name);
    let mut last = None;
    for i in 0..count {
        let mut leaves = HashMap::new();
        for (number, operand) in case.operands.iter().enumerate() {
            let leaf = graph.weight(&leaf_name(operand.name, i), operand.stored, extents(&operand.axes))?;
            let value = match operand.stored {
                stored if stored == operand.computed => leaf,
                DType::Block(_) => graph.add(Op::Dequantize(operand.computed), &[leaf])?,
                DType::U8
                | DType::U32
                | DType::I16
                | DType::I32
                | DType::I64
                | DType::F8E4M3
                | DType::F16
                | DType::BF16
                | DType::F32
                | DType::F64 => graph.add(Op::Cast(operand.computed), &[leaf])?,
            };
            let value = match last {
                Some(last) if case.chained && number == 0 => after(&mut graph, value, last)?,
                _ => value,
            };
            leaves.insert(operand.name, value);
        }
        let results = append(&mut graph, body, &leaves)?;
        let result = *results.first().ok_or_else(|| BenchError::Build("the case has no result".into()))?;
        graph.output(&format!("y.{i}"), result)?;
        last = Some(result);
    }
    Ok(graph)
}

/// `value` plus next to nothing of the first element of `last`.
fn after(graph: &mut Graph, value: Value, last: Value) -> Result<Value> {
    let rank = graph.ty(last).shape.rank();
    let mut first = last;
    for axis in 0..rank {
        first = graph.add(Op::Slice { axis, start: 0.into(), len: 1.into() }, &[first])?;
    }
    let first = graph.reshape(first, Shape::from(vec![0usize; 0]))?;
    let tiny = graph.full_like(first, TINY)?;
    let next_to_nothing = graph.elementwise(ElementwiseOp::Mul, &[first, tiny])?;
    let shape = graph.ty(value).shape.clone();
    let spread = graph.broadcast(next_to_nothing, shape)?;
    Ok(graph.elementwise(ElementwiseOp::Add, &[value, spread])?)
}

/// Adds the nodes of `body` with `leaves` in place of its inputs, weights and values of symbols; returns its outputs.
pub fn append(graph: &mut Graph, body: &Graph, leaves: &HashMap<&str, Value>) -> Result<Vec<Value>> {
    let mut values: HashMap<Value, Value> = HashMap::new();
    for (id, node) in body.nodes() {
        if let Op::Input { name, .. } | Op::Weight { name, .. } = &node.op {
            let leaf = leaves.get(name.as_str()).copied();
            values.insert(id.into(), leaf.ok_or_else(|| BenchError::Build(format!("no operand {name}")))?);
            continue;
        }
        if let Op::DimValue { dim, .. } = &node.op
            && let Some(leaf) = leaves.get(dim.to_string().as_str())
        {
            values.insert(id.into(), *leaf);
            continue;
        }
        let operands: Vec<Value> = node.operands.iter().map(|v| values[v]).collect();
        let added = graph.add_node(node.op.clone(), &operands)?;
        for result in 0..node.types.len() as u32 {
            values.insert(Value { node: id, result }, Value { node: added, result });
        }
    }
    Ok(body.outputs().iter().map(|output| values[&output.value]).collect())
}
