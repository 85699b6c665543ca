//! Linear recurrences along each axis: the same lengths as of running sums, all float types, coefficients and terms that a
//! kernel computes, and extents that only a run knows. Coefficients are sines, so that nothing grows.

use tallow_ir::{DType, Dim, ElementwiseOp as E, Graph, GraphError, Op, ScanKind, Symbol, Value};
use tallow_tests::random_inputs;

use crate::differential::{check_on, computed};
use crate::harness::{device, device_with_range};
use crate::scans::{expect, expect_at_all_extents};

/// The recurrence along `axis` with the sines of `x` and the terms `b`.
fn recurrence(g: &mut Graph, name: &str, x: Value, b: Value, axis: usize) -> Result<(), GraphError> {
    let a = g.elementwise(E::Sin, &[x])?;
    let h = g.add(Op::Scan { kind: ScanKind::Linear, axis, part: None }, &[a, b])?;
    g.output(name, h)
}

#[test]
fn all_types_along_each_axis() {
    let Some(device) = device() else { return };
    let shapes: [[i64; 3]; 8] =
        [[1, 1, 1], [3, 17, 1], [2, 16, 5], [5, 33, 3], [1, 40, 129], [70, 100, 1], [2, 1025, 2], [0, 7, 2]];
    for dtype in computed(&device).into_iter().filter(|dtype| dtype.is_float()) {
        let build = || -> Result<Graph, GraphError> {
            let mut g = Graph::new("types");
            for (i, shape) in shapes.into_iter().enumerate() {
                let (x, b) =
                    (g.input(&format!("x{i}"), dtype, shape)?, g.input(&format!("b{i}"), dtype, shape)?);
                for axis in 0..3 {
                    recurrence(&mut g, &format!("o{i}_{axis}"), x, b, axis)?;
                }
            }
            Ok(g)
        };
        expect(&build().unwrap(), 1, dtype.name());
    }
}

/// Rows that one invocation or a workgroup scans, in one chunk and in several; few and many of them.
#[test]
fn lengths_and_numbers_of_rows() {
    if device().is_none() {
        return;
    }
    let lengths = [1i64, 2, 15, 16, 17, 32, 33, 64, 65, 127, 255, 1024, 1028, 2049, 4100];
    for (seed, rows) in [1i64, 2, 7, 65, 600].into_iter().enumerate() {
        let build = || -> Result<Graph, GraphError> {
            let mut g = Graph::new("lengths");
            for n in lengths.into_iter().filter(|n| rows * n < 60_000) {
                let x = g.input(&format!("x{n}"), DType::F32, [rows, n])?;
                let b = g.input(&format!("b{n}"), DType::F32, [rows, n])?;
                recurrence(&mut g, &format!("along{n}"), x, b, 1)?;
                recurrence(&mut g, &format!("across{n}"), x, b, 0)?;
                // Rows whose elements are apart in memory, and the other way round.
                let (x, b) = (g.permute(x, &[1, 0])?, g.permute(b, &[1, 0])?);
                recurrence(&mut g, &format!("turned{n}"), x, b, 0)?;
            }
            Ok(g)
        };
        expect(&build().unwrap(), seed as u64, &format!("{rows} rows"));
    }
}

/// Long rows stay whole. Terms are one vector for all rows, or a number.
#[test]
fn long_rows_are_one_kernel() {
    let Some(device) = device() else { return };
    let caps = device.caps().unwrap();
    let cases = [([3i64, 20_003], 1), ([20_001, 3], 0)];
    for (seed, ((shape, axis), is_vector)) in cases.into_iter().zip([true, false]).enumerate() {
        let build = || -> Result<Graph, GraphError> {
            let mut g = Graph::new("long");
            let x = g.input("x", DType::F32, shape)?;
            let b = match is_vector {
                true => g.input("b", DType::F32, [shape[1]])?,
                false => g.full_like(x, 1.0)?,
            };
            let b = g.broadcast(b, shape)?;
            recurrence(&mut g, "h", x, b, axis)?;
            Ok(g)
        };
        let graph = build().unwrap();
        assert_eq!(tallow_codegen::compile(&graph, caps).unwrap().kernels.len(), 1, "{shape:?}");
        expect(&graph, seed as u64, &format!("{shape:?}"));
    }
}

/// Extents that only a run knows, from none to more than a workgroup's chunk.
#[test]
fn symbolic_extents() {
    let Some(device) = device() else { return };
    let build = || -> Result<Graph, GraphError> {
        let mut g = Graph::new("symbols");
        let (n, m) = (Dim::from(&Symbol::new("n", 3000)), Dim::from(&Symbol::new("m", 90)));
        let (x, b) = (g.input("x", DType::F32, [m.clone(), n.clone()])?, g.input("b", DType::F32, [m, n])?);
        recurrence(&mut g, "along", x, b, 1)?;
        recurrence(&mut g, "across", x, b, 0)?;
        Ok(g)
    };
    expect_at_all_extents(&device, &build().unwrap());
}

/// Operands and results that more than one binding covers.
#[test]
fn windows_of_buffers() {
    let Some(device) = device_with_range(1 << 16) else { return };
    let mut g = Graph::new("windows");
    let x = g.input("x", DType::F32, [3i64, 20_001]).unwrap();
    let b = g.input("b", DType::F32, [3i64, 20_001]).unwrap();
    recurrence(&mut g, "along", x, b, 1).unwrap();
    recurrence(&mut g, "across", x, b, 0).unwrap();
    check_on(&device, &g, &random_inputs(&g, 1)).unwrap();
}
