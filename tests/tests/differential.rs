//! Passes preserve meaning: the interpreter gives the same before and after each of them.
//!
//! On all filetests and on random graphs, for several devices. `DIFFERENTIAL_SEEDS=2000` tries more; a
//! failure names the seed and prints both graphs.

use std::env;
use std::path::Path;

use tallow_ir::crop::{Known, Region, copy_region, crop_within, extents};
use tallow_ir::isolate::isolated;
use tallow_ir::passes::{self, expand_attention};
use tallow_ir::{DType, DeviceCaps, Graph, Op, caps, verify};
use tallow_reference::{Array, evaluate};
use tallow_tests::bounds::Bounds;
use tallow_tests::random_inputs::Leaf;
use tallow_tests::reduce::{caught, reduce};
use tallow_tests::{
    Case, Inputs, Options, Tolerance, case, compare, random_graph, random_inputs, random_row_program,
};

/// What every pass promises. Rewrites rule by rule hold bit for bit, a fusion keeps the rounding of each node
/// inside it, and a matrix product's bits depend on its extents alone. A pass that reorders sums must say so
/// here, with its bound. `split_scans` does, in rows of floats longer than any here. `expand_attention` rounds between its
/// formulas. Kernels of them keep the bounds of the whole (`tests/tests/device/scans.rs`, `attention_grad.rs`).
const PROMISE: Tolerance = Tolerance::Bits;

/// Devices that differ in what the fuser may do.
const PROFILES: [&str; 3] = ["minimum", "lavapipe", "h200"];

fn seeds() -> u64 {
    env::var("DIFFERENTIAL_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(150)
}

/// Outputs by name, and states after the run.
type Results = Vec<(String, Array)>;

fn results(graph: &Graph, inputs: &Inputs) -> Result<Results, String> {
    let mut env = inputs.env();
    let mut all = evaluate(graph, &mut env).map_err(|e| e.to_string())?;
    let mut states: Results = env.states.into_iter().map(|(n, a)| (format!("state {n}"), a)).collect();
    states.sort_by(|a, b| a.0.cmp(&b.0));
    all.extend(states);
    Ok(all)
}

fn same(expected: &Results, got: &Results) -> Result<(), String> {
    let names = |all: &Results| all.iter().map(|(n, _)| n.clone()).collect::<Vec<_>>();
    if names(expected) != names(got) {
        return Err(format!("results {:?} became {:?}", names(expected), names(got)));
    }
    for ((name, e), (_, g)) in expected.iter().zip(got) {
        compare(e, g, PROMISE).map_err(|why| format!("{name}: {why}"))?;
    }
    Ok(())
}

/// A graph's inputs and results, and the graphs known to give them: most passes leave most graphs alone, or do the
/// same for each device, and each graph is interpreted once.
struct Meaning<'a> {
    inputs: &'a Inputs,
    results: Results,
    known: Vec<Graph>,
}

/// Runs `pass` on `graph` and returns the result, if it means the same.
fn preserved(
    pass: &passes::Pass,
    device: &DeviceCaps,
    graph: &Graph,
    meaning: &mut Meaning,
) -> Result<Graph, String> {
    let fail = |why: String, after: &str| {
        format!("pass {} for {}: {why}\n---- before\n{graph}---- after\n{after}", pass.name, device.name)
    };
    let after = (pass.run)(graph, device).map_err(|e| fail(e.to_string(), ""))?;
    let text = after.to_string();
    let list = |found: Vec<verify::Diagnostic>| found.iter().map(|d| format!("{d}\n")).collect();
    let after = verify(after).map_err(|found| fail(list(found), &text))?.into_graph();
    if !meaning.known.contains(&after) {
        let got = results(&after, meaning.inputs).map_err(|why| fail(why, &text))?;
        same(&meaning.results, &got).map_err(|why| fail(why, &text))?;
        meaning.known.push(after.clone());
    }
    Ok(after)
}

/// Each pass alone on the graph, and the whole list one after the other.
fn check(graph: &Graph, inputs: &Inputs) -> Result<(), String> {
    let mut meaning = Meaning { inputs, results: results(graph, inputs)?, known: vec![graph.clone()] };
    for name in PROFILES {
        let device = caps::profile(name).ok_or("no such profile")?;
        let expanded = expand_attention::run(graph, &device).map_err(|e| e.to_string())?;
        if attention_gradients(&expanded) == attention_gradients(graph) {
            check_for(&device, graph, &mut meaning)?;
            continue;
        }
        // This pass rounds between its formulas; the others must not change what it makes.
        let results = results(&expanded, inputs)?;
        within_bounds(graph, inputs, &meaning.results, &results)
            .map_err(|why| format!("expanded for {name}: {why}"))?;
        let known = vec![expanded.clone()];
        check_for(&device, &expanded, &mut Meaning { inputs, results, known })?;
    }
    Ok(())
}

fn attention_gradients(graph: &Graph) -> usize {
    graph.nodes().filter(|(_, node)| matches!(node.op, Op::AttentionGrad(..))).count()
}

fn within_bounds(graph: &Graph, inputs: &Inputs, expected: &Results, got: &Results) -> Result<(), String> {
    for (name, interval) in Bounds::of(graph)?.run(inputs)? {
        let of = |all: &Results| all.iter().find(|(n, _)| *n == name).map(|(_, array)| array.clone());
        let (Some(expected), Some(got)) = (of(expected), of(got)) else { return Err(format!("no {name}")) };
        interval.check(&expected, &got).map_err(|why| format!("{name}: {why}"))?;
    }
    Ok(())
}

fn check_for(device: &DeviceCaps, graph: &Graph, meaning: &mut Meaning<'_>) -> Result<(), String> {
    let mut now = graph.clone();
    let is_fused = graph.nodes().any(|(_, node)| matches!(node.op, Op::Fusion(_)));
    if is_fused {
        // The fuser takes graphs without fusions, and the driver ends with it.
        for pass in passes::PASSES.iter().filter(|p| p.name != "fuse") {
            preserved(pass, device, graph, meaning)?;
        }
        return Ok(());
    }
    for (i, pass) in passes::PASSES.iter().enumerate() {
        if i > 0 {
            preserved(pass, device, graph, meaning)?;
        }
        now = preserved(pass, device, &now, meaning)?;
    }
    let driven = passes::run(graph, device, &mut |_, _| {}).map_err(|e| e.to_string())?;
    if *driven.graph() != now {
        return Err(format!("the driver's graph differs from the passes':\n{}----\n{now}", driven.graph()));
    }
    Ok(())
}

/// Tries all seeds, then explains the first that failed on the smallest graph that still fails.
fn check_seeds(what: &str, make: impl Fn(u64) -> Graph) {
    let judge = |seed: u64, graph: &Graph| caught(|| check(graph, &random_inputs(graph, seed)));
    let bad: Vec<u64> = (0..seeds()).filter(|seed| judge(*seed, &make(*seed)).is_err()).collect();
    let Some(&first) = bad.first() else { return };
    let small = reduce(&make(first), |graph| judge(first, graph).is_err());
    let why = judge(first, &small).err().unwrap_or_default();
    panic!("{what}: seeds {bad:?} of {} fail; {first} reduced:\n{small}{why}", seeds());
}

#[test]
fn filetests_keep_their_meaning() {
    // The one that filetests use.
    tallow_tests::custom::mix_kernel();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("filetests");
    let (mut checked, mut failed) = (0, vec![]);
    for path in case::files(&folder) {
        let case = Case::read(&path);
        let Some(graph) = case.parse().ok().and_then(|g| verify(g).ok()) else { continue };
        let graph = graph.into_graph();
        if let Err(why) = caught(|| check(&graph, &case.inputs(&graph))) {
            failed.push(format!("{}: {why}", path.display()));
        }
        checked += 1;
    }
    assert!(checked > 0, "no filetest holds a valid graph");
    assert!(failed.is_empty(), "{} of {checked} files:\n{}", failed.len(), failed.join("\n"));
}

#[test]
fn random_graphs_keep_their_meaning() {
    check_seeds("random graph", |seed| random_graph(seed, 12, &Options::default()));
}

#[test]
fn small_random_graphs_keep_their_meaning() {
    check_seeds("small random graph", |seed| random_graph(seed, 4, &Options::default()));
}

#[test]
fn large_random_graphs_keep_their_meaning() {
    let options = Options { max_elements: 256, ..Options::default() };
    check_seeds("large random graph", |seed| {
        random_graph(seed, if seed % 10 == 0 { 80 } else { 30 }, &options)
    });
}

#[test]
fn row_programs_keep_their_meaning() {
    check_seeds("row program", random_row_program);
}

#[test]
fn drawn_blocks_keep_their_meaning() {
    let draw = |seed| tallow_tests::blocks::Block::draw(seed).graph().expect("the builder is right");
    let wrong = |seed: &u64| caught(|| check(&draw(*seed), &random_inputs(&draw(*seed), *seed))).err();
    let failed: Vec<String> = (1..=20u64).filter_map(|s| wrong(&s)).collect();
    assert!(failed.is_empty(), "{} of 20 blocks:\n{}", failed.len(), failed[0]);
}

/// Elements of all nodes.
fn elements(graph: &Graph) -> u64 {
    graph.nodes().flat_map(|(_, node)| &node.types).map(|ty| ty.shape.max_numel()).sum()
}

/// What a kernel's cropped graph computes, compared with those parts of the whole. Returns how much was compared.
fn check_crop(kernel: &Graph, seed: u64) -> Result<usize, String> {
    let inputs = random_inputs(kernel, seed);
    let whole = elements(kernel);
    let Ok(cropped) =
        crop_within(kernel, &Known::new(), &|graph| 3.0 * elements(graph) as f64 / whole as f64)
    else {
        return Ok(0);
    };
    let fail = |why: String| format!("{why}\n{kernel}---- cropped\n{}", cropped.graph);
    let unit = |dtype: DType| match dtype {
        DType::Block(format) => (format.block_elements(), format.block_bytes()),
        scalar => (1, scalar.size().unwrap_or(1)),
    };
    let part = |leaf: &Leaf, region: &Region| {
        let bytes = copy_region(&leaf.bytes, &leaf.shape, region, unit(leaf.dtype)).expect("is a part");
        Leaf { bytes, shape: extents(region), dtype: leaf.dtype }
    };
    let mut of_part = Inputs { symbols: inputs.symbols.clone(), ..Inputs::default() };
    for leaf in &cropped.leaves {
        let all = [&inputs.inputs, &inputs.weights, &inputs.states];
        let found = all.into_iter().find_map(|all| all.get(&leaf.of)).ok_or("no such leaf")?;
        let (name, found) = (leaf.name.clone(), part(found, &leaf.region));
        let op = cropped.graph.nodes().map(|(_, node)| &node.op);
        match op.into_iter().find(|op| matches!(op, Op::State { name, .. } if *name == leaf.name)) {
            Some(_) => of_part.states.insert(name, found),
            None if matches!(found.dtype, DType::Block(_)) => of_part.weights.insert(name, found),
            None => of_part.inputs.insert(name, found),
        };
    }
    let (expected, found) = (results(kernel, &inputs)?, results(&cropped.graph, &of_part).map_err(fail)?);
    let bounds = Bounds::of(&cropped.graph)?.run(&of_part)?;
    for result in &cropped.results {
        let name = &kernel.outputs()[result.output].name;
        let state = updated_leaf(kernel, result.output).map(|leaf| format!("state {leaf}"));
        let name = if name.is_empty() { state.ok_or("no state")? } else { name.clone() };
        let (_, whole) = expected.iter().find(|(n, _)| *n == name).ok_or("no result")?;
        let leaf = Leaf { dtype: whole.ty, shape: whole.shape.clone(), bytes: whole.to_bytes() };
        let (_, got) = found.iter().find(|(n, _)| *n == result.name).ok_or("no part")?;
        let (_, interval) = bounds.iter().find(|(n, _)| *n == result.name).ok_or("no bounds")?;
        interval
            .check(got, &part(&leaf, &result.region).array())
            .map_err(|why| fail(format!("{}: {why}", result.name)))?;
    }
    Ok(usize::from(cropped.is_sample))
}

/// The state that an output is the new version of.
fn updated_leaf(graph: &Graph, output: usize) -> Option<String> {
    let mut value = graph.outputs()[output].value;
    while matches!(graph.op(value), Op::StateUpdate { .. }) {
        value = graph.node(value.node).operands[0];
    }
    match graph.op(value) {
        Op::State { name, .. } => Some(name.clone()),
        _ => None,
    }
}

/// Checks the kernels of a graph; returns how many were cut.
fn check_crops(graph: &Graph, inputs: &Inputs, seed: u64) -> Result<usize, String> {
    let device = caps::profile("h200").ok_or("no such profile")?;
    let fused = passes::run(graph, &device, &mut |_, _| {}).map_err(|e| e.to_string())?;
    let fusions = fused.graph().nodes().filter_map(|(_, node)| match &node.op {
        Op::Fusion(fusion) => Some(fusion),
        _ => None,
    });
    fusions
        .map(|fusion| check_crop(&isolated(fusion, &inputs.symbols).map_err(|e| e.to_string())?, seed))
        .sum()
}

/// Parts of a kernel's results are those of the whole.
#[test]
fn crops_of_kernels_are_parts_of_the_whole() {
    tallow_tests::custom::mix_kernel();
    let mut graphs: Vec<(String, Graph, Inputs)> = vec![];
    for path in case::files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("filetests")) {
        let case = Case::read(&path);
        let Some(graph) = case.parse().ok().and_then(|g| verify(g).ok()) else { continue };
        let graph = graph.into_graph();
        // What is fused already has no passes.
        if !graph.nodes().any(|(_, node)| matches!(node.op, Op::Fusion(_))) && elements(&graph) < 1 << 22 {
            let inputs = case.inputs(&graph);
            graphs.push((path.display().to_string(), graph, inputs));
        }
    }
    for seed in 0..seeds() {
        let is_row = seed % 3 == 0;
        let graph =
            if is_row { random_row_program(seed) } else { random_graph(seed, 12, &Options::default()) };
        let inputs = random_inputs(&graph, seed);
        graphs.push((format!("seed {seed}"), graph, inputs));
    }
    let (mut samples, mut failed) = (0, vec![]);
    for (number, (name, graph, inputs)) in graphs.iter().enumerate() {
        match caught(|| check_crops(graph, inputs, number as u64).map(|cut| samples += cut)) {
            Ok(()) => {}
            Err(why) => failed.push(format!("{name}: {why}")),
        }
    }
    assert!(failed.is_empty(), "{} of {} graphs:\n{}", failed.len(), graphs.len(), failed[0]);
    assert!(samples > graphs.len() / 2, "only {samples} kernels of {} graphs were cut", graphs.len());
}
