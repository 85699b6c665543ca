//! The table: one row an op, over all ops of the IR and the frontend's compositions.

mod compositions;
mod contract;
mod elementwise;
mod moves;
mod rows;

use tallow::{Device, Input, Tensor, compile};
use tallow_ir::{Graph, Op, Value};

use crate::row::Row;

/// Every row.
pub fn all() -> Vec<Row> {
    let mut all = elementwise::rows();
    all.extend(moves::rows());
    all.extend(rows::rows());
    all.extend(contract::rows());
    all.extend(compositions::rows());
    all
}

/// A node, with its error as text.
fn add(graph: &mut Graph, op: Op, operands: &[Value]) -> Result<Value, String> {
    graph.add(op, operands).map_err(|e| e.to_string())
}

/// The constant extents of a value.
fn dims(graph: &Graph, value: Value) -> Vec<usize> {
    graph.ty(value).shape.as_const().expect("no symbols here")
}

/// The last axis; 0 of a scalar, which has none.
fn last(graph: &Graph, value: Value) -> usize {
    graph.ty(value).shape.rank().saturating_sub(1)
}

/// An expression of the frontend as part of a graph.
fn tensors(
    build: impl Fn(&[Tensor]) -> tallow::Result<Tensor>,
) -> impl Fn(&mut Graph, &[Value]) -> Result<Value, String> {
    move |graph, operands| {
        let input = |i: usize, v: &Value| {
            let ty = graph.ty(*v).clone();
            Input { name: i.to_string(), ty }
        };
        let inputs: Vec<Input> = operands.iter().enumerate().map(|(i, v)| input(i, v)).collect();
        let built = compile(&Device::Cpu, &inputs, |t| Ok(vec![build(t)?])).map_err(|e| e.to_string())?;
        let part = built.graph();
        let mut now: Vec<Value> = vec![];
        for (_, node) in part.nodes() {
            let value = match &node.op {
                Op::Input { name, .. } => operands[name.parse::<usize>().expect("named by number")],
                op => {
                    let from: Vec<Value> = node.operands.iter().map(|v| now[v.node.index()]).collect();
                    add(graph, op.clone(), &from)?
                }
            };
            now.push(value);
        }
        Ok(now[part.outputs()[0].value.node.index()])
    }
}
