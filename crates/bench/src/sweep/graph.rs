//! One graph of many independent instances of a point's program.

use std::collections::HashMap;

use tallow::{DType, Device, Input};
use tallow_ir::{Graph, Op, Shape, Symbol, Value};
use tallow_reference::Array;

use crate::error::Result;
use crate::instances::{append, leaf_name};
use crate::networks::{Kind, Network, TensorSpec, build};

/// The element type in memory.
pub fn stored(spec: &TensorSpec) -> DType {
    spec.blocks.map_or(spec.dtype, tallow_models::weights::dtype)
}

/// The graph of `count` instances of a program. Inputs are weights, called as [`leaf_name`] says; output `j` of instance
/// `i` is called `y{j}.{i}`. Key and number of its random draws, symbols of a function, are one weight of each instance, since
/// equal draws would be computed once for all of them. With `shares_weights`, all instances read the weights of the first.
///
/// # Errors
/// When shapes or element types do not fit.
pub fn graph(network: &Network, count: usize, shares_weights: bool) -> Result<Graph> {
    let input = |spec: &TensorSpec| Input::new(&spec.name, spec.dtype, spec.shape.clone());
    let inputs: Vec<Input> = network.inputs.iter().map(input).collect();
    let function = tallow::compile(&Device::Cpu, &inputs, |tensors| build(network, tensors))?;
    let mut graph = Graph::new(&network.name);
    let mut shared = HashMap::new();
    for i in 0..count {
        let mut leaves = HashMap::new();
        for (_, node) in function.graph().nodes() {
            if let Op::Weight { name, .. } = &node.op {
                let ty = &node.types[0];
                let leaf = graph.weight(&leaf_name(name, i), ty.dtype, ty.shape.clone())?;
                leaves.insert(name.as_str(), leaf);
            }
        }
        leaves.extend(symbols(&mut graph, function.graph(), i)?);
        for spec in &network.inputs {
            if let Some(first) = shared.get(spec.name.as_str()) {
                leaves.insert(spec.name.as_str(), *first);
                continue;
            }
            let leaf = graph.weight(&leaf_name(&spec.name, i), stored(spec), spec.shape.clone())?;
            let value = match spec.blocks {
                Some(_) => graph.add(Op::Dequantize(spec.dtype), &[leaf])?,
                None => leaf,
            };
            leaves.insert(spec.name.as_str(), value);
            if shares_weights && spec.kind == Kind::Weight {
                shared.insert(spec.name.as_str(), value);
            }
        }
        for (number, result) in append(&mut graph, function.graph(), &leaves)?.into_iter().enumerate() {
            graph.output(&format!("y{number}.{i}"), result)?;
        }
    }
    Ok(graph)
}

/// The values of the symbols of a program as parts of one weight, for instance `i`.
fn symbols<'a>(graph: &mut Graph, program: &'a Graph, i: usize) -> Result<Vec<(&'a str, Value)>> {
    let count = program.symbols().count();
    if count == 0 {
        return Ok(vec![]);
    }
    let table = graph.weight(&leaf_name("symbols", i), DType::U32, [count])?;
    let value = |(at, symbol): (usize, &'a Symbol)| {
        let part = graph.add(Op::Slice { axis: 0, start: at.into(), len: 1.into() }, &[table])?;
        Ok((symbol.name(), graph.reshape(part, Shape::scalar())?))
    };
    program.symbols().enumerate().map(value).collect()
}

/// The weights of a graph of instances that are no inputs of the program, with small positive numbers for each.
///
/// # Errors
/// When the interpreter has no values of an element type.
pub fn keys(graph: &Graph, network: &Network) -> Result<Vec<(String, Array)>> {
    let is_input =
        |name: &str| network.inputs.iter().any(|spec| name.starts_with(&format!("{}.", spec.name)));
    let mut keys = vec![];
    for (number, (_, node)) in graph.nodes().enumerate() {
        let Op::Weight { name, .. } = &node.op else { continue };
        if !is_input(name) {
            let shape = node.types[0].shape.as_const().unwrap_or_default();
            let values = (0..shape.iter().product()).map(|i: usize| ((i * 37 + number) % 100 + 1) as f64);
            let values: Vec<f64> = values.collect();
            keys.push((name.clone(), Array::from_f64s(node.types[0].dtype, &shape, &values)?));
        }
    }
    Ok(keys)
}

/// The shapes of a program's outputs.
///
/// # Errors
/// As [`graph`].
pub fn output_shapes(network: &Network) -> Result<Vec<Vec<usize>>> {
    let graph = graph(network, 1, false)?;
    let shape = |output: &tallow_ir::Output| graph.ty(output.value).shape.as_const().unwrap_or_default();
    Ok(graph.outputs().iter().map(shape).collect())
}
