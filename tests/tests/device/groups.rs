//! Neighbouring elements that one invocation loads and stores together: extents around the sizes of groups, views that
//! keep or break them, rows that are kept in registers or not, columns, and what only a run knows.

use tallow_ir::{
    DType, Dim, ElementwiseOp as E, Format, Graph, GraphError, Op, ReduceKind, Scalar, Symbol, Value,
};
use tallow_tests::random_inputs;
use tallow_tests::random_inputs::with_symbols;

use crate::differential::{check, check_on};
use crate::harness::{device, device_with_range};

type Built = Result<(), GraphError>;

/// Extents below, at and above the sizes of groups, and multiples of each but not of the next.
const EXTENTS: [i64; 14] = [1, 2, 3, 4, 6, 7, 8, 12, 15, 16, 20, 31, 40, 72];

fn failures(graph: Result<Graph, GraphError>, seed: u64) -> Vec<String> {
    let graph = graph.unwrap_or_else(|e| panic!("{e}"));
    check(&graph, seed).into_iter().collect()
}

fn report(failures: &[String]) {
    let lines = |f: &String| f.lines().take(40).collect::<Vec<_>>().join("\n");
    assert!(failures.is_empty(), "{}", failures.iter().map(lines).collect::<Vec<_>>().join("\n\n"));
}

fn narrow(g: &mut Graph, v: Value, dtype: DType) -> Result<Value, GraphError> {
    if g.ty(v).dtype == dtype { Ok(v) } else { g.add(Op::Cast(dtype), &[v]) }
}

/// Maps of operands of two types, one of them broadcast along either axis, to a third.
#[test]
fn maps_of_all_extents_and_widths() {
    use DType::{BF16, F8E4M3, F16, F32, I16, I32, U8, U32};
    if device().is_none() {
        return;
    }
    let mut found = vec![];
    let types = [(F32, F32, F32), (F16, F32, F16), (BF16, F16, F32), (U8, F32, BF16), (I16, I32, U8)];
    let types = types.into_iter().chain([(F8E4M3, F16, F16), (U32, F32, I16), (F32, BF16, U8)]);
    for (a, b, to) in types {
        let build = || -> Result<Graph, GraphError> {
            let mut g = Graph::new("maps");
            for (i, n) in EXTENTS.into_iter().enumerate() {
                let wide = if a.is_float() || b.is_float() { DType::F32 } else { DType::I32 };
                let load = |g: &mut Graph, name: &str, dtype: DType, shape: [Dim; 2]| {
                    let v = g.input(&format!("{name}{i}"), dtype, shape)?;
                    narrow(g, v, wide)
                };
                let all: [Dim; 2] = [3.into(), n.into()];
                let x = load(&mut g, "x", a, all.clone())?;
                for (k, shape) in
                    [all.clone(), [1.into(), n.into()], [3.into(), 1.into()]].into_iter().enumerate()
                {
                    let y = load(&mut g, &format!("y{k}_"), b, shape)?;
                    let y = g.broadcast(y, all.clone())?;
                    let sum = g.elementwise(E::Sub, &[x, y])?;
                    let sum = narrow(&mut g, sum, to)?;
                    g.output(&format!("o{k}_{i}"), sum)?;
                }
            }
            Ok(g)
        };
        found.extend(failures(build(), 1));
    }
    report(&found);
}

/// 64 bits, where the device has them; blocks; constants and counters, which read nothing.
#[test]
fn wide_types_blocks_and_nothing() {
    let Some(device) = device() else { return };
    let mut g = Graph::new("others");
    let mut build = || -> Built {
        for dtype in crate::differential::computed(&device) {
            for n in [5i64, 6, 8, 12, 24] {
                let x = g.input(&format!("{}_{n}", dtype.name()), dtype, [n])?;
                if dtype != DType::F8E4M3 {
                    let double = g.elementwise(E::Add, &[x, x])?;
                    g.output(&format!("twice_{}_{n}", dtype.name()), double)?;
                    let iota = g.add(Op::Iota { len: n.into(), dtype }, &[])?;
                    g.output(&format!("iota_{}_{n}", dtype.name()), iota)?;
                }
            }
        }
        for format in [Format::Q4_0, Format::Q6_K, Format::Q8_0, Format::F16, Format::BF16, Format::F32] {
            let w = g.weight(&format!("w_{}", format.name()), DType::Block(format), [3i64, 256])?;
            let w = g.add(Op::Dequantize(DType::F32), &[w])?;
            let bias = g.input(&format!("bias_{}", format.name()), DType::F32, [256i64])?;
            let bias = g.broadcast(bias, [3i64, 256])?;
            let sum = g.elementwise(E::Add, &[w, bias])?;
            g.output(&format!("sum_{}", format.name()), sum)?;
            let rows = g.input(&format!("rows_{}", format.name()), DType::U32, [5i64])?;
            let picked = g.add(Op::Gather { axis: 0 }, &[w, rows])?;
            g.output(&format!("picked_{}", format.name()), picked)?;
            let columns = g.input(&format!("columns_{}", format.name()), DType::U32, [16i64])?;
            let picked = g.add(Op::Gather { axis: 1 }, &[w, columns])?;
            g.output(&format!("apart_{}", format.name()), picked)?;
        }
        Ok(())
    };
    build().unwrap();
    report(&failures(Ok(g), 2));
}

/// Views that leave groups whole, shift them, break them or turn them around.
#[test]
fn views_of_groups() {
    if device().is_none() {
        return;
    }
    let mut found = vec![];
    for dtype in [DType::F32, DType::F16, DType::U8] {
        let build = || -> Result<Graph, GraphError> {
            let mut g = Graph::new("views");
            for (i, n) in [4i64, 8, 12, 16, 33].into_iter().enumerate() {
                let x = g.input(&format!("x{i}"), dtype, [4i64, n])?;
                let z = g.input(&format!("z{i}"), dtype, [2i64, n])?;
                let out = |g: &mut Graph, name: &str, v: Value| -> Built {
                    let double = g.elementwise(E::Add, &[v, v])?;
                    g.output(&format!("{name}{i}"), double)
                };
                let slice =
                    |axis, start: i64, len: i64| Op::Slice { axis, start: start.into(), len: len.into() };
                let v = g.add(slice(0, 1, 2), &[x])?;
                out(&mut g, "rows", v)?;
                let v = g.add(slice(1, 1, n - 2), &[x])?;
                out(&mut g, "odd", v)?;
                if n > 4 {
                    let v = g.add(slice(1, 4, n - 4), &[x])?;
                    out(&mut g, "whole", v)?;
                }
                let v = g.permute(x, &[1, 0])?;
                out(&mut g, "turned", v)?;
                for axis in [0, 1] {
                    let v = g.add(Op::Flip { axis }, &[x])?;
                    out(&mut g, &format!("flip{axis}_"), v)?;
                    let value = Scalar::of(dtype, 2.0);
                    let pad = Op::Pad { axis, before: 4.into(), after: 4.into(), value };
                    let v = g.add(pad, &[x])?;
                    out(&mut g, &format!("pad{axis}_"), v)?;
                }
                let v = g.add(Op::Concat { axis: 0 }, &[x, z, x])?;
                out(&mut g, "joined", v)?;
                let v = g.add(slice(0, 2, 2), &[x])?;
                let v = g.add(Op::Concat { axis: 1 }, &[z, v])?;
                out(&mut g, "beside", v)?;
                let v = g.reshape(x, [2i64, 2, n])?;
                let v = g.permute(v, &[1, 0, 2])?;
                out(&mut g, "swapped", v)?;
                let v = g.reshape(x, [n, 4])?;
                let bias = g.input(&format!("b{i}"), dtype, [4i64])?;
                let bias = g.broadcast(bias, [n, 4])?;
                let v = g.elementwise(E::Add, &[v, bias])?;
                g.output(&format!("reshaped{i}"), v)?;
            }
            Ok(g)
        };
        found.extend(failures(build(), 3));
    }
    report(&found);
}

/// Softmax and a sum over `axes` of `x`, and the position of its largest.
fn reduced(g: &mut Graph, name: &str, x: Value, axis: usize) -> Built {
    let shape = g.ty(x).shape.clone();
    let max = g.reduce_keepdim(ReduceKind::Max, x, &[axis])?;
    let max = g.broadcast(max, shape.clone())?;
    let d = g.elementwise(E::Sub, &[x, max])?;
    let e = g.elementwise(E::Exp, &[d])?;
    let sum = g.reduce_keepdim(ReduceKind::Sum, e, &[axis])?;
    let all = g.broadcast(sum, shape)?;
    let y = g.elementwise(E::Div, &[e, all])?;
    g.output(&format!("{name}_softmax"), y)?;
    g.output(&format!("{name}_sum"), sum)?;
    let at = g.add(Op::Reduce { kind: ReduceKind::ArgMax, axes: vec![axis] }, &[x])?;
    g.output(&format!("{name}_at"), at)
}

/// Rows from one element to more than registers hold.
#[test]
fn rows_of_all_lengths() {
    if device().is_none() {
        return;
    }
    let mut found = vec![];
    for dtype in [DType::F32, DType::F16] {
        let build = || -> Result<Graph, GraphError> {
            let mut g = Graph::new("rows");
            let long = [130i64, 136, 1000, 1024, 4100, 9000, 33000];
            for n in EXTENTS.into_iter().chain(long) {
                let rows = if n > 5000 { 1 } else { 3 };
                let x = g.input(&format!("x{n}"), dtype, [rows, n])?;
                reduced(&mut g, &format!("r{n}"), x, 1)?;
            }
            Ok(g)
        };
        found.extend(failures(build(), 4));
    }
    report(&found);
}

/// Reductions over leading and middle axes: few and many columns, in whole groups or not.
#[test]
fn columns_of_all_widths() {
    if device().is_none() {
        return;
    }
    let mut found = vec![];
    for dtype in [DType::F32, DType::F16] {
        let build = || -> Result<Graph, GraphError> {
            let mut g = Graph::new("columns");
            for n in EXTENTS.into_iter().chain([132, 1030]) {
                for rows in [70i64, 301] {
                    let x = g.input(&format!("x{n}_{rows}"), dtype, [rows, n])?;
                    reduced(&mut g, &format!("c{n}_{rows}"), x, 0)?;
                }
                if n < 50 {
                    let x = g.input(&format!("m{n}"), dtype, [3i64, 80, n])?;
                    reduced(&mut g, &format!("m{n}"), x, 1)?;
                }
            }
            Ok(g)
        };
        found.extend(failures(build(), 5));
    }
    report(&found);
}

/// Extents and offsets that only a run knows, which divide or may not.
#[test]
fn symbols_in_groups() {
    let Some(device) = device() else { return };
    let build = || -> Result<Graph, GraphError> {
        let mut g = Graph::new("symbols");
        let seq = Dim::from(&Symbol::new("seq", 90));
        let four = &seq * &Dim::constant(4);
        for (i, shape) in
            [[seq.clone(), 8.into()], [3.into(), seq.clone()], [3.into(), four]].into_iter().enumerate()
        {
            let x = g.input(&format!("x{i}"), DType::F32, shape.clone())?;
            let bias = g.input(&format!("b{i}"), DType::F32, [shape[1].clone()])?;
            let bias = g.broadcast(bias, shape.clone())?;
            let y = g.elementwise(E::Mul, &[x, bias])?;
            g.output(&format!("y{i}"), y)?;
            for axis in [0, 1] {
                reduced(&mut g, &format!("r{i}_{axis}"), x, axis)?;
            }
            let state = g.state(&format!("s{i}"), DType::F16, [100i64, 8])?;
            if i == 0 {
                let narrow = g.add(Op::Cast(DType::F16), &[x])?;
                let at = vec![Dim::constant(3), Dim::zero()];
                let next = g.add(Op::StateUpdate { offsets: at, rows: None }, &[state, narrow])?;
                g.output("next", next)?;
            }
        }
        Ok(g)
    };
    let graph = build().unwrap();
    let mut found = vec![];
    for seq in [1, 2, 7, 64, 90] {
        let inputs = with_symbols(&graph, seq, [("seq".into(), seq)].into_iter().collect());
        found.extend(check_on(&device, &graph, &inputs).err());
    }
    report(&found);
}

/// Groups in tensors that are bound window by window.
#[test]
fn groups_in_windows() {
    let Some(device) = device_with_range(256) else { return };
    let build = |dtype| -> Result<Graph, GraphError> {
        let mut g = Graph::new("windows");
        for n in [20i64, 24, 64] {
            let x = g.input(&format!("x{n}"), dtype, [8, n])?;
            let y = g.elementwise(E::Add, &[x, x])?;
            g.output(&format!("y{n}"), y)?;
            reduced(&mut g, &format!("r{n}"), x, 1)?;
            let x = g.input(&format!("z{n}"), dtype, [70i64, 8])?;
            reduced(&mut g, &format!("c{n}"), x, 0)?;
        }
        Ok(g)
    };
    let mut found = vec![];
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let graph = build(dtype).unwrap();
        found.extend(check_on(&device, &graph, &random_inputs(&graph, 6)).err());
    }
    report(&found);
}
