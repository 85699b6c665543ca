//! Reductions with the work around them: softmax, norms, sums.

use tallow::{DType, Tensor, nn};

use super::{full, sampled};
use crate::case::{Axis, Bound, Case, F16_LIMIT, F32_LIMIT, Operand};

pub(super) fn cases(quick: bool) -> Vec<Case> {
    let (rows, columns) = if quick { (20, 200) } else { (8192, 4096) };
    let matrix = |dtype| Operand::new("x", dtype, &["rows", "columns"]);
    let x = || matrix(DType::F32);
    let w = |name| Operand::new(name, DType::F32, &["columns"]);
    let row = |name: &str, operands, body| Case {
        name: format!("row/{name}/{rows}x{columns}"),
        operands,
        body,
        ..case(sampled("rows", rows, 16), full("columns", columns), &["rows", "columns"], Bound::Copy)
    };
    let mut cases = vec![
        row("softmax", vec![x()], |t| nn::softmax(&t[0], 1)),
        row("rms_norm", vec![x(), w("weight")], |t| nn::ops::rms_norm(&t[0], &t[1], 1e-5)),
        row("layer_norm", vec![x(), w("weight"), w("bias")], |t| {
            nn::ops::layer_norm(&t[0], &t[1], &t[2], 1e-5)
        }),
    ];
    cases.push(Case {
        limit: F16_LIMIT,
        ..row("softmax-f16", vec![matrix(DType::F16)], |t| nn::softmax(&t[0], 1))
    });
    let odd = if quick { 201 } else { 4095 };
    cases.push(Case {
        name: format!("row/softmax/{rows}x{odd}"),
        operands: vec![x()],
        body: |t| nn::softmax(&t[0], 1),
        ..case(sampled("rows", rows, 16), full("columns", odd), &["rows", "columns"], Bound::Copy)
    });
    // One long row, which several workgroups share: as large as a vocabulary, and as a large tensor as a whole.
    let (vocabulary, all) = if quick { (32_770, 40_000) } else { (131_072, 1 << 24) };
    cases.push(Case {
        name: format!("row/softmax/1x{vocabulary}"),
        operands: vec![x()],
        body: |t| nn::softmax(&t[0], 1),
        ..case(full("rows", 1), full("columns", vocabulary), &["rows", "columns"], Bound::Copy)
    });
    cases.push(Case {
        name: format!("sum/all/{all}"),
        operands: vec![x()],
        body: |t| t[0].sum(1),
        ..case(full("rows", 1), full("columns", all), &["rows"], Bound::Read)
    });
    let (rows, columns) = if quick { (48, 160) } else { (16384, 4096) };
    let sum = |name: &str, rows: Axis, columns: Axis, axis, body| Case {
        name: format!("sum/{name}/{}x{}", rows.size, columns.size),
        operands: vec![x()],
        body,
        ..case(rows, columns, &[axis], Bound::Read)
    };
    let last = |t: &[Tensor]| t[0].sum(1);
    let first = |t: &[Tensor]| t[0].sum(0);
    cases.push(sum("last", sampled("rows", rows, 64), full("columns", columns), "rows", last));
    cases.push(sum("first", full("rows", rows), sampled("columns", columns, 64), "columns", first));
    // Few long columns, which several workgroups share.
    let (long, few) = if quick { (20_000, 12) } else { (1 << 22, 16) };
    cases.push(sum("first", full("rows", long), full("columns", few), "columns", first));
    cases
}

fn case(rows: Axis, columns: Axis, result: &[&'static str], bound: Bound) -> Case {
    Case {
        name: String::new(),
        axes: vec![rows, columns],
        operands: vec![],
        result: result.to_vec(),
        body: |tensors| Ok(tensors[0].clone()),
        chained: false,
        flops: 0,
        bound,
        limit: F32_LIMIT,
    }
}
