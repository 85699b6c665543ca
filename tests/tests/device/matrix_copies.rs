//! Products of f16 and bf16 operands that are copied, so that tiles read them in vectors: transposed ones, and rows of odd
//! lengths. Skipped where the device does not multiply such matrices: it copies nothing then.

use tallow_ir::matrix::{self, MatrixOperand};

use crate::differential::{check, report};
use crate::harness::device;
use crate::matrix::products;

/// Rows, inner extents and columns of which copies cost less than single elements.
const EXTENTS: [[i64; 3]; 3] = [[300, 999, 1030], [260, 2048, 801], [400, 520, 1500]];

fn checked(operand: MatrixOperand) {
    let Some(device) = device() else { return };
    if !device.caps().is_some_and(|caps| matrix::has_instructions(caps, operand)) {
        println!("SKIPPED: {device} multiplies no {} matrices", operand.dtype());
        return;
    }
    let graphs = products(operand.dtype(), &EXTENTS);
    let (count, mut failures) = (graphs.len(), vec![]);
    for (i, graph) in graphs.into_iter().enumerate() {
        let graph = graph.expect("a graph of this test");
        failures.extend(check(&graph, 5100 + i as u64).map(|why| format!("{graph}\n{why}")));
    }
    report(failures, count);
}

#[test]
fn f16_products_match_the_interpreter() {
    checked(MatrixOperand::F16);
}

#[test]
fn bf16_products_match_the_interpreter() {
    checked(MatrixOperand::Bf16);
}
