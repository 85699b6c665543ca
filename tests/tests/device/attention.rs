//! Attention against the interpreter: every float type, biases repeated along every axis, windows, capped scores,
//! queries that see nothing, more keys than a workgroup takes in a step.

use tallow_ir::{Attention, DType, ElementwiseOp, Graph, Op, Value};

use crate::differential::{check, computed, report};
use crate::harness::device;

/// Heads, key heads, queries, keys, depth, width.
const SHAPES: [[usize; 6]; 7] = [
    [1, 1, 1, 1, 1, 1],
    [4, 2, 1, 67, 8, 8],
    [3, 3, 5, 3, 7, 5],
    [6, 2, 3, 130, 16, 67],
    [2, 1, 9, 9, 4, 4],
    [2, 2, 3, 0, 4, 2],
    [8, 1, 2, 65, 33, 3],
];

/// Which of heads, queries and keys a bias has of its own; `None` is no bias.
const BIASES: [Option<[bool; 3]>; 6] = [
    None,
    Some([true, true, true]),
    Some([false, true, true]),
    Some([true, false, true]),
    Some([true, true, false]),
    Some([false, false, false]),
];

/// A bias, where `masked` with about a third of the keys hidden.
fn bias(g: &mut Graph, name: &str, dtype: DType, dims: [usize; 3], masked: bool) -> Value {
    let bias = g.input(name, dtype, dims).unwrap();
    // An 8-bit float has no infinity.
    if !masked || dtype == DType::F8E4M3 {
        return bias;
    }
    let other = g.input(&format!("{name} hides"), DType::F32, dims).unwrap();
    let limit = g.full_like(other, 0.5).unwrap();
    let hide = g.elementwise(ElementwiseOp::Gt, &[other, limit]).unwrap();
    let hidden = g.full_like(bias, f64::NEG_INFINITY).unwrap();
    g.elementwise(ElementwiseOp::Select, &[hide, hidden, bias]).unwrap()
}

#[test]
fn attention_matches_the_interpreter() {
    let Some(device) = device() else { return };
    let mut failures = vec![];
    let floats: Vec<DType> = computed(&device).into_iter().filter(|d| d.is_float()).collect();
    for (at, dtype) in floats.iter().copied().enumerate() {
        let mut g = Graph::new(dtype.name());
        for (i, [heads, key_heads, s, t, d, e]) in SHAPES.into_iter().enumerate() {
            let q = g.input(&format!("q{i}"), dtype, [heads, s, d]).unwrap();
            let k = g.input(&format!("k{i}"), dtype, [key_heads, t, d]).unwrap();
            let v = g.input(&format!("v{i}"), dtype, [key_heads, t, e]).unwrap();
            for (j, own) in BIASES.into_iter().enumerate() {
                let whole = [heads, s, t];
                let dims = |own: [bool; 3]| std::array::from_fn(|x| if own[x] { whole[x] } else { 1 });
                let other = floats[(at + i + j) % floats.len()];
                let name = format!("bias {i} {j}");
                let bias = own.map(|own| bias(&mut g, &name, other, dims(own), (i + j) % 2 == 0));
                // Each attribute meets each other in some shape.
                let number = i + 2 * j;
                let attrs = Attention::new(0.4)
                    .causal(number % 2 == 0)
                    .window([None, Some(1), Some(4), Some(70)][number % 4])
                    .softcap([None, Some(2.0), Some(0.25)][number % 3]);
                let operands: Vec<Value> = [q, k, v].into_iter().chain(bias).collect();
                let y = g.add(Op::Attention(attrs), &operands).unwrap();
                g.output(&format!("y {i} {j}"), y).unwrap();
            }
        }
        failures.extend(check(&g, 5));
    }
    report(failures, floats.len());
}
