//! The bounds hold what the interpreter computes, are narrow, and tell what kernels may do from what they may not.

use tallow_ir::text::parse;
use tallow_reference::{Array, evaluate};

use super::*;
use crate::compare::compare;
use crate::{Options, Tolerance, covering_graph, random_graph, random_inputs, random_row_program};

fn interval(text: &str, inputs: &[(&str, DType, &[f64])]) -> (Array, Interval) {
    let graph = parse(text).expect("parses");
    let mut given = random_inputs(&graph, 1);
    for (name, dtype, values) in inputs {
        let leaf = given.inputs.get_mut(*name).expect("an input");
        leaf.bytes = Array::from_f64s(*dtype, &[values.len()], values).expect("fits").to_bytes();
    }
    let want = evaluate(&graph, &mut given.env()).expect("evaluates").remove(0).1;
    (want, Bounds::of(&graph).expect("has bounds").run(&given).expect("runs").remove(0).1)
}

/// The widest interval of an output, relative to its largest element.
fn width(found: &Array, interval: &Interval) -> f64 {
    let largest = found.to_f64s().iter().fold(1e-3f64, |m, x| m.max(x.abs()));
    let ends = interval.low().to_f64s().into_iter().zip(interval.high().to_f64s());
    ends.map(|(low, high)| high - low).fold(0.0, f64::max) / largest
}

/// The interpreter's results lie in their intervals, in two runs, of long graphs of all types.
#[test]
fn random_graphs_stay_within_bounds() {
    let mut outputs = 0;
    for seed in 0..300u64 {
        let graph = match seed % 3 {
            0 => random_row_program(seed),
            _ => covering_graph(seed, seed, 8, &Options::default()),
        };
        let mut bounds = Bounds::of(&graph).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{graph}"));
        let mut states = None;
        for run in [seed, seed + 1000] {
            let inputs = random_inputs(&graph, run);
            let mut env = inputs.env();
            env.states = states.take().unwrap_or(env.states);
            let mut results = evaluate(&graph, &mut env).expect("evaluates");
            results.extend(env.states.iter().map(|(n, a)| (format!("state {n}"), a.clone())));
            states = Some(env.states);
            for (name, interval) in bounds.run(&inputs).expect("runs") {
                let found = &results.iter().find(|(n, _)| *n == name).expect("an output").1;
                interval.check(found, found).unwrap_or_else(|e| panic!("seed {seed}: {name}: {e}\n{graph}"));
                outputs += 1;
            }
        }
    }
    assert!(outputs > 1000, "{outputs} outputs");
}

/// Intervals of long graphs are far narrower than what a wrong element would be off by: the numbers are those of the
/// 12-step graphs here, with room for a factor of two.
#[test]
fn bounds_are_narrow() {
    for (dtype, half, nine_of_ten) in [
        (DType::F64, 1e-15, 1e-11),
        (DType::F32, 1e-6, 1e-4),
        (DType::F16, 1e-6, 2e-3),
        (DType::BF16, 1e-6, 2e-2),
    ] {
        let mut widths = vec![];
        for seed in 0..150 {
            let graph = random_graph(seed, 12, &Options { floats: vec![dtype], ..Options::default() });
            let inputs = random_inputs(&graph, seed);
            // What is only kept is found in its state.
            let mut env = inputs.env();
            let mut results = evaluate(&graph, &mut env).expect("evaluates");
            results.extend(env.states.into_iter().map(|(name, array)| (format!("state {name}"), array)));
            let intervals = Bounds::of(&graph).expect("has bounds").run(&inputs).expect("runs");
            for (name, found) in results.iter().filter(|(_, found)| found.ty == dtype) {
                let (_, interval) = intervals.iter().find(|(n, _)| n == name).expect("has an interval");
                widths.push(width(found, interval));
            }
        }
        widths.sort_by(f64::total_cmp);
        let (median, most) = (widths[widths.len() / 2], widths[widths.len() * 9 / 10]);
        assert!(median < half && most < nine_of_ten, "{dtype}: {median:e} and {most:e}");
    }
}

#[test]
fn kernels_round_narrow_floats_or_do_not() {
    let text = "graph \"g\" {\n  %0 = input \"x\" : bf16[2]\n  %1 = add %0 %0 : bf16[2]\n  \
                %2 = add %1 %1 : bf16[2]\n  %3 = add %2 %0 : bf16[2]\n  return %3 as \"y\"\n}\n";
    // 5 * 1.0078125 is a quarter of the way between two bf16; 5 is one.
    let (want, found) = interval(text, &[("x", DType::BF16, &[1.0078125, 1.0])]);
    let ok = |values: [f64; 2]| {
        let exact = Array::from_f64s(DType::F64, &[2], &values).expect("fits");
        let got = Array { ty: DType::BF16, data: exact.data, ..exact };
        found.check(&want, &got).is_ok()
    };
    assert_eq!(want.to_f64s(), [5.03125, 5.0]);
    assert!(ok([5.0390625, 5.0]) && ok([5.03125, 5.0]));
    assert!(!ok([5.0625, 5.0]) && !ok([5.0390625, 5.03125]) && !ok([5.0390625, f64::NAN]));
}

#[test]
fn decisions_of_inexact_values_may_fall_either_way() {
    // Whether 0.1 * 10 is 1 depends on the rounding; whether it is 2 does not.
    let text = "graph \"g\" {\n  %0 = input \"x\" : f32[1]\n  %1 = input \"z\" : f32[1]\n  \
                %2 = mul %0 %1 : f32[1]\n  %3 = input \"w\" : f32[1]\n  %4 = ge %2 %3 : u8[1]\n  \
                return %4 as \"y\"\n}\n";
    let of = |w: f64| {
        let (want, found) =
            interval(text, &[("x", DType::F32, &[0.1]), ("z", DType::F32, &[10.0]), ("w", DType::F32, &[w])]);
        let flag = |x: f64| Array::from_f64s(DType::U8, &[1], &[x]).expect("fits");
        [0.0, 1.0].map(|x| found.check(&want, &flag(x)).is_ok())
    };
    assert_eq!([of(1.0), of(2.0), of(0.5)], [[true, true], [true, false], [false, true]]);
}

#[test]
fn nan_meets_nan() {
    let text =
        "graph \"g\" {\n  %0 = input \"x\" : f32[2]\n  %1 = log %0 : f32[2]\n  return %1 as \"y\"\n}\n";
    let (want, found) = interval(text, &[("x", DType::F32, &[-1.0, 1.0])]);
    let got = |x: [f64; 2]| found.check(&want, &Array::from_f64s(DType::F32, &[2], &x).expect("fits"));
    assert!(got([f64::NAN, 1e-8]).is_ok());
    assert!(got([0.0, 0.0]).is_err() && got([f64::NAN, f64::NAN]).is_err());
    let why = got([f64::NAN, 1e-3]).expect_err("too far").to_string();
    assert!(why.starts_with("at [1] of f32[2]: expected 0.0, got 0.001"), "{why}");
    assert!(compare(&want, &want, Tolerance::Bits).is_ok());
}

#[test]
fn the_tangent_of_an_interval_with_a_pole_is_anything() {
    // 1.25 * 1.25 + 0.0625 is 1.625, or 1.5 where each result is rounded to f8: pi / 2 lies between.
    let text = "graph \"g\" {\n  %0 = input \"x\" : f8e4m3[1]\n  %1 = mul %0 %0 : f8e4m3[1]\n  \
                %2 = const 0.0625 : f8e4m3[]\n  %3 = broadcast %2 : f8e4m3[1]\n  %4 = add %1 %3 : f8e4m3[1]\n  \
                %5 = tan %4 : f8e4m3[1]\n  return %5 as \"y\"\n}\n";
    let of = |x: f64| interval(text, &[("x", DType::F8E4M3, &[x])]);
    let got = |x: f64| Array::from_f64s(DType::F8E4M3, &[1], &[x]).expect("fits");
    let (want, found) = of(1.25);
    assert!(found.check(&want, &got(14.0)).is_ok());
    assert!(found.check(&want, &got(-18.0)).is_ok());
    // Far from it is not.
    let (want, found) = of(0.5);
    assert!(found.check(&want, &got(-18.0)).is_err());
}
