//! One step of the fuzzer: a graph is evaluated as written, fused, and on a device, twice with different symbol
//! values, so that what was compiled and recorded once is replayed; and what it covers is counted.

mod coverage;

use std::collections::HashMap;

use tallow::{Device, Executable, GraphState, Weight};
use tallow_codegen::CodegenError;
use tallow_ir::passes::{self, expand_attention};
use tallow_ir::{DeviceCaps, Graph, Op, schedule};
use tallow_reference::{Array, Env, evaluate};

use crate::bounds::Bounds;
use crate::compare::{Tolerance, compare};
use crate::random_inputs::{Inputs, random_inputs};

pub use coverage::{Coverage, VIEWS};

/// Outputs, then states after the run, by name.
type Results = Vec<(String, Array)>;

/// Checks one graph; the error says which two evaluations part.
///
/// # Errors
/// When anything fails or differs.
pub fn check(
    graph: &Graph,
    seed: u64,
    caps: &DeviceCaps,
    device: Option<&Device>,
    coverage: &mut Coverage,
) -> Result<(), String> {
    let first = random_inputs(graph, seed);
    let second = Inputs { weights: first.weights.clone(), ..random_inputs(graph, seed ^ 0x5eed) };
    let runs = [first, second];
    let fused = passes::run(graph, caps, &mut |_, _| {}).map_err(|e| e.to_string())?;
    let plain = twice(graph, &runs)?;
    let interpreted = twice(fused.graph(), &runs).map_err(|why| format!("fused: {why}"))?;
    // This pass rounds between its formulas, so the others are compared with what it makes.
    let expanded = expand_attention::run(graph, caps).map_err(|e| e.to_string())?;
    if count(&expanded) == count(graph) {
        same(&plain, &interpreted, Tolerance::Bits, "fused, interpreted")?;
    } else {
        let expanded = twice(&expanded, &runs).map_err(|why| format!("expanded: {why}"))?;
        within(graph, &runs, &plain, &expanded)
            .map_err(|why| format!("gradients of attention expanded: {why}"))?;
        same(&expanded, &interpreted, Tolerance::Bits, "fused, interpreted")?;
    }
    if !planned(graph, caps)? {
        coverage.graphs += 1;
        coverage.refused += 1;
        return Ok(());
    }
    if let Some(device) = device {
        within(graph, &runs, &plain, &on_device(device, graph, &runs)?)?;
    }
    coverage.count(graph, fused.graph());
    Ok(())
}

/// Nodes that are gradients of attention.
fn count(graph: &Graph) -> usize {
    graph.nodes().filter(|(_, node)| matches!(node.op, Op::AttentionGrad(..))).count()
}

/// Whether the plan is right by the judge that shares no code with the planner; false if kernels refuse a dtype.
fn planned(graph: &Graph, caps: &DeviceCaps) -> Result<bool, String> {
    let module = match tallow_codegen::compile(graph, caps) {
        Err(CodegenError::Dtype { .. }) => return Ok(false),
        other => other.map_err(|e| format!("code generation: {e}"))?,
    };
    let judged = schedule::check(&module.program, &module.plan, &tallow_codegen::limits(caps));
    judged.map_err(|wrong| format!("plan: {}", wrong.first().map_or(String::new(), ToString::to_string)))?;
    Ok(true)
}

fn same(want: &[Results; 2], got: &[Results; 2], tolerance: Tolerance, what: &str) -> Result<(), String> {
    for (run, (want, got)) in want.iter().zip(got).enumerate() {
        for (name, want) in want {
            let got = got.iter().find(|(n, _)| n == name).map(|(_, a)| a);
            let got = got.ok_or_else(|| format!("{what}: run {run} has no {name}"))?;
            compare(want, got, tolerance).map_err(|why| format!("{what}, run {run}: {name}: {why}"))?;
        }
    }
    Ok(())
}

/// Whether the device stays within the bounds of the graph, in both runs.
fn within(graph: &Graph, runs: &[Inputs; 2], want: &[Results; 2], got: &[Results; 2]) -> Result<(), String> {
    let mut bounds = Bounds::of(graph)?;
    for (run, ((inputs, want), got)) in runs.iter().zip(want).zip(got).enumerate() {
        let what = if run == 0 { "fused, on the device" } else { "replayed with other symbol values" };
        for (name, interval) in bounds.run(inputs)? {
            let of = |all: &Results| all.iter().find(|(n, _)| *n == name).map(|(_, a)| a.clone());
            let (Some(want), Some(got)) = (of(want), of(got)) else {
                return Err(format!("{what}: there is no {name}"));
            };
            interval.check(&want, &got).map_err(|why| format!("{what}: {name}: {why}"))?;
        }
    }
    Ok(())
}

/// Two runs of the interpreter, the second on the states that the first left.
fn twice(graph: &Graph, runs: &[Inputs; 2]) -> Result<[Results; 2], String> {
    let mut env = runs[0].env();
    let first = once(graph, &mut env)?;
    let mut next = runs[1].env();
    next.states = env.states;
    next.weights = env.weights;
    Ok([first, once(graph, &mut next)?])
}

fn once(graph: &Graph, env: &mut Env) -> Result<Results, String> {
    // A pass may drop symbols, never add one.
    env.symbols.retain(|name, _| graph.symbols().any(|s| s.name() == name));
    let mut all = evaluate(graph, env).map_err(|e| e.to_string())?;
    all.extend(env.states.iter().map(|(name, array)| (format!("state {name}"), array.clone())));
    Ok(all)
}

/// One recording, replayed.
fn on_device(device: &Device, graph: &Graph, runs: &[Inputs; 2]) -> Result<[Results; 2], String> {
    let fail = |e: tallow::Error| format!("device: {e}");
    let mut weights: HashMap<String, Weight> = HashMap::new();
    for (name, leaf) in &runs[0].weights {
        weights.insert(name.clone(), device.weight(leaf.dtype, &leaf.shape, &leaf.bytes).map_err(fail)?);
    }
    let mut states: HashMap<String, GraphState> = HashMap::new();
    for (name, leaf) in &runs[0].states {
        let state = device.state(leaf.dtype, &leaf.shape).map_err(fail)?;
        state.write_bytes(&leaf.bytes).map_err(fail)?;
        states.insert(name.clone(), state);
    }
    let executable = device.compile(graph, &weights, &states).map_err(fail)?;
    Ok([replay(&executable, &runs[0], &states)?, replay(&executable, &runs[1], &states)?])
}

fn replay(
    executable: &Executable,
    run: &Inputs,
    states: &HashMap<String, GraphState>,
) -> Result<Results, String> {
    let fail = |e: tallow::Error| format!("device: {e}");
    let symbols: Vec<(&str, u64)> = run.symbols.iter().map(|(n, v)| (n.as_str(), *v)).collect();
    let data: Vec<(&str, &[u8])> = run.inputs.iter().map(|(n, l)| (n.as_str(), l.bytes.as_slice())).collect();
    let mut results = vec![];
    for output in executable.run(&symbols, &data).map_err(fail)? {
        let array = Array::from_bytes(output.dtype, &output.shape, &output.bytes);
        results.push((output.name, array.map_err(|e| e.to_string())?));
    }
    for (name, state) in states {
        let leaf = &run.states[name];
        let bytes = state.read_bytes().map_err(fail)?;
        let array = Array::from_bytes(leaf.dtype, &leaf.shape, &bytes).map_err(|e| e.to_string())?;
        results.push((format!("state {name}"), array));
    }
    Ok(results)
}
