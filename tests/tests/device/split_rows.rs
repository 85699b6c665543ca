//! Few rows that are so long that several workgroups share each: lengths around what they are split at, all reductions and
//! element types, NaN and ties in any part, lengths that only a run knows, and runs one after the other.

use tallow::Device;
use tallow_ir::{DType, Dim, ElementwiseOp as E, Graph, GraphError, Op, ReduceKind, Symbol, Value};
use tallow_tests::random_inputs;
use tallow_tests::random_inputs::with_symbols;

use crate::differential::{check, check_on, computed};
use crate::harness::{device, interpret};

fn reduce(g: &mut Graph, name: &str, kind: ReduceKind, x: Value, axes: &[usize]) -> Result<(), GraphError> {
    let y = g.add(Op::Reduce { kind, axes: axes.to_vec() }, &[x])?;
    g.output(&format!("{name}_{}", kind.name()), y)
}

/// Kernels of the graph whose rows are shared: those that have memory to meet in.
fn shared(device: &Device, graph: &Graph) -> usize {
    let module = tallow_codegen::compile(graph, device.caps().unwrap()).unwrap();
    module.kernels.iter().filter(|kernel| !kernel.scratch.is_empty()).count()
}

/// Lengths around multiples of a part, rows below and above the number that is split, and all axes at once.
#[test]
fn lengths_and_numbers_of_rows() {
    let Some(device) = device() else { return };
    let shapes = [[1, 16383], [1, 16384], [1, 16387], [3, 20480], [2, 70001], [127, 16400], [129, 16400]];
    for (seed, [rows, n]) in shapes.into_iter().enumerate() {
        let build = || -> Result<Graph, GraphError> {
            let mut g = Graph::new("rows");
            let x = g.input("x", DType::F32, [rows, n])?;
            let y = g.input("y", DType::F32, [n])?;
            for kind in [ReduceKind::Sum, ReduceKind::ArgMax] {
                reduce(&mut g, "rows", kind, x, &[1])?;
                reduce(&mut g, "all", kind, y, &[0])?;
            }
            // Read along with another operand, and used afterwards.
            let y = g.broadcast(y, [rows, n])?;
            let product = g.elementwise(E::Mul, &[x, y])?;
            let dot = g.add(Op::Reduce { kind: ReduceKind::Sum, axes: vec![1] }, &[product])?;
            let dot = g.elementwise(E::Tanh, &[dot])?;
            g.output("dot", dot)?;
            reduce(&mut g, "whole", ReduceKind::Max, product, &[0, 1])?;
            Ok(g)
        };
        let graph = build().unwrap();
        assert_eq!(shared(&device, &graph) > 0, n > 16383, "[{rows}, {n}]");
        if let Some(why) = check(&graph, seed as u64) {
            panic!("[{rows}, {n}]: {}", why.lines().take(40).collect::<Vec<_>>().join("\n"));
        }
    }
}

#[test]
fn every_reduction_of_every_type() {
    let Some(device) = device() else { return };
    for dtype in computed(&device) {
        let build = || -> Result<Graph, GraphError> {
            let mut g = Graph::new("kinds");
            let x = g.input("x", dtype, [2i64, 16600])?;
            for kind in ReduceKind::ALL.into_iter().filter(|kind| *kind != ReduceKind::Prod || dtype.is_int())
            {
                reduce(&mut g, "r", kind, x, &[1])?;
            }
            if dtype.is_float() {
                // So many factors overflow in one order and vanish in another, but for signs.
                let (zero, one) = (g.full_like(x, 0.0)?, g.full_like(x, 1.0)?);
                let minus = g.full_like(x, -1.0)?;
                let negative = g.elementwise(E::Lt, &[x, zero])?;
                let signs = g.elementwise(E::Select, &[negative, minus, one])?;
                reduce(&mut g, "signs", ReduceKind::Prod, signs, &[1])?;
            }
            Ok(g)
        };
        let graph = build().unwrap();
        assert!(shared(&device, &graph) > 0, "{dtype}");
        if let Some(why) = check(&graph, 7) {
            panic!("{dtype}: {}", why.lines().take(40).collect::<Vec<_>>().join("\n"));
        }
    }
}

/// The first of the largest wins wherever it lies, and NaN is larger than all.
#[test]
fn ties_and_nan_in_any_part() {
    let Some(device) = device() else { return };
    const N: usize = 40_000;
    let mut g = Graph::new("extremes");
    let x = g.input("x", DType::F32, [1i64, N as i64]).unwrap();
    for kind in [ReduceKind::ArgMax, ReduceKind::ArgMin, ReduceKind::Max, ReduceKind::Min] {
        reduce(&mut g, "r", kind, x, &[1]).unwrap();
    }
    assert_eq!(shared(&device, &g), 1);
    let executable = device.compile(&g, &Default::default(), &Default::default()).unwrap();
    let mut inputs = random_inputs(&g, 3);
    let places = [0, 1, 1023, 4095, 4096, 9000, 20_000, N - 1];
    for special in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e30] {
        for (i, first) in places.into_iter().enumerate() {
            let mut values: Vec<f32> = (0..N).map(|i| (i * 37 % 1000) as f32).collect();
            places[i..].iter().for_each(|at| values[*at] = special);
            let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
            inputs.inputs.iter_mut().for_each(|(_, leaf)| leaf.bytes.clone_from(&bytes));
            let want = interpret(&g, &inputs).unwrap();
            // Runs one after the other find the counts of parts as the first one did.
            let got = executable.run(&[], &[("x", &bytes)]).unwrap();
            for output in got.iter() {
                let (_, array) = want.iter().find(|(name, _)| *name == output.name).unwrap();
                let same = match array.to_f64s()[0].is_nan() {
                    true => f32::from_le_bytes(output.bytes[..4].try_into().unwrap()).is_nan(),
                    false => array.to_bytes() == output.bytes,
                };
                assert!(same, "{special} from {first}: {} is {:?}", output.name, output.bytes);
            }
        }
    }
}

/// Rows and lengths that only a run knows, none and all of them among them.
#[test]
fn lengths_of_a_run() {
    let Some(device) = device() else { return };
    let build = |rows: Dim, n: Dim| -> Result<Graph, GraphError> {
        let mut g = Graph::new("symbols");
        let x = g.input("x", DType::F32, [rows, n])?;
        for kind in [ReduceKind::Sum, ReduceKind::Max, ReduceKind::ArgMin] {
            reduce(&mut g, "r", kind, x, &[1])?;
        }
        Ok(g)
    };
    let symbol = |limit| Dim::from(&Symbol::new("n", limit));
    let long = build(2.into(), symbol(50_000)).unwrap();
    let four = build(1.into(), &symbol(12_000) * &Dim::constant(4)).unwrap();
    let rows = build(symbol(5), 16_500.into()).unwrap();
    for (graph, values) in
        [(long, vec![0, 1, 255, 4097, 49_999]), (four, vec![0, 3, 12_000]), (rows, vec![0, 1, 5])]
    {
        assert_eq!(shared(&device, &graph), 1);
        for n in values {
            let inputs = with_symbols(&graph, n, [("n".into(), n)].into_iter().collect());
            if let Err(why) = check_on(&device, &graph, &inputs) {
                panic!("n = {n}: {}", why.lines().take(40).collect::<Vec<_>>().join("\n"));
            }
        }
    }
}

/// What follows from results of the same row: kernels of their own where few rows are long, one kernel else.
#[test]
fn what_follows_from_results() {
    let Some(device) = device() else { return };
    for (seed, [rows, n]) in
        [[1, 16384], [1, 32768], [3, 40001], [8, 33000], [9, 33000]].into_iter().enumerate()
    {
        let build = || -> Result<Graph, GraphError> {
            let mut g = Graph::new("rows");
            let x = g.input("x", DType::F32, [rows, n])?;
            let mean = g.reduce_keepdim(ReduceKind::Sum, x, &[1])?;
            let by = g.full_like(mean, 1.0 / n as f64)?;
            let mean = g.elementwise(E::Mul, &[mean, by])?;
            let mean = g.broadcast(mean, [rows, n])?;
            let centred = g.elementwise(E::Sub, &[x, mean])?;
            let squares = g.elementwise(E::Mul, &[centred, centred])?;
            reduce(&mut g, "variance", ReduceKind::Sum, squares, &[1])?;
            g.output("centred", centred)?;
            Ok(g)
        };
        let graph = build().unwrap();
        assert_eq!(shared(&device, &graph), if rows < 9 && n > 32767 { 2 } else { 0 }, "[{rows}, {n}]");
        if let Some(why) = check(&graph, seed as u64) {
            panic!("[{rows}, {n}]: {}", why.lines().take(40).collect::<Vec<_>>().join("\n"));
        }
    }
}
