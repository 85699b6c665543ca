//! Programs of one structure under many shapes: a random graph with symbols, of which every node becomes a tensor with
//! numbers for extents, at one set of values after the other. What becomes a symbol of a plan again is found from the
//! numbers alone, so that wrong guesses, stale guards and results of the wrong size show.

use tallow::{Device, Tensor};
use tallow_ir::structure::with_values;
use tallow_ir::{Bindings, DType, Graph, Node, NodeId, Op, Shape, TensorType};
use tallow_reference::{Array, evaluate};

use super::{Options, covering_graph, name, observed, options, tensors};
use crate::bounds::Bounds;
use crate::random_inputs::{Inputs, random_inputs};
use crate::rng::Rng;

/// How often something was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShapeCounts {
    /// Programs.
    pub programs: u64,
    /// Sets of shapes that they were evaluated under.
    pub instances: u64,
    /// Compilations for them.
    pub compilations: u64,
}

/// Checks program number `seed` under `instances` sets of shapes.
///
/// # Errors
/// When a value differs or something fails.
pub fn check_shapes(
    seed: u64,
    instances: u64,
    device: &Device,
    counts: &mut ShapeCounts,
) -> Result<(), String> {
    let mut rng = Rng::new(seed ^ 0x7368_6170);
    let drawn = drawn(seed, &mut rng, device);
    let graph = observed(&drawn).map_err(|e| e.to_string())?;
    if device.caps().is_some_and(|caps| tallow_codegen::compile(&graph, caps).is_err()) {
        return Ok(());
    }
    // The same are read each time, so that there is one structure where extents allow.
    let read: Vec<NodeId> = graph
        .nodes()
        .map(|(id, _)| id)
        .filter(|id| id.index() + 1 == graph.len() || rng.below(4) == 0)
        .collect();
    let mut bounds = Bounds::of(&graph)?;
    let before = device.lazy_compilations();
    for instance in 0..instances {
        let inputs = random_inputs(&graph, seed ^ instance << 32);
        let fail = |why: String| format!("instance {instance}, {:?}: {why}\n{graph}", inputs.symbols);
        evaluated(&graph, &inputs, &read, &mut bounds, device).map_err(fail)?;
    }
    counts.programs += 1;
    counts.instances += instances;
    counts.compilations += device.lazy_compilations() - before;
    Ok(())
}

fn drawn(seed: u64, rng: &mut Rng, device: &Device) -> Graph {
    let options = Options { symbols: true, ..options(device.caps()) };
    let f32_alone = Options { floats: vec![DType::F32], ..options.clone() };
    covering_graph(seed, seed / 2, rng.below(6), if seed.is_multiple_of(2) { &options } else { &f32_alone })
}

/// Builds all nodes for one set of shapes, and compares those that are read.
fn evaluated(
    graph: &Graph,
    inputs: &Inputs,
    read: &[NodeId],
    bounds: &mut Bounds,
    device: &Device,
) -> Result<(), String> {
    let expected = evaluate(graph, &mut inputs.env()).map_err(|e| e.to_string())?;
    let intervals = bounds.run(inputs)?;
    let mut built: Vec<Tensor> = vec![];
    for (_, node) in graph.nodes() {
        let node = at(node, &inputs.symbols).ok_or("an extent has no value")?;
        let operands: Vec<Tensor> = node.operands.iter().map(|v| built[v.node.index()].clone()).collect();
        let leaf = match &node.op {
            Op::Input { name, .. } => inputs.inputs.get(name),
            _ => None,
        };
        let tensor = tensors::build(&node, &operands, leaf, device).map_err(|e| e.to_string())?;
        if !tensors::has_type(&tensor, &node.types[0]) {
            return Err(format!("is {}{}, not {}", tensor.dtype(), tensor.shape(), node.types[0]));
        }
        built.push(tensor);
    }
    let targets: Vec<&Tensor> = read.iter().map(|id| &built[id.index()]).collect();
    tallow::eval(&targets).map_err(|e| e.to_string())?;
    for id in read {
        let tensor = &built[id.index()];
        let (Some((_, want)), Some((_, interval))) = (
            expected.iter().find(|(found, _)| *found == name(*id)),
            intervals.iter().find(|(found, _)| *found == name(*id)),
        ) else {
            continue; // An input.
        };
        let bytes = tensor.raw_bytes().map_err(|e| e.to_string())?;
        let got = Array::from_bytes(tensor.dtype(), tensor.dims(), &bytes).map_err(|e| e.to_string())?;
        interval.check(want, &got).map_err(|why| format!("{}: {why}", graph.node_text(*id)))?;
    }
    Ok(())
}

/// A node with numbers for symbols.
fn at(node: &Node, symbols: &Bindings) -> Option<Node> {
    let ty =
        |ty: &TensorType| Some(TensorType { dtype: ty.dtype, shape: Shape::from(ty.shape.eval(symbols)?) });
    Some(Node {
        op: with_values(&node.op, symbols)?,
        operands: node.operands.clone(),
        types: node.types.iter().map(ty).collect::<Option<_>>()?,
    })
}
