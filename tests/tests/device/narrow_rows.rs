//! Many rows of few elements, one subgroup each: lengths around one and several elements per invocation, all reductions and
//! element types, reductions after each other, NaN and ties in any invocation, and extents that only a run knows.

use tallow_ir::{DType, Dim, ElementwiseOp as E, Graph, GraphError, Op, ReduceKind, Symbol, Value};
use tallow_tests::random_inputs;
use tallow_tests::random_inputs::with_symbols;

use crate::differential::{check, check_on, computed};
use crate::harness::device;

/// Rows that share workgroups in twos, fours and eights; none of the numbers is a multiple of these.
const ROWS: [i64; 3] = [1031, 2053, 4101];

fn expect(graph: &Graph, seed: u64, what: &str) {
    if let Some(why) = check(graph, seed) {
        panic!("{what}: {}", why.lines().take(40).collect::<Vec<_>>().join("\n"));
    }
}

fn reduce(g: &mut Graph, kind: ReduceKind, x: Value) -> Result<Value, GraphError> {
    g.add(Op::Reduce { kind, axes: vec![1] }, &[x])
}

/// A value per row, for each element of rows like those of `like`.
fn spread(g: &mut Graph, row: Value, like: Value) -> Result<Value, GraphError> {
    let shape = g.ty(like).shape.clone();
    let row = g.reshape(row, [shape.dims()[0].clone(), 1.into()])?;
    g.broadcast(row, shape)
}

/// A softmax, what is above the mean, and results per row.
fn forms(g: &mut Graph, name: &str, x: Value) -> Result<(), GraphError> {
    let most = reduce(g, ReduceKind::Max, x)?;
    let most_of_row = spread(g, most, x)?;
    let below = g.elementwise(E::Sub, &[x, most_of_row])?;
    let weights = g.elementwise(E::Exp, &[below])?;
    let sum = reduce(g, ReduceKind::Sum, weights)?;
    let sum_of_row = spread(g, sum, x)?;
    let softmax = g.elementwise(E::Div, &[weights, sum_of_row])?;
    g.output(&format!("softmax{name}"), softmax)?;
    let log = g.elementwise(E::Log, &[sum])?;
    let log = g.elementwise(E::Add, &[log, most])?;
    g.output(&format!("log{name}"), log)?;
    let first = reduce(g, ReduceKind::ArgMax, x)?;
    g.output(&format!("first{name}"), first)
}

#[test]
fn lengths_and_forms() {
    let Some(device) = device() else { return };
    let caps = device.caps().unwrap();
    for (seed, rows) in ROWS.into_iter().enumerate() {
        let build = || -> Result<Graph, GraphError> {
            let mut g = Graph::new("rows");
            for n in [17, 20, 24, 31, 32, 33, 40, 64, 65, 100, 128] {
                let x = g.input(&format!("x{n}"), DType::F32, [rows, n])?;
                forms(&mut g, &n.to_string(), x)?;
            }
            Ok(g)
        };
        let graph = build().unwrap();
        let kernels = tallow_codegen::compile(&graph, caps).unwrap().kernels;
        let shared = kernels.iter().filter(|kernel| kernel.schedule.tile.m > 1).count();
        assert_eq!(shared > 0, caps.subgroup_arithmetic, "{rows} rows");
        expect(&graph, seed as u64, &format!("{rows} rows"));
    }
}

#[test]
fn all_reductions_of_all_types() {
    let Some(device) = device() else { return };
    for dtype in computed(&device) {
        let build = || -> Result<Graph, GraphError> {
            let mut g = Graph::new("types");
            for n in [18, 30] {
                let x = g.input(&format!("x{n}"), dtype, [1031i64, n])?;
                for kind in ReduceKind::ALL {
                    let y = reduce(&mut g, kind, x)?;
                    g.output(&format!("{}{n}", kind.name()), y)?;
                }
            }
            Ok(g)
        };
        expect(&build().unwrap(), 1, dtype.name());
    }
}

/// NaN wins wherever it is, the first of equal elements wins, and nothing but infinities has a position, too.
#[test]
fn special_values_and_ties() {
    let Some(device) = device() else { return };
    let mut g = Graph::new("special");
    let x = g.input("x", DType::F32, [1031i64, 27]).unwrap();
    for kind in [ReduceKind::Max, ReduceKind::Min, ReduceKind::ArgMax, ReduceKind::ArgMin] {
        let y = reduce(&mut g, kind, x).unwrap();
        g.output(kind.name(), y).unwrap();
    }
    let mut inputs = random_inputs(&g, 1);
    let leaf = inputs.inputs.get_mut("x").unwrap();
    let mut set = |at: usize, x: f32| leaf.bytes[4 * at..4 * at + 4].copy_from_slice(&x.to_le_bytes());
    for i in 0..27 {
        set(i, f32::NEG_INFINITY);
        set(27 + i, f32::INFINITY);
        set(54 + i, f32::NAN);
        set(81 + i, 0.0);
        set(108 + i, if i % 2 == 0 { -0.0 } else { 0.0 });
        // A NaN at each position of one row after the other.
        set(135 + 28 * i, f32::NAN);
    }
    check_on(&device, &g, &inputs).unwrap();
}

#[test]
fn symbolic_extents() {
    let Some(device) = device() else { return };
    let mut g = Graph::new("symbols");
    let (rows, n) = (Dim::from(&Symbol::new("rows", 4200)), Dim::from(&Symbol::new("n", 60)));
    let x = g.input("x", DType::F32, [rows.clone(), n]).unwrap();
    forms(&mut g, "x", x).unwrap();
    let y = g.input("y", DType::F16, [rows, 48.into()]).unwrap();
    let y = g.add(Op::Cast(DType::F32), &[y]).unwrap();
    forms(&mut g, "y", y).unwrap();
    for (rows, n) in [(1, 1), (9, 17), (4200, 3), (1031, 60)] {
        let symbols = [("rows".into(), rows), ("n".into(), n)].into_iter().collect();
        check_on(&device, &g, &with_symbols(&g, 1, symbols)).unwrap();
    }
}
