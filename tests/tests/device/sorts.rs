//! Sorts, merges of sorted runs and selections: rows around a tile and its multiples, ties in any part, all element
//! types, any axis, what is fused into the operand, and lengths that only a run knows.

use tallow::Device;
use tallow_codegen::Algorithm;
use tallow_ir::{DType, Dim, ElementwiseOp as E, Graph, GraphError, Op, SortSpan, Symbol, Value};
use tallow_tests::random_inputs::with_symbols;

use crate::differential::{check, check_on, computed};
use crate::harness::device;

fn sort(g: &mut Graph, x: Value, axis: usize, descending: bool) -> Result<Value, GraphError> {
    g.add(Op::ArgSort { axis, descending, span: SortSpan::All }, &[x])
}

fn first(g: &mut Graph, order: Value, axis: usize, count: i64) -> Result<Value, GraphError> {
    g.add(Op::Slice { axis, start: 0.into(), len: count.into() }, &[order])
}

/// Whole numbers from a small range: many elements are equal.
fn with_ties(g: &mut Graph, x: Value) -> Result<Value, GraphError> {
    let four = g.full_like(x, 4.0)?;
    let scaled = g.elementwise(E::Mul, &[x, four])?;
    g.elementwise(E::Floor, &[scaled])
}

fn algorithms(device: &Device, graph: &Graph) -> Vec<Algorithm> {
    let module = tallow_codegen::compile(graph, device.caps().unwrap()).unwrap();
    module.kernels.iter().map(|kernel| kernel.schedule.algorithm).collect()
}

fn agrees(graph: &Graph, seed: u64, what: &str) {
    if let Some(why) = check(graph, seed) {
        panic!("{what}: {}", why.lines().take(40).collect::<Vec<_>>().join("\n"));
    }
}

#[test]
fn rows_of_any_length() {
    let Some(device) = device() else { return };
    let shapes = [
        [0, 5],
        [7, 1],
        [300, 2],
        [77, 7],
        [65, 8],
        [33, 9],
        [1, 255],
        [5, 257],
        [3, 1000],
        [2, 2048],
        [2, 2049],
        [1, 4096],
        [3, 4097],
        [1, 10_007],
        [2, 16_385],
    ];
    for (seed, [rows, n]) in shapes.into_iter().enumerate() {
        let build = || -> Result<Graph, GraphError> {
            let mut g = Graph::new("sorts");
            let x = g.input("x", DType::F32, [rows, n])?;
            let ties = with_ties(&mut g, x)?;
            for (name, value, descending) in
                [("up", x, false), ("ties", ties, false), ("ties_down", ties, true)]
            {
                let order = sort(&mut g, value, 1, descending)?;
                g.output(name, order)?;
            }
            Ok(g)
        };
        let graph = build().unwrap();
        let merges = algorithms(&device, &graph).iter().filter(|one| **one == Algorithm::Merge).count();
        assert_eq!(merges > 0, n > 2048, "[{rows}, {n}]");
        agrees(&graph, seed as u64, &format!("[{rows}, {n}]"));
    }
}

#[test]
fn selections_of_any_length() {
    let Some(device) = device() else { return };
    let cases = [
        ([7, 20], 3),
        ([2, 2048], 2048),
        ([3, 2049], 1),
        ([2, 5000], 8),
        ([1, 5000], 1024),
        ([1, 5000], 1025),
        ([1, 40_000], 64),
        ([5, 30_011], 100),
        ([300, 2100], 2),
    ];
    for (seed, ([rows, n], count)) in cases.into_iter().enumerate() {
        let build = || -> Result<Graph, GraphError> {
            let mut g = Graph::new("selections");
            let x = g.input("x", DType::F32, [rows, n])?;
            let ties = with_ties(&mut g, x)?;
            for (name, value, descending) in
                [("up", x, false), ("ties", ties, false), ("ties_down", ties, true)]
            {
                let order = sort(&mut g, value, 1, descending)?;
                let order = first(&mut g, order, 1, count)?;
                g.output(name, order)?;
            }
            Ok(g)
        };
        let graph = build().unwrap();
        let selects = algorithms(&device, &graph).contains(&Algorithm::TopK);
        assert_eq!(selects, n > 2048 && count <= 1024, "[{rows}, {n}], {count}");
        agrees(&graph, seed as u64, &format!("[{rows}, {n}], {count}"));
    }
}

/// The worst case of a selection: each element is better than all before it.
#[test]
fn selections_of_sorted_rows() {
    let Some(device) = device() else { return };
    for (n, descending) in [(9000i64, true), (9000, false), (70_001, true)] {
        let mut g = Graph::new("ascending");
        let iota = g.add(Op::Iota { len: n.into(), dtype: DType::I32 }, &[]).unwrap();
        let x = g.broadcast(iota, [2, n]).unwrap();
        let order = sort(&mut g, x, 1, descending).unwrap();
        let order = first(&mut g, order, 1, 9).unwrap();
        g.output("order", order).unwrap();
        assert!(algorithms(&device, &g).contains(&Algorithm::TopK));
        agrees(&g, 5, &format!("{n} {descending}"));
    }
}

#[test]
fn every_type_and_any_axis() {
    let Some(device) = device() else { return };
    for dtype in computed(&device) {
        for (shape, axis) in [([3, 37, 2], 1), ([2600, 3, 1], 0)] {
            let build = || -> Result<Graph, GraphError> {
                let mut g = Graph::new("types");
                let x = g.input("x", dtype, shape)?;
                let up = sort(&mut g, x, axis, false)?;
                g.output("up", up)?;
                let down = sort(&mut g, x, axis, true)?;
                let down = first(&mut g, down, axis, 20)?;
                g.output("down", down)?;
                Ok(g)
            };
            agrees(&build().unwrap(), 3, &format!("{dtype} {shape:?} {axis}"));
        }
    }
}

#[test]
fn lengths_of_a_run() {
    let Some(device) = device() else { return };
    let n = Dim::from(&Symbol::new("n", 9000));
    let build = |count: Option<i64>| -> Result<Graph, GraphError> {
        let mut g = Graph::new("symbols");
        let x = g.input("x", DType::F32, [Dim::constant(3), n.clone()])?;
        let ties = with_ties(&mut g, x)?;
        let order = sort(&mut g, ties, 1, count.is_some())?;
        let order = match count {
            Some(count) => first(&mut g, order, 1, count)?,
            None => order,
        };
        g.output("order", order)?;
        Ok(g)
    };
    for (count, values) in
        [(None, vec![0, 1, 2047, 2048, 2049, 5000, 9000]), (Some(5), vec![5, 6, 2048, 9000])]
    {
        let graph = build(count).unwrap();
        for n in values {
            let inputs = with_symbols(&graph, n, [("n".into(), n)].into_iter().collect());
            if let Err(why) = check_on(&device, &graph, &inputs) {
                panic!("n = {n}: {}", why.lines().take(40).collect::<Vec<_>>().join("\n"));
            }
        }
    }
}
