//! What a network computes by the interpreter, and how far a device may be off.

use std::collections::HashMap;
use std::sync::Arc;

use tallow::{DType, Device, Input};
use tallow_ir::{Graph, Op, TensorType};
use tallow_reference::{Array, Env, evaluate};

use super::{Network, build, operand};
use crate::case::{F16_LIMIT, F32_LIMIT};
use crate::error::Result;
use crate::instances::append;

/// The steps whose rounding the limits of cases allow for.
const STEPS_OF_LIMIT: f64 = 24.0;
/// A bf16 has 3 bits less than an f16, which make 64 times the squared error.
const BF16_LIMIT: f64 = 64.0 * F16_LIMIT;

/// The graph of a network. Its inputs are weights of their names, so that they are resident on the device.
///
/// # Errors
/// When shapes or element types do not fit.
pub fn graph(network: &Network) -> Result<Graph> {
    let input = |spec: &super::TensorSpec| Input::new(&spec.name, spec.dtype, spec.shape.clone());
    let inputs: Vec<Input> = network.inputs.iter().map(input).collect();
    let function = tallow::compile(&Device::Cpu, &inputs, |tensors| build(network, tensors))?;
    let mut graph = Graph::new(&network.name);
    let mut leaves = HashMap::new();
    for spec in &network.inputs {
        leaves.insert(spec.name.as_str(), graph.weight(&spec.name, spec.dtype, spec.shape.clone())?);
    }
    for (number, result) in append(&mut graph, function.graph(), &leaves)?.into_iter().enumerate() {
        graph.output(&format!("y.{number}"), result)?;
    }
    Ok(graph)
}

/// The bytes of all inputs, in order.
///
/// # Errors
/// When an element type has no values.
pub fn operands(network: &Network) -> Result<Vec<Vec<u8>>> {
    let numbered = network.inputs.iter().enumerate();
    numbered.map(|(number, spec)| operand(spec, number, network.seed)).collect()
}

/// The results of a network by the interpreter, for the values of [`operand`].
///
/// # Errors
/// When the interpreter fails.
pub fn expected(network: &Network) -> Result<Vec<Vec<f64>>> {
    interpret(network, &graph(network)?, &operands(network)?)
}

/// The results of a network's graph by the interpreter.
pub fn interpret(network: &Network, graph: &Graph, operands: &[Vec<u8>]) -> Result<Vec<Vec<f64>>> {
    let mut env = Env::default();
    for (spec, bytes) in network.inputs.iter().zip(operands) {
        let array = Array::from_bytes(spec.dtype, &spec.shape, bytes)?;
        env.weights.insert(spec.name.clone(), Arc::new(array));
    }
    Ok(evaluate(graph, &mut env)?.into_iter().map(|(_, array)| array.to_f64s()).collect())
}

/// The largest normalized mean squared error of results that are right: that of cases for the least exact element type,
/// and in proportion more for networks of more steps.
pub fn limit(network: &Network) -> f64 {
    let has = |dtype| network.inputs.iter().any(|spec| spec.dtype == dtype);
    let limit = match (has(DType::BF16), has(DType::F16)) {
        (true, _) => BF16_LIMIT,
        (false, true) => F16_LIMIT,
        (false, false) => F32_LIMIT,
    };
    limit * (network.steps.len() as f64 / STEPS_OF_LIMIT).max(1.0)
}

/// Floating-point operations of matrix products and attention, a multiply-add as two.
pub fn flops(graph: &Graph) -> u64 {
    let one = |(_, node): (tallow_ir::NodeId, &tallow_ir::Node)| {
        let shape = |operand: usize| graph.ty(node.operands[operand]).shape.as_const().unwrap_or_default();
        if let Op::Matmul = &node.op {
            return 2 * shape(0).last().copied().unwrap_or(0) as u64 * elements(&node.types);
        }
        let Op::Attention(attention) = &node.op else { return 0 };
        let (&[heads, queries, dim], &[_, keys, width]) = (&shape(0)[..], &shape(2)[..]) else { return 0 };
        let all = 2 * (heads * queries * keys * (dim + width)) as u64;
        if attention.causal && queries == keys { all / 2 } else { all }
    };
    graph.nodes().map(one).sum()
}

/// Elements of all results of a node.
pub fn elements(types: &[TensorType]) -> u64 {
    types.iter().map(|ty| ty.shape.max_numel()).sum()
}
