//! Few rows or columns that are so long that several workgroups share each: lengths around what they are split at, all reductions and
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

/// Columns in tiles that they fill and do not, in groups and one by one, few enough to be shared and not.
#[test]
fn lengths_and_numbers_of_columns() {
    let Some(device) = device() else { return };
    let shapes = [
        ([16384, 2], true),
        ([9000, 3], true),
        ([20480, 8], true),
        ([5000, 31], true),
        ([70001, 5], true),
        ([8192, 33], true),
        ([4097, 130], true),
        ([2100, 257], false),
        ([300, 8], false),
    ];
    for (seed, ([n, columns], split)) in shapes.into_iter().enumerate() {
        let build = || -> Result<Graph, GraphError> {
            let mut g = Graph::new("columns");
            let x = g.input("x", DType::F32, [n, columns])?;
            let y = g.input("y", DType::F32, [columns])?;
            for kind in [ReduceKind::Sum, ReduceKind::Max, ReduceKind::ArgMin] {
                reduce(&mut g, "columns", kind, x, &[0])?;
            }
            // Used afterwards, along with another operand.
            let wide = g.broadcast(y, [n, columns])?;
            let product = g.elementwise(E::Mul, &[x, wide])?;
            let dot = g.add(Op::Reduce { kind: ReduceKind::Sum, axes: vec![0] }, &[product])?;
            let dot = g.elementwise(E::Tanh, &[dot])?;
            let dot = g.elementwise(E::Mul, &[dot, y])?;
            g.output("dot", dot)?;
            Ok(g)
        };
        let graph = build().unwrap();
        assert_eq!(shared(&device, &graph) > 0, split, "[{n}, {columns}]");
        if let Some(why) = check(&graph, seed as u64) {
            panic!("[{n}, {columns}]: {}", why.lines().take(40).collect::<Vec<_>>().join("\n"));
        }
    }
}

#[test]
fn every_reduction_of_every_type() {
    let Some(device) = device() else { return };
    every_reduction(&device, [2, 16600], 1);
}

#[test]
fn every_reduction_of_columns_of_every_type() {
    let Some(device) = device() else { return };
    every_reduction(&device, [5000, 6], 0);
}

fn every_reduction(device: &Device, shape: [i64; 2], axis: usize) {
    for dtype in computed(device) {
        let build = || -> Result<Graph, GraphError> {
            let mut g = Graph::new("kinds");
            let x = g.input("x", dtype, shape)?;
            for kind in ReduceKind::ALL.into_iter().filter(|kind| *kind != ReduceKind::Prod || dtype.is_int())
            {
                reduce(&mut g, "r", kind, x, &[axis])?;
            }
            if dtype.is_float() {
                // So many factors overflow in one order and vanish in another, but for signs.
                let (zero, one) = (g.full_like(x, 0.0)?, g.full_like(x, 1.0)?);
                let minus = g.full_like(x, -1.0)?;
                let negative = g.elementwise(E::Lt, &[x, zero])?;
                let signs = g.elementwise(E::Select, &[negative, minus, one])?;
                reduce(&mut g, "signs", ReduceKind::Prod, signs, &[axis])?;
            }
            Ok(g)
        };
        let graph = build().unwrap();
        assert!(shared(device, &graph) > 0, "{dtype}");
        if let Some(why) = check(&graph, 7) {
            panic!("{dtype}: {}", why.lines().take(40).collect::<Vec<_>>().join("\n"));
        }
    }
}

/// The first of the largest wins wherever it lies, and NaN is larger than all.
#[test]
fn ties_and_nan_in_any_part() {
    let Some(device) = device() else { return };
    ties_and_nan(&device, [1, N as i64], 1);
    // Columns that are alike.
    ties_and_nan(&device, [N as i64, 3], 0);
}

/// Elements of a row or column whose extremes are sought.
const N: usize = 40_000;

fn ties_and_nan(device: &Device, shape: [i64; 2], axis: usize) {
    let many = shape[1 - axis] as usize;
    let mut g = Graph::new("extremes");
    let x = g.input("x", DType::F32, shape).unwrap();
    for kind in [ReduceKind::ArgMax, ReduceKind::ArgMin, ReduceKind::Max, ReduceKind::Min] {
        reduce(&mut g, "r", kind, x, &[axis]).unwrap();
    }
    assert_eq!(shared(device, &g), 1);
    let executable = device.compile(&g, &Default::default(), &Default::default()).unwrap();
    let mut inputs = random_inputs(&g, 3);
    let places = [0, 1, 1023, 4095, 4096, 9000, 20_000, N - 1];
    for special in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e30] {
        for (i, first) in places.into_iter().enumerate() {
            let mut values: Vec<f32> = (0..N).map(|i| (i * 37 % 1000) as f32).collect();
            places[i..].iter().for_each(|at| values[*at] = special);
            let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes().repeat(many)).collect();
            inputs.inputs.iter_mut().for_each(|(_, leaf)| leaf.bytes.clone_from(&bytes));
            let want = interpret(&g, &inputs).unwrap();
            // Runs one after the other find the counts of parts as the first one did.
            let got = executable.run(&[], &[("x", &bytes)]).unwrap();
            for output in got.iter() {
                let (_, array) = want.iter().find(|(name, _)| *name == output.name).unwrap();
                let same = match array.to_f64s()[0].is_nan() {
                    true => output.bytes.as_chunks::<4>().0.iter().all(|b| f32::from_le_bytes(*b).is_nan()),
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
    let mut columns = Graph::new("columns");
    let x = columns.input("x", DType::F32, [symbol(50_000), 12.into()]).unwrap();
    for kind in [ReduceKind::Sum, ReduceKind::ArgMax] {
        reduce(&mut columns, "c", kind, x, &[0]).unwrap();
    }
    for (graph, values) in [
        (long, vec![0, 1, 255, 4097, 49_999]),
        (four, vec![0, 3, 12_000]),
        (rows, vec![0, 1, 5]),
        (columns, vec![0, 1, 100, 4097, 49_999]),
    ] {
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
    let rows = [[1, 16384], [1, 32768], [3, 40001], [8, 33000], [9, 33000]].map(|shape| (shape, 1));
    let columns = [[32768, 2], [40001, 3], [33000, 8], [33000, 9]].map(|shape| (shape, 0));
    for (seed, (shape, axis)) in rows.into_iter().chain(columns).enumerate() {
        let build = || -> Result<Graph, GraphError> {
            let mut g = Graph::new("rows");
            let x = g.input("x", DType::F32, shape)?;
            let mean = g.reduce_keepdim(ReduceKind::Sum, x, &[axis])?;
            let by = g.full_like(mean, 1.0 / shape[axis] as f64)?;
            let mean = g.elementwise(E::Mul, &[mean, by])?;
            let mean = g.broadcast(mean, shape)?;
            let centred = g.elementwise(E::Sub, &[x, mean])?;
            let squares = g.elementwise(E::Mul, &[centred, centred])?;
            reduce(&mut g, "variance", ReduceKind::Sum, squares, &[axis])?;
            g.output("centred", centred)?;
            Ok(g)
        };
        let graph = build().unwrap();
        let apart = shape[1 - axis] < 9 && shape[axis] > 32767;
        assert_eq!(shared(&device, &graph), if apart { 2 } else { 0 }, "{shape:?}");
        if let Some(why) = check(&graph, seed as u64) {
            panic!("{shape:?}: {}", why.lines().take(40).collect::<Vec<_>>().join("\n"));
        }
    }
}
