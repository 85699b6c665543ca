//! Matrix products: the definition by hand, and the faster ways against the definition.

use super::*;
use crate::layout::Layout;
use crate::ops::matmul::{matmul_fast, matmul_naive};
use crate::view::View;

#[test]
fn by_hand() {
    let body = r#"%0 = input "a" : f32[2,3]
        %1 = input "b" : f32[3,2]
        %2 = matmul %0 %1 : f32[2,2]
        return %2 as "y""#;
    let (a, b) = ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [7.0, 8.0, 9.0, 10.0, 11.0, 12.0]);
    same(&run(body, &[], &[&a, &b]), &[58.0, 64.0, 139.0, 154.0]);
    same(&run(&body.replace("f32", "u8"), &[], &[&a, &[100.0; 6]]), &[88.0, 88.0, 220.0, 220.0]);
    // Three products of a quarter of the smallest f16 each: they are added before anything is rounded.
    let tiny = [2f64.powi(-13); 6];
    same(&run(&body.replace("f32", "f16"), &[], &[&tiny, &tiny]), &[2f64.powi(-24); 4]);
}

#[test]
fn leading_axes_repeat_and_inner_extents_may_be_empty() {
    let body = r#"%0 = input "a" : f32[2,1,1,2]
        %1 = input "b" : f32[1,3,2,1]
        %2 = matmul %0 %1 : f32[2,3,1,1]
        return %2 as "y""#;
    let got = run(body, &[], &[&[1.0, 2.0, 3.0, 4.0], &[1.0, 0.0, 0.0, 1.0, 1.0, 1.0]]);
    same(&got, &[1.0, 2.0, 3.0, 3.0, 4.0, 7.0]);
    let empty = r#"symbol n <= 4
        %0 = input "a" : f32[2,n]
        %1 = permute %0 [1,0] : f32[n,2]
        %2 = matmul %0 %1 : f32[2,2]
        return %2 as "y""#;
    same(&run(empty, &[("n", 0)], &[&[]]), &[0.0; 4]);
}

/// Values of both signs whose products do not add up exactly.
fn noise(n: usize, seed: u64) -> Vec<f64> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as f64 / 2f64.powi(30) - 1.0
    };
    (0..n).map(|_| next()).collect()
}

#[test]
fn fast_agrees_with_naive() {
    for (m, k, n, batch) in
        [(1, 700, 300, 1), (7, 65, 130, 2), (8, 64, 64, 1), (65, 300, 129, 3), (33, 1, 700, 1)]
    {
        for dtype in [DType::F64, DType::F32, DType::F16] {
            let a = Array::from_f64s(dtype, &[batch, m, k], &noise(batch * m * k, 1)).expect("fits");
            let b = Array::from_f64s(dtype, &[1, k, n], &noise(k * n, 2)).expect("fits");
            let (a, b) = (View::from_array(&a), View::from_array(&b));
            let shape = [batch, m, n];
            let fast = matmul_fast(dtype, &a, &b, &shape).to_f64s();
            let naive = matmul_naive(dtype, &a, &b, &shape).to_f64s();
            // An f64 sum in another order differs by at most k roundings of the sum of magnitudes, and
            // then the result's own rounding may fall to the other side.
            let step = match dtype {
                DType::F16 => 2f64.powi(-10),
                DType::F32 => 2f64.powi(-23),
                _ => 0.0,
            };
            for (x, y) in fast.iter().zip(&naive) {
                let bound = k as f64 * k as f64 * 2f64.powi(-53) + step * y.abs();
                assert!((x - y).abs() <= bound, "{dtype} {m}x{k}x{n}: {x} {y}");
            }
        }
    }
}

#[test]
fn bits_do_not_depend_on_where_operands_lie() {
    for m in [3, 40] {
        let (k, n) = (130, 150);
        let a = Array::from_f64s(DType::F32, &[m, k], &noise(m * k, 3)).expect("fits");
        let b = Array::from_f64s(DType::F32, &[k, n], &noise(k * n, 4)).expect("fits");
        let (a, b) = (View::from_array(&a), View::from_array(&b));
        let across = |v: &View| {
            let turned = v.with_layout(v.layout.permute(&[1, 0])).into_packed();
            let layout: Layout = turned.layout.permute(&[1, 0]);
            turned.with_layout(layout)
        };
        let expected = matmul_fast(DType::F32, &a, &b, &[m, n]).to_f64s();
        for (a, b) in [(a.clone(), across(&b)), (across(&a), b.clone()), (across(&a), across(&b))] {
            same(&matmul_fast(DType::F32, &a, &b, &[m, n]).to_f64s(), &expected);
        }
    }
}

#[test]
fn quantized_weights_are_read_through_views() {
    let body = r#"%0 = input "x" : f32[1,32]
        %1 = weight "w" : q8_0[2,32]
        %2 = dequantize %1 : f32[2,32]
        %3 = permute %2 [1,0] : f32[32,2]
        %4 = matmul %0 %3 : f32[1,2]
        %5 = dequantize %1 : f16[2,32]
        return %4 as "y"
        return %5 as "w""#;
    let graph = graph(body);
    let mut env = Env::default();
    let values: Vec<f32> = (0..64).map(|i| i as f32).collect();
    let format = tallow_ir::Format::Q8_0;
    let bytes = tallow_quant::quantize(format, &values).expect("whole blocks");
    let mut meaning = vec![0f32; 64];
    tallow_quant::dequantize(format, &bytes, &mut meaning).expect("whole blocks");
    let w = Array::from_bytes(DType::Block(format), &[2, 32], &bytes).expect("whole blocks");
    env.weights.insert("w".into(), Arc::new(w));
    let ones = Array::from_f64s(DType::F32, &[1, 32], &[1.0; 32]).expect("fits");
    env.inputs.insert("x".into(), Arc::new(ones));
    let outputs = evaluate(&graph, &mut env).expect("runs");
    let sums = [0, 1].map(|r| meaning[r * 32..][..32].iter().map(|x| f64::from(*x)).sum::<f64>() as f32);
    same(&outputs[0].1.to_f64s(), &sums.map(f64::from));
    let halves: Vec<f64> = meaning.iter().map(|x| half::f16::from_f32(*x).to_f64()).collect();
    same(&outputs[1].1.to_f64s(), &halves);
}
