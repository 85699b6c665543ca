//! Interpreter against device, and fused against unfused on it, on filetests, seeded random graphs and row
//! programs.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use tallow::Device;
use tallow_ir::elementwise::TypeRule;
use tallow_ir::{
    DType, DeviceCaps, ElementwiseOp, Graph, GraphError, Node, Op, ReduceKind, Scalar, Value, passes, verify,
};
use tallow_reference::Array;
use tallow_tests::bounds::{Bounds, Interval};
use tallow_tests::{
    Case, Inputs, Options, Tolerance, case, compare, random_graph, random_inputs, random_row_program,
};

use crate::harness::{
    device, device_with_range, device_with_rolled_loops, interpret, is_full, is_software, run, sampled,
};

/// Types that kernels compute in on a device: those of 64 bits where it has them.
pub fn computed(device: &Device) -> Vec<DType> {
    let caps = caps(device);
    let has = |d: &DType| match d {
        DType::I64 => caps.int64,
        DType::F64 => caps.float64,
        DType::U8 | DType::U32 | DType::I16 | DType::I32 | DType::Block(_) => true,
        DType::F8E4M3 | DType::F16 | DType::BF16 | DType::F32 => true,
    };
    DType::SCALARS.into_iter().filter(has).collect()
}

fn caps(device: &Device) -> &DeviceCaps {
    let Device::Vulkan(vulkan) = device else { panic!("{device} is no Vulkan device") };
    vulkan.caps()
}

/// What the interpreter gives, and what kernels may give instead ([`Bounds`]).
pub struct Expected {
    results: Vec<(String, Array)>,
    bounds: Vec<(String, Interval)>,
}

impl Expected {
    pub fn of(graph: &Graph, inputs: &Inputs) -> Expected {
        let results = interpret(graph, inputs).unwrap_or_else(|e| panic!("interpreter: {e}\n{graph}"));
        let bounds = Bounds::of(graph).and_then(|mut bounds| bounds.run(inputs));
        let bounds = bounds.unwrap_or_else(|e| panic!("{e}\n{graph}"));
        Expected { results, bounds }
    }

    /// Where the device leaves that.
    pub fn differences(&self, got: &[(String, Array)]) -> Vec<String> {
        let of =
            |all: &[(String, Array)], name: &str| all.iter().find(|(n, _)| n == name).map(|(_, a)| a.clone());
        let differs = |(name, interval): &(String, Interval)| match (of(&self.results, name), of(got, name)) {
            (Some(want), Some(got)) => interval.check(&want, &got).err().map(|why| format!("{name}: {why}")),
            _ => Some(format!("{name} is missing")),
        };
        self.bounds.iter().filter_map(differs).collect()
    }
}

fn differences(graph: &Graph, inputs: &Inputs, got: &[(String, Array)]) -> Vec<String> {
    Expected::of(graph, inputs).differences(got)
}

pub fn check(graph: &Graph, seed: u64) -> Option<String> {
    check_on(&device()?, graph, &random_inputs(graph, seed)).err().map(|why| format!("seed {seed}: {why}"))
}

/// As [`check`], without unrolled loops on a software device.
pub fn check_rolled(graph: &Graph, seed: u64) -> Option<String> {
    let found = check_on(&device_with_rolled_loops()?, graph, &random_inputs(graph, seed));
    found.err().map(|why| format!("seed {seed}: {why}"))
}

/// The interpreter against `device`.
pub fn check_on(device: &Device, graph: &Graph, inputs: &Inputs) -> Result<(), String> {
    judge(run(device, graph, inputs).map(|got| differences(graph, inputs, &got)), graph, inputs)
}

/// Fused kernels, and one kernel a node, against the interpreter.
fn check_fusion(device: &Device, graph: &Graph, inputs: &Inputs) -> Result<(), String> {
    let separate = separate(device, graph).map_err(|e| e.to_string())?;
    // Passes drop what no output needs, and with it symbols.
    let mut needed = inputs.clone();
    needed.symbols.retain(|name, _| separate.symbols().any(|s| s.name() == name));
    let expected = Expected::of(graph, inputs);
    let found = run(device, &separate, &needed).map(|got| expected.differences(&got));
    judge(found, &separate, &needed).map_err(|why| format!("one kernel a node: {why}"))?;
    judge(run(device, graph, inputs).map(|got| expected.differences(&got)), graph, inputs)
}

fn judge(found: Result<Vec<String>, String>, graph: &Graph, inputs: &Inputs) -> Result<(), String> {
    let found = found.map_err(|why| format!("{why}\n{graph}"))?;
    if found.is_empty() {
        return Ok(());
    }
    Err(format!("{}\nsymbols {:?}\n{graph}", found.join("\n"), inputs.symbols))
}

/// `graph` after all passes but the fuser, with every node a kernel of its own.
fn separate(device: &Device, graph: &Graph) -> Result<Graph, GraphError> {
    let mut now = graph.clone();
    for pass in passes::PASSES.iter().filter(|p| p.name != "fuse") {
        now = (pass.run)(&now, caps(device))?;
    }
    passes::fuse::separate(&now, caps(device))
}

/// Whether kernels for the device compute all types that occur.
fn computable(graph: &Graph, device: &Device) -> bool {
    let has = computed(device);
    graph.nodes().all(|(_, n)| {
        let wide = |v: &tallow_ir::Value| graph.ty(*v).dtype.size() == Some(8);
        let refused = match n.op {
            Op::Scatter(_) => n.operands.iter().any(wide) && !caps(device).atomic_int64,
            Op::ArgSort { .. } => n.operands.iter().any(wide) && !caps(device).int64,
            _ => false,
        };
        !refused && n.types.iter().all(|t| matches!(t.dtype, DType::Block(_)) || has.contains(&t.dtype))
    })
}

/// Types of every width, where the device has them.
fn all_types(device: &Device) -> Options {
    let of = |kind: fn(DType) -> bool| computed(device).into_iter().filter(|d| kind(*d)).collect::<Vec<_>>();
    Options { floats: of(DType::is_float), ints: of(DType::is_int), ..Options::for_kernels() }
}

/// A graph from a file, for a look at what differs: `TALLOW_IR=x.ir cargo test one_file -- --ignored`.
#[test]
#[ignore = "a tool for debugging"]
fn one_file() {
    let path = std::env::var("TALLOW_IR").expect("TALLOW_IR names a file");
    let graph = tallow_ir::text::parse(&std::fs::read_to_string(path).unwrap()).unwrap();
    let inputs = random_inputs(&graph, 2);
    println!("symbols {:?}", inputs.symbols);
    let (want, got) =
        (interpret(&graph, &inputs).unwrap(), run(&device().unwrap(), &graph, &inputs).unwrap());
    for ((name, want), (_, got)) in want.iter().zip(&got) {
        let pairs = want.to_f64s().into_iter().zip(got.to_f64s()).enumerate();
        let bad: Vec<_> = pairs.filter(|(_, (w, g))| (w - g).abs() > 1e-5).collect();
        println!(
            "{name}: {} of {} differ {:?}",
            bad.len(),
            want.len(),
            bad.iter().take(20).collect::<Vec<_>>()
        );
    }
}

pub fn report(failures: Vec<String>, of: usize) {
    assert!(failures.is_empty(), "{} of {of} graphs differ; the first:\n{}", failures.len(), failures[0]);
}

/// How many random graphs each test draws; `TALLOW_FUZZ` raises it for long runs.
fn count(default: u64) -> u64 {
    std::env::var("TALLOW_FUZZ").ok().and_then(|v| v.parse().ok()).unwrap_or(default)
}

#[test]
fn random_graphs_match_the_interpreter() {
    let options = Options { floats: vec![DType::F32], ..Options::for_kernels() };
    let n = count(60);
    let failures: Vec<String> =
        (0..n).filter_map(|seed| check(&random_graph(seed, 4 + seed as usize % 8, &options), seed)).collect();
    report(failures, n as usize);
}

#[test]
fn narrow_graphs_match_the_interpreter() {
    let options = Options {
        floats: vec![DType::F16, DType::BF16, DType::F8E4M3, DType::F32],
        ints: vec![DType::U8, DType::I16],
        ..Options::for_kernels()
    };
    let n = count(30);
    let failures: Vec<String> =
        (0..n).filter_map(|seed| check(&random_graph(1000 + seed, 8, &options), seed)).collect();
    report(failures, n as usize);
}

#[test]
fn graphs_of_all_types_match_the_interpreter() {
    let Some(device) = device() else { return };
    let (n, options) = (count(60), all_types(&device));
    let graphs = (4000..).map(|seed| (seed, random_graph(seed, 4 + seed as usize % 8, &options)));
    let graphs = graphs.filter(|(_, g)| computable(g, &device)).take(n as usize);
    report(graphs.filter_map(|(seed, g)| check(&g, seed)).collect(), n as usize);
}

/// Products and reductions in every type, also by extents that end within a tile; integers wrap.
#[test]
fn contractions_of_all_types_match_the_interpreter() {
    let Some(device) = device() else { return };
    let mut failures = vec![];
    for dtype in computed(&device) {
        let mut graph = Graph::new(dtype.name());
        let factor = Scalar::of(dtype, if dtype.is_int() { 100.0 } else { 0.25 });
        let large = graph.add(Op::Const(factor), &[]).unwrap();
        for (i, (m, k, n)) in [(1usize, 33usize, 70usize), (3, 64, 5), (33, 40, 17)].into_iter().enumerate() {
            let a = graph.input(&format!("a{i}"), dtype, [2, m, k]).unwrap();
            let b = graph.input(&format!("b{i}"), dtype, [2, k, n]).unwrap();
            let many = graph.broadcast(large, [2, m, k]).unwrap();
            let scaled = graph.elementwise(ElementwiseOp::Mul, &[a, many]).unwrap();
            let product = graph.add(Op::Matmul, &[scaled, b]).unwrap();
            let sum = graph.elementwise(ElementwiseOp::Add, &[product, product]).unwrap();
            graph.output(&format!("matmul {i}"), sum).unwrap();
            for kind in tallow_ir::ReduceKind::ALL {
                let reduced = graph.add(Op::Reduce { kind, axes: vec![2] }, &[scaled]).unwrap();
                graph.output(&format!("{} {i}", kind.name()), reduced).unwrap();
            }
        }
        failures.extend(check(&graph, 11));
    }
    report(failures, DType::SCALARS.len());
}

/// What the device has no type for is an error that names the node.
#[test]
fn missing_types_are_refused() {
    let Some(device) = device() else { return };
    let has = computed(&device);
    for dtype in DType::SCALARS.into_iter().filter(|d| !has.contains(d)) {
        let mut graph = Graph::new("wide");
        let a = graph.input("a", dtype, [4usize]).unwrap();
        let sum = graph.elementwise(ElementwiseOp::Add, &[a, a]).unwrap();
        graph.output("sum", sum).unwrap();
        let why = run(&device, &graph, &random_inputs(&graph, 1)).expect_err("has no such type");
        let named = format!("dtype {dtype} is not supported by kernels on this device");
        assert!(why.contains(&named), "{why}");
    }
}

#[test]
fn row_programs_match_the_interpreter() {
    let Some(device) = device() else { return };
    let n = count(50);
    let programs = (0..).map(|seed| (seed, random_row_program(seed)));
    let programs = programs.filter(|(_, g)| computable(g, &device)).take(n as usize);
    report(programs.filter_map(|(seed, g)| check(&g, seed)).collect(), n as usize);
}

/// Multiply-adds, and elements of a tensor, of a filetest that runs on software devices.
const MOST_PRODUCTS: u64 = 1_000_000_000;
const MOST_ELEMENTS: u64 = 5_000_000;

/// Elements of the largest tensor that a graph computes.
fn elements(graph: &Graph) -> u64 {
    let types = graph.nodes().filter(|(_, node)| !node.op.is_leaf()).flat_map(|(_, node)| &node.types);
    types.map(|ty| ty.shape.max_numel()).max().unwrap_or(0)
}

/// Multiply-adds of the matmuls and attentions of a graph.
fn products(graph: &Graph) -> u64 {
    let extent = |v: Value, axis: usize| graph.ty(v).shape.dims()[axis].max_value().unsigned_abs();
    let one = |node: &Node| {
        let results = node.types[0].shape.max_numel();
        if node.op == Op::Matmul {
            return results * extent(node.operands[0], graph.ty(node.operands[0]).shape.rank() - 1);
        }
        let is_attention = matches!(node.op, Op::Attention(_));
        if is_attention { 2 * results * extent(node.operands[1], 1) } else { 0 }
    };
    graph.nodes().map(|(_, node)| one(node)).sum()
}

/// Each filetest that holds a valid graph, of which software takes half: interpreter against device, fused and, of some on
/// software, one kernel a node.
#[test]
fn filetests_match_the_interpreter_and_themselves() {
    let Some(device) = device() else { return };
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("filetests");
    let (mut checked, mut failures) = (0, vec![]);
    let files = case::files(&folder);
    // A kernel for each node takes most of the time, and the tests of ops have those kernels too.
    let in_nodes: HashSet<&PathBuf> = sampled(&device, 8, &files).collect();
    for path in sampled(&device, 2, &files) {
        let case = Case::read(path);
        let Some(graph) = case.parse().ok().and_then(|g| verify(g).ok()) else { continue };
        let graph = graph.into_graph();
        if !computable(&graph, &device) || graph.outputs().is_empty() {
            continue;
        }
        // Such graphs show the choice of kernels for large devices; each takes half a minute on software, which chooses others.
        let is_large = products(&graph) > MOST_PRODUCTS || elements(&graph) > MOST_ELEMENTS;
        if is_software(&device) && !is_full() && is_large {
            println!("SKIPPED: {} on software", path.display());
            continue;
        }
        let inputs = case.inputs(&graph);
        let fused_before = graph.nodes().any(|(_, n)| matches!(n.op, Op::Fusion(_)));
        let found = match fused_before || !in_nodes.contains(path) {
            true => check_on(&device, &graph, &inputs),
            false => check_fusion(&device, &graph, &inputs),
        };
        failures.extend(found.err().map(|why| format!("{}: {why}", path.display())));
        checked += 1;
    }
    assert!(checked > 20, "only {checked} filetests hold graphs for kernels");
    report(failures, checked);
}

#[test]
fn fused_random_graphs_match_one_kernel_a_node() {
    let Some(device) = device() else { return };
    let options = Options { floats: vec![DType::F32], ..Options::for_kernels() };
    let n = count(30);
    let check = |seed: u64| {
        let graph = random_graph(2000 + seed, 6, &options);
        let found = check_fusion(&device, &graph, &random_inputs(&graph, seed));
        found.err().map(|why| format!("seed {seed}: {why}"))
    };
    report((0..n).filter_map(check).collect(), n as usize);
}

/// Tensors that exceed what one binding spans: up to five windows of 256 bytes each.
#[test]
fn tensors_in_windows_match_the_interpreter() {
    let Some(device) = device_with_range(256) else { return };
    let options = Options { max_elements: 300, custom: false, ..Options::for_kernels() };
    let n = count(40);
    let check = |seed: u64| {
        let graph = random_graph(3000 + seed, 5, &options);
        let found = check_on(&device, &graph, &random_inputs(&graph, seed));
        found.err().map(|why| format!("seed {seed}: {why}"))
    };
    report((0..n).filter_map(check).collect(), n as usize);
}

/// Every elementwise op in every type that kernels compute in, over awkward lengths.
#[test]
fn elementwise_ops_match_the_interpreter() {
    let Some(device) = device() else { return };
    let mut failures = vec![];
    for dtype in computed(&device) {
        let mut graph = Graph::new(dtype.name());
        for (i, len) in [1usize, 7, 64, 257].into_iter().enumerate() {
            let a = graph.input(&format!("a{i}"), dtype, [len]).unwrap();
            let b = graph.input(&format!("b{i}"), dtype, [len]).unwrap();
            let c = graph.input(&format!("c{i}"), DType::U8, [len]).unwrap();
            for op in ElementwiseOp::ALL {
                let operands = match op.arity() {
                    1 => vec![a],
                    2 => vec![a, b],
                    _ if op.rule() == TypeRule::Word => vec![a, b, a],
                    _ => vec![c, a, b],
                };
                if let Ok(v) = graph.add(Op::Elementwise(*op), &operands) {
                    graph.output(&format!("{}.{i}", op.name()), v).unwrap();
                }
            }
        }
        failures.extend(check(&graph, 5));
    }
    assert!(
        failures.is_empty(),
        "{}",
        failures.iter().map(|f| f.lines().next().unwrap_or("")).collect::<Vec<_>>().join("\n")
    );
}

/// Every elementwise op and reduction on NaN, infinities, zeros of both signs and ordinary numbers, in all pairs.
/// Drivers may assume that none of the former occur, unless a shader says otherwise or tests for them bit by bit.
#[test]
fn special_values_match_the_interpreter() {
    let Some(device) = device() else { return };
    let values =
        [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.0, 7.0, 1000.0];
    let n = values.len();
    // Rounding of the type, twice for two roundings on the way; for f32 the errors that Vulkan allows exp and pow.
    for (dtype, rel) in [(DType::F32, 1e-4), (DType::F16, 2e-3), (DType::BF16, 1.6e-2)] {
        let mut graph = Graph::new(&format!("special_{dtype}"));
        let a = graph.input("a", dtype, [n, n]).unwrap();
        let b = graph.input("b", dtype, [n, n]).unwrap();
        let c = graph.input("c", DType::U8, [n, n]).unwrap();
        for op in ElementwiseOp::ALL {
            let operands = match op.arity() {
                1 => vec![a],
                2 => vec![a, b],
                _ => vec![c, a, b],
            };
            if let Ok(v) = graph.add(Op::Elementwise(*op), &operands) {
                graph.output(op.name(), v).unwrap();
            }
        }
        for kind in ReduceKind::ALL {
            let v = graph.add(Op::Reduce { kind, axes: vec![1] }, &[b]).unwrap();
            graph.output(kind.name(), v).unwrap();
        }
        let mut inputs = random_inputs(&graph, 1);
        let mut set = |name: &str, at: &dyn Fn(usize) -> f64| {
            let all: Vec<f64> = (0..n * n).map(at).collect();
            inputs.inputs.get_mut(name).unwrap().bytes =
                Array::from_f64s(dtype, &[n, n], &all).unwrap().to_bytes();
        };
        set("a", &|i| values[i / n]);
        // Each row of b starts elsewhere and leaves something out, so that reductions differ.
        set("b", &|i| values[(i % n + i / n).min(n - 1)]);
        let want = interpret(&graph, &inputs).unwrap();
        let got = run(&device, &graph, &inputs).unwrap();
        let differ = |((name, want), (_, got)): (&(String, Array), &(String, Array))| {
            compare(want, got, Tolerance::Each { abs: 1e-6, rel }).err().map(|why| format!("{name}: {why}"))
        };
        let found: Vec<String> = want.iter().zip(&got).filter_map(differ).collect();
        assert!(found.is_empty(), "{dtype}:\n{}", found.join("\n"));
    }
}

/// Every cast between types that kernels compute in, NaN, infinities and range ends included.
#[test]
fn casts_match_the_interpreter() {
    let Some(device) = device() else { return };
    let values = [
        32767.0,
        32768.0,
        -32769.0,
        0.0,
        -0.0,
        1.5,
        -1.5,
        255.0,
        256.0,
        300.0,
        -300.0,
        65504.0,
        1e6,
        -1e6,
        2147483647.0,
        4.3e9,
        -4.3e9,
    ];
    let special = [
        f64::NAN,
        f64::INFINITY,
        f64::NEG_INFINITY,
        0.4999,
        2.5,
        3.5,
        448.0,
        464.0,
        464.1,
        0.0009,
        0.001,
        0.0029,
        0.0156,
    ];
    for from in computed(&device) {
        let mut all: Vec<f64> = values.to_vec();
        if from.is_float() {
            all.extend(special);
        }
        let mut graph = Graph::new("casts");
        let a = graph.input("a", from, [all.len()]).unwrap();
        for to in computed(&device) {
            let v = graph.add(Op::Cast(to), &[a]).unwrap();
            graph.output(to.name(), v).unwrap();
        }
        let mut inputs = random_inputs(&graph, 1);
        let leaf = inputs.inputs.get_mut("a").unwrap();
        leaf.bytes = Array::from_f64s(from, &[all.len()], &all).unwrap().to_bytes();
        let want = interpret(&graph, &inputs).unwrap();
        let got = run(&device, &graph, &inputs).unwrap();
        for ((name, want), (_, got)) in want.iter().zip(&got) {
            compare(want, got, Tolerance::Values).unwrap_or_else(|e| panic!("{from} to {name}: {e}"));
        }
    }
}
