//! Running sums and products along each axis: lengths around those at which a row gets more invocations, workgroups or
//! kernels, vectors and single elements, all element types, views before them, and lengths that only a run knows.

use tallow::Device;
use tallow_ir::{DType, Dim, ElementwiseOp as E, Graph, GraphError, Op, ScanKind, Symbol, Value};
use tallow_tests::random_inputs;
use tallow_tests::random_inputs::with_symbols;

use crate::differential::{check, check_on, computed};
use crate::harness::{device, device_with_range};

fn scan(g: &mut Graph, name: &str, kind: ScanKind, x: Value, axis: usize) -> Result<(), GraphError> {
    let y = g.add(Op::Scan { kind, axis, part: None }, &[x])?;
    g.output(&format!("{name}_{}", kind.name()), y)
}

/// Numbers that are no multiples of a power of two, where the type has them.
fn rounded(g: &mut Graph, x: Value) -> Result<Value, GraphError> {
    if !g.ty(x).dtype.is_float() || g.ty(x).dtype == DType::F8E4M3 {
        return Ok(x);
    }
    let third = g.full_like(x, 1.0 / 3.0)?;
    g.elementwise(E::Mul, &[x, third])
}

/// Compares a graph on the device with the interpreter.
pub fn expect(graph: &Graph, seed: u64, what: &str) {
    if let Some(why) = check(graph, seed) {
        panic!("{what}: {}", why.lines().take(40).collect::<Vec<_>>().join("\n"));
    }
}

/// The same for a graph of the symbols `n`, at most 3000, and `m`, at most 90.
pub fn expect_at_all_extents(device: &Device, graph: &Graph) {
    for (n, m) in [(1, 1), (2, 90), (17, 3), (257, 33), (3000, 2)] {
        let symbols = [("n".into(), n), ("m".into(), m)].into_iter().collect();
        check_on(device, graph, &with_symbols(graph, 1, symbols)).unwrap();
    }
}

/// Sums in each type, and products: of integers, and of few floats.
#[test]
fn all_types_along_each_axis() {
    let Some(device) = device() else { return };
    let shapes: [[i64; 3]; 9] = [
        [1, 1, 1],
        [3, 17, 1],
        [2, 16, 5],
        [5, 33, 3],
        [1, 40, 129],
        [70, 100, 1],
        [3, 128, 31],
        [2, 1025, 2],
        [0, 7, 2],
    ];
    for dtype in computed(&device) {
        let build = || -> Result<Graph, GraphError> {
            let mut g = Graph::new("types");
            for (i, shape) in shapes.into_iter().enumerate() {
                let x = g.input(&format!("x{i}"), dtype, shape)?;
                let x = rounded(&mut g, x)?;
                for (axis, extent) in shape.into_iter().enumerate() {
                    scan(&mut g, &format!("o{i}_{axis}"), ScanKind::Sum, x, axis)?;
                    if !dtype.is_float() || extent <= 5 {
                        scan(&mut g, &format!("o{i}_{axis}"), ScanKind::Prod, x, axis)?;
                    }
                }
            }
            Ok(g)
        };
        expect(&build().unwrap(), 1, dtype.name());
    }
}

/// Rows that one invocation, a subgroup or a workgroup scans, in one chunk and in several; few and many of them.
#[test]
fn lengths_and_numbers_of_rows() {
    if device().is_none() {
        return;
    }
    let lengths = [1i64, 2, 15, 16, 17, 31, 32, 33, 64, 65, 127, 128, 255, 1023, 1024, 1028, 2049, 4100];
    for (seed, rows) in [1i64, 2, 7, 65, 600].into_iter().enumerate() {
        let build = || -> Result<Graph, GraphError> {
            let mut g = Graph::new("lengths");
            for n in lengths.into_iter().filter(|n| rows * n < 100_000) {
                let x = g.input(&format!("x{n}"), DType::F32, [rows, n])?;
                let x = rounded(&mut g, x)?;
                scan(&mut g, &format!("along{n}"), ScanKind::Sum, x, 1)?;
                scan(&mut g, &format!("across{n}"), ScanKind::Sum, x, 0)?;
                // Rows whose elements are apart in memory, and the other way round.
                let turned = g.permute(x, &[1, 0])?;
                scan(&mut g, &format!("turned{n}"), ScanKind::Sum, turned, 0)?;
            }
            Ok(g)
        };
        expect(&build().unwrap(), seed as u64, &format!("{rows} rows"));
    }
}

/// Few rows that are divided into parts, which divide them or not, with vectors and without.
#[test]
fn long_rows() {
    let Some(device) = device() else { return };
    let caps = device.caps().unwrap();
    let shapes = [([1, 16384], 1), ([3, 20003], 1), ([2, 40960], 1), ([50_001, 3], 0), ([4100, 40], 0)];
    for dtype in [DType::F32, DType::F16, DType::BF16, DType::I32, DType::U8, DType::I16] {
        for (seed, (shape, axis)) in shapes.into_iter().enumerate() {
            let build = || -> Result<Graph, GraphError> {
                let mut g = Graph::new("long");
                let x = g.input("x", dtype, shape)?;
                let x = rounded(&mut g, x)?;
                scan(&mut g, "y", ScanKind::Sum, x, axis)?;
                if !dtype.is_float() {
                    scan(&mut g, "y", ScanKind::Prod, x, axis)?;
                }
                Ok(g)
            };
            let graph = build().unwrap();
            let kernels = tallow_codegen::compile(&graph, caps).unwrap().kernels.len();
            // One reduction makes the totals of both.
            let expected = if dtype.is_float() { 3 } else { 5 };
            assert_eq!(kernels, expected, "{dtype} {shape:?}");
            expect(&graph, seed as u64, &format!("{dtype} {shape:?}"));
        }
    }
}

/// NaN and infinities reach what follows them, and nothing before.
#[test]
fn special_values_in_any_part() {
    let Some(device) = device() else { return };
    let mut g = Graph::new("special");
    let x = g.input("x", DType::F32, [4i64, 20_000]).unwrap();
    scan(&mut g, "y", ScanKind::Sum, x, 1).unwrap();
    let mut inputs = random_inputs(&g, 1);
    let leaf = inputs.inputs.get_mut("x").unwrap();
    let mut set = |at: usize, x: f32| leaf.bytes[4 * at..4 * at + 4].copy_from_slice(&x.to_le_bytes());
    set(0, f32::NAN);
    set(20_000 + 7000, f32::INFINITY);
    set(20_000 + 19_000, f32::NEG_INFINITY);
    set(40_000 + 4095, f32::NEG_INFINITY);
    set(79_999, f32::NAN);
    check_on(&device, &g, &inputs).unwrap();
}

/// Extents that only a run knows, from none to more than a workgroup's chunk.
#[test]
fn symbolic_extents() {
    let Some(device) = device() else { return };
    let build = || -> Result<Graph, GraphError> {
        let mut g = Graph::new("symbols");
        let (n, m) = (Dim::from(&Symbol::new("n", 3000)), Dim::from(&Symbol::new("m", 90)));
        let x = g.input("x", DType::F32, [m.clone(), n.clone()])?;
        let x = rounded(&mut g, x)?;
        scan(&mut g, "along", ScanKind::Sum, x, 1)?;
        scan(&mut g, "across", ScanKind::Sum, x, 0)?;
        let y = g.input("y", DType::F16, [n, 12.into()])?;
        scan(&mut g, "fixed", ScanKind::Sum, y, 1)?;
        scan(&mut g, "down", ScanKind::Sum, y, 0)?;
        Ok(g)
    };
    expect_at_all_extents(&device, &build().unwrap());
}

/// Rows and results that more than one binding covers.
#[test]
fn windows_of_buffers() {
    let Some(device) = device_with_range(1 << 16) else { return };
    let mut g = Graph::new("windows");
    let x = g.input("x", DType::F32, [3i64, 20_001]).unwrap();
    scan(&mut g, "along", ScanKind::Sum, x, 1).unwrap();
    scan(&mut g, "across", ScanKind::Sum, x, 0).unwrap();
    check_on(&device, &g, &random_inputs(&g, 1)).unwrap();
}
