//! Products and attention of bf16 operands with cooperative matrices against the interpreter, over the extents of
//! [`matrix`](super::matrix). Skipped where the device does not multiply bf16 matrices: other tests cover the kernels
//! that such devices run.

use tallow::Device;
use tallow_ir::matrix::{self, MatrixOperand};
use tallow_ir::{Attention, DType, Dim, ElementwiseOp as E, Format, Graph, GraphError, Op, Symbol};

use crate::differential::{check, report};
use crate::harness::device;
use crate::matrix::{
    EXTENTS, MANY_QUERIES, VERY_MANY_QUERIES, attentions, attentions_of_few, batches, linear, mixed,
    nearly_empty_waves, prefill, products, several, siblings,
};

/// The device, if it multiplies bf16 matrices.
fn able() -> Option<Device> {
    let device = device()?;
    let able = device.caps().is_some_and(|caps| matrix::has_instructions(caps, MatrixOperand::Bf16));
    if !able {
        println!("SKIPPED: {device} multiplies no bf16 matrices");
    }
    able.then_some(device)
}

fn checked(graphs: impl IntoIterator<Item = Result<Graph, GraphError>>) {
    if able().is_none() {
        return;
    }
    let graphs: Vec<Graph> = graphs.into_iter().map(|graph| graph.expect("a graph of this test")).collect();
    let failing =
        |(i, graph): (usize, &Graph)| check(graph, 4700 + i as u64).map(|why| format!("{graph}\n{why}"));
    report(graphs.iter().enumerate().filter_map(failing).collect(), graphs.len());
}

#[test]
fn tensors_in_either_order_match_the_interpreter() {
    checked(products(DType::BF16, &EXTENTS));
}

#[test]
fn products_of_nearly_empty_waves_match_the_interpreter() {
    checked(nearly_empty_waves(DType::BF16));
}

/// One to eight rows and a right operand `[k, n]`, which are tiles, and around the extents of small tiles.
#[test]
fn few_rows_match_the_interpreter() {
    let rows = [1, 2, 7, 8, 9, 16, 33, 64, 127];
    let extents: Vec<[i64; 3]> =
        rows.into_iter().flat_map(|m| [[m, 2048, 72], [m, 1031, 136], [m, 96, 1400]]).collect();
    checked(products(DType::BF16, &extents));
}

/// Activations that are rounded on the way to shared memory, weights `[n, k]`, and an epilogue; also of symbolic rows
/// and of split-K.
#[test]
fn rounded_activations_match_the_interpreter() {
    let seq = || Dim::from(Symbol::new("seq", 150));
    let extents = [(8, 1), (40, 33), (24, 64), (257, 40), (32, 257), (512, 96)];
    let fixed = [9, 31, 65, 128, 200]
        .into_iter()
        .flat_map(|m| extents.map(|(k, n)| linear(m.into(), k, n, Format::BF16)));
    checked(fixed.chain([
        linear(seq(), 4096, 72, Format::BF16),
        linear(seq(), 65, 33, Format::BF16),
        linear(70.into(), 2048, 130, Format::BF16),
        linear(9.into(), 9000, 40, Format::BF16),
        linear(65.into(), 2047, 65, Format::BF16),
    ]));
}

#[test]
fn products_that_share_a_kernel_match_the_interpreter() {
    let of = |count| [several(count, 64, 64, Format::BF16), several(count, 64, 132, Format::BF16)];
    let split = [several(2, 2048, 132, Format::BF16), siblings(4192, Format::BF16)];
    checked((1..=5).flat_map(of).chain([siblings(96, Format::BF16)]).chain(split));
}

/// Several tiles of a workgroup in turn.
#[test]
fn tiles_in_turn_match_the_interpreter() {
    let of = |narrow, k, n, turned| batches(DType::BF16, narrow, [k, n], turned);
    checked([
        of(true, 64, 512, false),
        of(false, 32, 512, false),
        of(true, 32, 504, true),
        of(false, 96, 512, true),
        of(true, 64, 510, false),
    ]);
}

#[test]
fn operands_read_through_index_maps_match_the_interpreter() {
    checked(mixed(DType::BF16));
}

/// A prologue and an epilogue in bf16: `tanh(tanh(a) b + c)`; and 8-bit integers, which are exact in bf16, times bf16.
#[test]
fn prologues_and_epilogues_match_the_interpreter() {
    let around = |m: i64, k: i64, n: i64| -> Result<Graph, GraphError> {
        let mut g = Graph::new("around");
        let a = g.input("a", DType::BF16, [m, k])?;
        let a = g.elementwise(E::Tanh, &[a])?;
        let b = g.weight("b", DType::BF16, [k, n])?;
        let c = g.input("c", DType::BF16, [m, n])?;
        let y = g.add(Op::Matmul, &[a, b])?;
        let y = g.elementwise(E::Add, &[y, c])?;
        let y = g.elementwise(E::Tanh, &[y])?;
        g.output("y", y)?;
        Ok(g)
    };
    let bytes = |m: i64, k: i64, n: i64| -> Result<Graph, GraphError> {
        let mut g = Graph::new("bytes");
        let a = g.input("a", DType::U8, [m, k])?;
        let a = g.add(Op::Cast(DType::F32), &[a])?;
        let b = g.input("b", DType::BF16, [k, n])?;
        let b = g.add(Op::Cast(DType::F32), &[b])?;
        let y = g.add(Op::Matmul, &[a, b])?;
        g.output("y", y)?;
        Ok(g)
    };
    let extents = [(9, 40, 24), (33, 130, 65), (130, 64, 264)];
    checked(extents.into_iter().flat_map(|(m, k, n)| [around(m, k, n), bytes(m, k, n)]));
}

#[test]
fn attention_of_many_queries_matches_the_interpreter() {
    checked(attentions(DType::BF16, &MANY_QUERIES).into_iter().chain([prefill(DType::BF16, 8)]));
}

#[test]
fn attention_of_few_queries_matches_the_interpreter() {
    checked(attentions_of_few(DType::BF16));
}

#[test]
fn attention_of_very_many_queries_matches_the_interpreter() {
    checked(attentions(DType::BF16, &VERY_MANY_QUERIES).into_iter().chain([prefill(DType::BF16, 256)]));
}

/// The cases above run the instructions: the plans of one product and one attention name them.
#[test]
fn plans_name_the_instructions() {
    let Some(device) = able() else { return };
    let Some(caps) = device.caps() else { return };
    let mut attention = Graph::new("attention");
    let [q, k, v] = ["q", "k", "v"].map(|name| attention.input(name, DType::BF16, [2, 130, 64]).unwrap());
    let rounded = Op::Attention(Attention::new(0.125).round_weights(true));
    let y = attention.add(rounded, &[q, k, v]).unwrap();
    attention.output("y", y).unwrap();
    let product = linear(130.into(), 64, 72, Format::BF16).unwrap();
    for (graph, name) in [(attention, "flash_attention coopmat"), (product, "matmul coopmat")] {
        let module = tallow_codegen::compile(&graph, caps).unwrap();
        assert!(module.explain().contains(name), "{}", module.explain());
    }
}
