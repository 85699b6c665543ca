//! Integer products of activations that lie on what rounding decides: halves at each place of a block, numbers next to them, NaN and
//! infinities. The ways in which kernels round differ by their length and by what their epilogue reads, and must give the same bytes.

use std::cmp::Ordering;

use tallow_ir::{DType, ElementwiseOp as E, Format, Graph, GraphError, Op, caps, dot};
use tallow_quant::dequantize;
use tallow_tests::random_inputs::random_inputs;

use crate::differential::report;
use crate::harness::{device, run};

/// Activations of scale 1: halves of both signs, and their neighbours.
fn on_halves(k: usize) -> Vec<f32> {
    let one = |i: usize| -> f32 {
        let half = ((i * 7 + i / 32) % 120) as f32 + 0.5;
        let near = match i % 5 {
            0 => half.next_up(),
            1 => half.next_down(),
            _ => half,
        };
        match i % 32 {
            31 => 127.0,
            _ if i.is_multiple_of(3) => -near,
            _ => near,
        }
    };
    (0..k).map(one).collect()
}

fn product(k: i64, n: i64, residual: bool) -> Result<Graph, GraphError> {
    let mut g = Graph::new("halves");
    let x = g.input("x", DType::F32, [1, k])?;
    let w = g.weight("w", DType::Block(Format::Q4_0), [n, k])?;
    let w = g.add(Op::Dequantize(DType::F32), &[w])?;
    let w = g.permute(w, &[1, 0])?;
    let mut y = g.add(Op::Matmul, &[x, w])?;
    if residual {
        let r = g.input("r", DType::F32, [1, n])?;
        y = g.elementwise(E::Add, &[y, r])?;
    }
    g.output("y", y)?;
    dot::quantize_activations(&g, &caps::h200())
}

/// The product with activations rounded as they should be, and how far a sum in f32 may be off; NaN where a block is infinite.
fn expected(x: &[f32], weights: &[f32], residual: Option<&[f32]>) -> Vec<(f64, f64)> {
    let infinite = x.iter().any(|x| x.is_infinite());
    let row = |(n, w): (usize, &[f32])| {
        let products =
            x.iter().zip(w).map(|(x, w)| f64::from(if x.is_nan() { 0.0 } else { x.round() }) * f64::from(*w));
        let (sum, size) = products.fold((0.0, 0.0), |(sum, size), p| (sum + p, size + p.abs()));
        let sum = if infinite { f64::NAN } else { sum };
        (sum + residual.map_or(0.0, |r| f64::from(r[n])), 2e-6 * size)
    };
    weights.chunks_exact(x.len()).enumerate().map(row).collect()
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

#[test]
fn halves_go_away_from_zero_and_special_values_stay_in_their_blocks() {
    let Some(device) = device() else { return };
    let (mut failures, mut of) = (vec![], 0);
    for (k, n) in [(256, 96), (4096, 64), (14336, 32), (14336, 40)] {
        for with_residual in [false, true] {
            for special in [None, Some(f32::NAN), Some(f32::INFINITY), Some(f32::NEG_INFINITY)] {
                let graph = product(k, n, with_residual).expect("a graph of this test");
                let mut inputs = random_inputs(&graph, 77);
                let mut x = on_halves(k as usize);
                if let Some(special) = special {
                    x[37] = special;
                    x[k as usize - 3] = special;
                }
                let leaf = inputs.inputs.get_mut("x").expect("the graph has an input x");
                leaf.bytes = x.iter().flat_map(|x| x.to_le_bytes()).collect();
                let mut weights = vec![0.0; (k * n) as usize];
                dequantize(Format::Q4_0, &inputs.weights["w"].bytes, &mut weights)
                    .expect("blocks of a graph's weight");
                let residual = inputs.inputs.get("r").map(|r| floats(&r.bytes));
                let want = expected(&x, &weights, residual.as_deref());
                let got = floats(&run(&device, &graph, &inputs).expect("a graph that runs")[0].1.to_bytes());
                of += 1;
                let wrong = want.iter().zip(&got).position(|((want, bound), got)| match want.is_nan() {
                    true => got.is_finite(),
                    false => (f64::from(*got) - want).abs().partial_cmp(bound) != Some(Ordering::Less),
                });
                if let Some(at) = wrong {
                    let (want, bound) = want[at];
                    let case = format!("{k} x {n}, residual {with_residual}, with {special:?}");
                    failures.push(format!("{case}: column {at} is {}, not {want} within {bound:e}", got[at]));
                }
            }
        }
    }
    report(failures, of);
}
