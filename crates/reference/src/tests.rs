//! Each op against values computed by hand, on graphs in the text form.

mod errors;
mod fusions;
mod matmul;
mod ops;
mod states;

use std::sync::Arc;

use tallow_ir::text::parse;
use tallow_ir::{DType, Graph, Op, verify};

use crate::{Array, Env, Error, evaluate};

/// Parses the body of a graph and verifies it.
fn graph(body: &str) -> Graph {
    let text = format!("graph \"t\" {{\n{body}\n}}");
    let graph = parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    verify(graph).unwrap_or_else(|e| panic!("{e:?}\n{text}")).into_graph()
}

/// An environment whose inputs and states hold the given values, in order of the graph's leaves.
fn env(graph: &Graph, symbols: &[(&str, u64)], leaves: &[&[f64]]) -> Env {
    let symbols = symbols.iter().map(|(n, v)| (n.to_string(), *v)).collect();
    let mut env = Env { symbols, ..Env::default() };
    let mut values = leaves.iter();
    for (_, node) in graph.nodes() {
        let (Op::Input { name, ty } | Op::State { name, ty } | Op::Weight { name, ty }) = &node.op else {
            continue;
        };
        let shape = ty.shape.eval(&env.symbols).expect("all symbols are bound");
        let values = values.next().expect("values for each leaf");
        let array = Array::from_f64s(ty.dtype, &shape, values).expect("as many values as elements");
        match &node.op {
            Op::State { .. } => drop(env.states.insert(name.clone(), array)),
            Op::Weight { .. } => drop(env.weights.insert(name.clone(), Arc::new(array))),
            _ => drop(env.inputs.insert(name.clone(), Arc::new(array))),
        }
    }
    env
}

/// The values of all outputs, one after the other.
fn run(body: &str, symbols: &[(&str, u64)], leaves: &[&[f64]]) -> Vec<f64> {
    let graph = graph(body);
    let mut env = env(&graph, symbols, leaves);
    let outputs = evaluate(&graph, &mut env).expect("runs");
    outputs.iter().flat_map(|(_, a)| a.to_f64s()).collect()
}

/// Equal, with NaN equal to NaN and 0 different from -0.
#[track_caller]
fn same(got: &[f64], expected: &[f64]) {
    let equal = |(a, b): (&f64, &f64)| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
    assert!(
        got.len() == expected.len() && got.iter().zip(expected).all(equal),
        "got {got:?}, expected {expected:?}"
    );
}
