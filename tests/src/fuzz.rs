//! One step of the fuzzer: a graph is evaluated as written, fused, and on a device, twice with different symbol
//! values, so that what was compiled and recorded once is replayed; and what it covers is counted.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use tallow::{Device, Executable, State, Weight};
use tallow_ir::{DeviceCaps, Graph, Op, passes};
use tallow_reference::{Array, Env, evaluate};

use crate::bounds::Bounds;
use crate::compare::{Tolerance, compare};
use crate::random_inputs::{Inputs, random_inputs};

/// Outputs, then states after the run, by name.
type Results = Vec<(String, Array)>;

/// How often something was part of a graph that was checked.
#[derive(Clone, Debug, Default)]
pub struct Coverage {
    /// Graphs.
    pub graphs: u64,
    /// Those of them that kernels refuse by dtype, say attention of f64.
    pub refused: u64,
    /// Ops inside kernels, by name.
    pub ops: BTreeMap<String, u64>,
    /// Kernels, by kind.
    pub kinds: BTreeMap<String, u64>,
    /// A view read through another, outer one first.
    pub views: BTreeMap<(String, String), u64>,
}

impl Coverage {
    /// Counts a graph of kernels.
    pub fn count(&mut self, fused: &Graph) {
        self.graphs += 1;
        for (_, node) in fused.nodes() {
            let Op::Fusion(fusion) = &node.op else { continue };
            *self.kinds.entry(fusion.kind.name().into()).or_default() += 1;
            for (_, inner) in fusion.body.nodes() {
                *self.ops.entry(inner.op.name().into()).or_default() += 1;
                let below = inner.operands.first().map(|v| fusion.body.op(*v));
                if let (true, Some(below)) = (is_view(&inner.op), below)
                    && is_view(below)
                {
                    *self.views.entry((inner.op.name().into(), below.name().into())).or_default() += 1;
                }
            }
        }
    }
}

fn is_view(op: &Op) -> bool {
    matches!(
        op,
        Op::Reshape(_)
            | Op::Broadcast(_)
            | Op::Permute(_)
            | Op::Slice { .. }
            | Op::Flip { .. }
            | Op::Window { .. }
            | Op::Pad { .. }
            | Op::Concat { .. }
    )
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = |f: &mut fmt::Formatter<'_>, what: &str, all: Vec<(String, u64)>| {
            let least = all.iter().min_by_key(|(_, n)| *n);
            let list: Vec<String> = all.iter().map(|(name, n)| format!("{name} {n}")).collect();
            writeln!(f, "{} {what}, least: {least:?}\n  {}", all.len(), list.join(", "))
        };
        writeln!(f, "{} graphs, {} refused by the device", self.graphs, self.refused)?;
        let pairs = |all: &BTreeMap<String, u64>| all.iter().map(|(k, n)| (k.clone(), *n)).collect();
        line(f, "ops in kernels", pairs(&self.ops))?;
        line(f, "kinds of kernels", pairs(&self.kinds))?;
        let views = self.views.iter().map(|((a, b), n)| (format!("{a} of {b}"), *n)).collect();
        line(f, "pairs of views", views)
    }
}

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
    same(&plain, &interpreted, Tolerance::Bits, "fused, interpreted")?;
    if let Some(device) = device {
        match on_device(device, graph, &runs) {
            Ok(computed) => within(graph, &runs, &plain, &computed)?,
            Err(why) if why.contains("is not supported by kernels on this device") => coverage.refused += 1,
            Err(why) => return Err(why),
        }
    }
    coverage.count(fused.graph());
    Ok(())
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
    let mut states: HashMap<String, State> = HashMap::new();
    for (name, leaf) in &runs[0].states {
        let state = device.state(leaf.dtype, &leaf.shape).map_err(fail)?;
        state.write_bytes(&leaf.bytes).map_err(fail)?;
        states.insert(name.clone(), state);
    }
    let executable = device.compile(graph, &weights, &states).map_err(fail)?;
    Ok([replay(&executable, &runs[0], &states)?, replay(&executable, &runs[1], &states)?])
}

fn replay(executable: &Executable, run: &Inputs, states: &HashMap<String, State>) -> Result<Results, String> {
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
