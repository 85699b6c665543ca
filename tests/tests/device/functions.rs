//! Functions of floats on the device, element by element: near 0, near their poles and at the ends.

use tallow::Device;
use tallow_ir::elementwise::{Meaning, TypeRule};
use tallow_ir::{DType, ElementwiseOp as E, Graph};
use tallow_reference::Array;
use tallow_tests::{Tolerance, compare, random_inputs};

use crate::harness::{device, interpret, run};

/// Each of `ops` on `values` in a type; nothing where the device lacks it.
fn check(ops: &[E], dtype: DType, values: &[f64], tolerance: Tolerance) {
    let Some(device) = device() else { return };
    let Device::Vulkan(vulkan) = &device else { panic!("{device} is no Vulkan device") };
    if dtype == DType::F64 && !vulkan.caps().float64 {
        return;
    }
    let mut graph = Graph::new("functions");
    let x = graph.input("x", dtype, [values.len()]).unwrap();
    for op in ops {
        let y = graph.elementwise(*op, &[x]).unwrap();
        graph.output(op.name(), y).unwrap();
    }
    let mut inputs = random_inputs(&graph, 1);
    inputs.inputs.get_mut("x").unwrap().bytes =
        Array::from_f64s(dtype, &[values.len()], values).unwrap().to_bytes();
    let want = interpret(&graph, &inputs).unwrap();
    let got = run(&device, &graph, &inputs).unwrap();
    let found: Vec<String> = want
        .iter()
        .zip(&got)
        .filter_map(|((name, want), (_, got))| {
            compare(want, got, tolerance).err().map(|e| format!("{name}: {e}"))
        })
        .collect();
    assert!(found.is_empty(), "{values:?}\n{}", found.join("\n"));
}

fn both_signs(magnitudes: impl IntoIterator<Item = f64>) -> Vec<f64> {
    magnitudes.into_iter().flat_map(|x| [x, -x]).collect()
}

/// All functions over the range: devices may err by 3 + 2|x| units in an exponential, 2^-17 at 88; sine,
/// cosine and tangent by units of their reduced argument, 100 * 2^-24.
#[test]
fn functions_hold_over_the_range() {
    let all: Vec<E> = E::ALL
        .iter()
        .copied()
        .filter(|op| op.rule() == TypeRule::Float && matches!(op.meaning(), Meaning::Unary(..)))
        .collect();
    let mut values = both_signs((0..80).map(|i| f64::from(i) * 0.0625 + 0.03));
    values.extend(both_signs([0.0, 1.0, 7.5, 10.0, 20.0, 50.0, 87.0, 88.5, 89.3, 100.0]));
    values.extend([f64::INFINITY, f64::NEG_INFINITY, f64::NAN]);
    check(&all, DType::F32, &values, Tolerance::Each { abs: 1e-5, rel: 3e-5 });
    // In f64 the functions are ours: a few units in the last place, of the reduced argument where it is.
    values.extend(both_signs([300.0, 700.5, 709.5, 745.0, 1e4, 1e-310]));
    check(&all, DType::F64, &values, Tolerance::Each { abs: 1e-15, rel: 4e-15 });
}

/// What passes through 0 keeps its digits there: 2^-24 for each of some ten operations.
#[test]
fn small_arguments_keep_their_digits() {
    let odd = [E::Expm1, E::Log1p, E::Tan, E::Asin, E::Atan, E::Sinh, E::Erf];
    let mut values = both_signs((1..24).map(|i| 0.7_f64.powi(i)));
    values.extend(both_signs([1e-10, 1e-20, 1e-30, 0.5, 0.9999, 0.0]));
    check(&odd, DType::F32, &values, Tolerance::Each { abs: 0.0, rel: 2e-6 });
    check(&odd, DType::F64, &values, Tolerance::Each { abs: 0.0, rel: 2e-15 });
}

/// Powers and remainders of every pair of ends, zeros, whole and other numbers. An exponential errs by 2|x| units,
/// and so does a power.
#[test]
fn powers_and_remainders_hold_at_the_ends() {
    let Some(device) = device() else { return };
    let Device::Vulkan(vulkan) = &device else { panic!("{device} is no Vulkan device") };
    let mut ends = both_signs([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 10.0, f64::INFINITY]);
    ends.push(f64::NAN);
    let pairs = || ends.iter().flat_map(|x| ends.iter().map(|y| (*x, *y)));
    for (dtype, rel) in [(DType::F32, 3e-5), (DType::F64, 1e-14)] {
        if dtype == DType::F64 && !vulkan.caps().float64 {
            continue;
        }
        let mut graph = Graph::new("pairs");
        let n = ends.len() * ends.len();
        let x = graph.input("x", dtype, [n]).unwrap();
        let y = graph.input("y", dtype, [n]).unwrap();
        for op in [E::Pow, E::Rem] {
            let z = graph.elementwise(op, &[x, y]).unwrap();
            graph.output(op.name(), z).unwrap();
        }
        let mut inputs = random_inputs(&graph, 1);
        let sides = [pairs().map(|p| p.0).collect::<Vec<_>>(), pairs().map(|p| p.1).collect()];
        for (name, values) in ["x", "y"].into_iter().zip(sides) {
            let bytes = Array::from_f64s(dtype, &[n], &values).unwrap().to_bytes();
            inputs.inputs.get_mut(name).unwrap().bytes = bytes;
        }
        let want = interpret(&graph, &inputs).unwrap();
        let got = run(&device, &graph, &inputs).unwrap();
        for ((name, want), (_, got)) in want.iter().zip(&got) {
            let found = compare(want, got, Tolerance::Each { abs: 0.0, rel });
            found.unwrap_or_else(|e| panic!("{name} in {dtype}: {e}"));
        }
    }
}
