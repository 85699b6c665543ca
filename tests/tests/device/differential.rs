//! Interpreter against device, on seeded random graphs and row programs.

use tallow_ir::{DType, ElementwiseOp, Graph, Op};
use tallow_reference::Array;
use tallow_tests::{Options, Tolerance, compare, random_graph, random_inputs, random_row_program};

use crate::harness::{device, interpret, run};

/// Rounding that a kernel may differ by. The interpreter rounds each node to its dtype; a fused kernel
/// computes in f32 throughout, so each 16-bit node contributes up to half a unit in its last place:
/// 2^-11 relative for f16, 2^-8 for bf16, whose squares are 2e-7 and 1.5e-5.
fn tolerance(graph: &Graph) -> Tolerance {
    let has = |d: DType| graph.nodes().any(|(_, n)| n.types.iter().any(|t| t.dtype == d));
    Tolerance::Nmse(if has(DType::BF16) {
        1e-3
    } else if has(DType::F16) {
        1e-5
    } else {
        1e-8
    })
}

fn differences(graph: &Graph, got: &[(String, Array)], want: &[(String, Array)]) -> Vec<String> {
    let mut found = vec![];
    for ((name, want), (_, got)) in want.iter().zip(got) {
        if let Err(why) = compare(want, got, tolerance(graph)) {
            found.push(format!("{name}: {why}"));
        }
    }
    found
}

fn check(graph: &Graph, seed: u64) -> Option<String> {
    let device = device()?;
    let inputs = random_inputs(graph, seed);
    let want = interpret(graph, &inputs).unwrap_or_else(|e| panic!("seed {seed}: interpreter: {e}\n{graph}"));
    match run(&device, graph, &inputs) {
        Err(why) => Some(format!("seed {seed}: {why}\n{graph}")),
        Ok(got) => {
            let found = differences(graph, &got, &want);
            (!found.is_empty())
                .then(|| format!("seed {seed}: {}\nsymbols {:?}\n{graph}", found.join("\n"), inputs.symbols))
        }
    }
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

fn report(failures: Vec<String>, of: usize) {
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
fn sixteen_bit_graphs_match_the_interpreter() {
    let options = Options {
        floats: vec![DType::F16, DType::BF16, DType::F32],
        ints: vec![DType::U8],
        ..Options::for_kernels()
    };
    let n = count(30);
    let failures: Vec<String> =
        (0..n).filter_map(|seed| check(&random_graph(1000 + seed, 4, &options), seed)).collect();
    report(failures, n as usize);
}

#[test]
fn row_programs_match_the_interpreter() {
    let n = count(50);
    let wide = |g: &Graph| {
        g.nodes().any(|(_, n)| n.types.iter().any(|t| matches!(t.dtype, DType::F64 | DType::I64)))
    };
    let programs =
        (0..).map(|seed| (seed, random_row_program(seed))).filter(|(_, g)| !wide(g)).take(n as usize);
    report(programs.filter_map(|(seed, g)| check(&g, seed)).collect(), n as usize);
}

/// Every elementwise op in every type that kernels compute in, over awkward lengths.
#[test]
fn elementwise_ops_match_the_interpreter() {
    let mut failures = vec![];
    for dtype in [DType::F32, DType::F16, DType::BF16, DType::U8, DType::U32, DType::I32] {
        let mut graph = Graph::new(dtype.name());
        for (i, len) in [1usize, 7, 64, 257].into_iter().enumerate() {
            let a = graph.input(&format!("a{i}"), dtype, [len]).unwrap();
            let b = graph.input(&format!("b{i}"), dtype, [len]).unwrap();
            let c = graph.input(&format!("c{i}"), DType::U8, [len]).unwrap();
            for op in ElementwiseOp::ALL {
                let operands = match op.arity() {
                    1 => vec![a],
                    2 => vec![a, b],
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

/// Every cast between types that kernels compute in, NaN, infinities and range ends included.
#[test]
fn casts_match_the_interpreter() {
    let Some(device) = device() else { return };
    let types = [DType::F32, DType::F16, DType::BF16, DType::U8, DType::U32, DType::I32];
    let values =
        [0.0, -0.0, 1.5, -1.5, 255.0, 256.0, 300.0, -300.0, 65504.0, 1e6, -1e6, 2147483647.0, 4.3e9, -4.3e9];
    let special = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.4999, 2.5, 3.5];
    for from in types {
        let mut all: Vec<f64> = values.to_vec();
        if from.is_float() {
            all.extend(special);
        }
        let mut graph = Graph::new("casts");
        let a = graph.input("a", from, [all.len()]).unwrap();
        for to in types {
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
