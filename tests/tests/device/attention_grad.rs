//! Gradients of attention against the interpreter: expanded into other ops, by the kernel for any device, and by
//! cooperative matrices where the device has them.

use tallow::Device;
use tallow_ir::{
    Attention, AttentionSide, DType, Dim, FusionKind, Graph, GraphError, Node, Op, Symbol, Value, passes,
};
use tallow_tests::random_inputs;

use crate::differential::{check_on, check_rolled, computed, report};
use crate::harness::{device, device_with_range, is_full, is_software};

/// Heads, key heads, queries, keys, depth, width.
const SMALL: [[i64; 6]; 6] = [
    [1, 1, 1, 1, 1, 1],
    [4, 2, 3, 67, 8, 8],
    [3, 3, 65, 3, 7, 5],
    [2, 1, 9, 9, 16, 32],
    [2, 2, 3, 0, 4, 2],
    [6, 1, 70, 66, 5, 33],
];

/// Around the sides of tiles of 16, 64 and 128 rows, of all widths that have matrices.
const TILES: [[i64; 6]; 8] = [
    [4, 2, 16, 32, 16, 16],
    [2, 1, 130, 130, 64, 64],
    [6, 2, 33, 97, 128, 128],
    [1, 1, 200, 40, 32, 48],
    [3, 3, 17, 150, 16, 112],
    [2, 2, 128, 256, 64, 64],
    [4, 1, 250, 241, 96, 64],
    [2, 2, 40, 0, 16, 16],
];

fn kinds() -> [Attention; 6] {
    [
        Attention::new(0.25),
        Attention::new(0.25).causal(true),
        Attention::new(0.5).causal(true).window(Some(40)),
        Attention::new(0.25).softcap(Some(3.0)).causal(true),
        Attention::new(0.125).window(Some(7)),
        Attention::new(-0.25),
    ]
}

/// Both sides' gradients. Kinds 3 and 4 have biases; where `symbolic`, numbers of queries and keys are known at run time.
fn graph(dtype: DType, [h, g, s, t, d, e]: [i64; 6], i: usize, symbolic: bool) -> Result<Graph, GraphError> {
    let mut graph = Graph::new("gradient of attention");
    let dim = |name: &str, n: i64| match symbolic && n > 0 {
        true => Dim::from(Symbol::new(name, n as u32)),
        false => n.into(),
    };
    let (s, t) = (dim("queries", s), dim("keys", t));
    let q = graph.input("q", dtype, [h.into(), s.clone(), d.into()])?;
    let k = graph.input("k", dtype, [g.into(), t.clone(), d.into()])?;
    // As models have them: positions before heads.
    let v = graph.input("v", dtype, [t.clone(), g.into(), e.into()])?;
    let v = graph.permute(v, &[1, 0, 2])?;
    let by_result = graph.input("g", dtype, [h.into(), s.clone(), e.into()])?;
    let wide = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
    let means = graph.input("means", wide, [Dim::from(h), s.clone()])?;
    let bias = match i {
        3 => Some(graph.input("bias", DType::F32, [h.into(), s.clone(), t.clone()])?),
        4 => Some(graph.input("bias", DType::F32, [Dim::one(), Dim::one(), t.clone()])?),
        _ => None,
    };
    let operands: Vec<Value> = [q, k, v, by_result, means].into_iter().chain(bias).collect();
    let attention = kinds()[i];
    let dq = graph.add_node(Op::AttentionGrad(attention, AttentionSide::Queries), &operands)?;
    let sums = Value { node: dq, result: 1 };
    let operands: Vec<Value> = [q, k, v, by_result, means, sums].into_iter().chain(bias).collect();
    let dk = graph.add_node(Op::AttentionGrad(attention, AttentionSide::Keys), &operands)?;
    graph.output("dq", dq)?;
    graph.output("sums", sums)?;
    graph.output("dk", dk)?;
    graph.output("dv", Value { node: dk, result: 1 })?;
    Ok(graph)
}

/// The graphs of a type: each kind for each of `shapes`, every other one symbolic. Of those, software that stands for a device
/// takes seconds to compile one, so it gets every fifth.
fn graphs(device: &Device, dtype: DType, shapes: &[[i64; 6]]) -> Vec<Graph> {
    let step = if is_software(device) && !is_full() { 5 } else { 1 };
    let all = shapes.iter().enumerate().flat_map(|(n, shape)| (0..6).map(move |i| (n, *shape, i)));
    let of = |(n, shape, i): (usize, [i64; 6], usize)| graph(dtype, shape, i, (n + i) % 2 == 1);
    all.step_by(step).map(|case| of(case).expect("fits")).collect()
}

#[test]
fn gradients_of_attention_match_the_interpreter() {
    let Some(device) = device() else { return };
    let mut failures = vec![];
    let mut count = 0;
    for dtype in computed(&device).into_iter().filter(|d| d.is_float() && *d != DType::F8E4M3) {
        let shapes = [&SMALL[..], &TILES[..2]].concat();
        for (seed, graph) in graphs(&device, dtype, &shapes).iter().enumerate() {
            count += 1;
            failures.extend(check_rolled(graph, seed as u64));
        }
    }
    report(failures, count);
}

#[test]
fn gradients_of_attention_match_the_interpreter_in_tiles() {
    let Some(device) = device() else { return };
    let mut failures = vec![];
    let mut count = 0;
    for dtype in [DType::F16, DType::BF16] {
        for (seed, graph) in graphs(&device, dtype, &TILES).iter().enumerate() {
            count += 1;
            failures.extend(check_rolled(graph, 100 + seed as u64));
        }
    }
    report(failures, count);
}

/// A device that cannot bind the scores computes them again for each row.
#[test]
fn gradients_of_attention_need_no_memory_for_scores() {
    let Some(device) = device_with_range(16 << 10) else { return };
    let shapes = [[4, 2, 60, 67, 8, 7], [3, 3, 65, 90, 16, 16], [6, 1, 70, 66, 5, 33]];
    let mut failures = vec![];
    let mut count = 0;
    for dtype in [DType::F32, DType::BF16] {
        for (seed, graph) in graphs(&device, dtype, &shapes).iter().enumerate() {
            count += 1;
            let fused = passes::run(graph, device.caps().expect("a device"), &mut |_, _| {}).expect("valid");
            let is_kernel = |n: &Node| matches!(&n.op, Op::Fusion(f) if f.kind == FusionKind::AttentionGrad);
            assert_eq!(fused.graph().nodes().filter(|(_, n)| is_kernel(n)).count(), 2, "{}", fused.graph());
            let inputs = random_inputs(graph, 200 + seed as u64);
            failures.extend(check_on(&device, graph, &inputs).err());
        }
    }
    report(failures, count);
}
