//! Elementwise chains over large tensors.

use tallow::{DType, Tensor};

use super::{full, sampled};
use crate::case::{Axis, Bound, Case, F16_LIMIT, F32_LIMIT, Operand};

pub(super) fn cases(quick: bool) -> Vec<Case> {
    let gelu = |dtype: DType| {
        // 2^26 elements.
        let (rows, columns) = if quick { (16, 256) } else { (16384, 4096) };
        let operand = |name| Operand::new(name, dtype, &["rows", "columns"]);
        Case {
            name: format!("map/gelu-sigmoid/{dtype}/{}", rows * columns),
            operands: vec![operand("a"), operand("b"), operand("c")],
            body: gelu_sigmoid,
            limit: if dtype == DType::F32 { F32_LIMIT } else { F16_LIMIT },
            ..case(rows, columns)
        }
    };
    let (rows, columns) = if quick { (24, 64) } else { (16384, 4096) };
    let silu = Case {
        name: format!("map/silu-bias/f32/{rows}x{columns}"),
        operands: vec![
            Operand::new("x", DType::F32, &["rows", "columns"]),
            Operand::new("bias", DType::F32, &["columns"]),
            Operand::new("m", DType::F32, &["rows", "columns"]),
        ],
        body: |t| t[0].broadcast_add(&t[1])?.silu()?.mul(&t[2]),
        ..case(rows, columns)
    };
    vec![gelu(DType::F32), gelu(DType::F16), silu]
}

fn case(rows: usize, columns: usize) -> Case {
    let axes: Vec<Axis> = vec![sampled("rows", rows, 16), full("columns", columns)];
    Case {
        name: String::new(),
        axes,
        operands: vec![],
        result: vec!["rows", "columns"],
        body: |tensors| Ok(tensors[0].clone()),
        chained: false,
        flops: 0,
        bound: Bound::Copy,
        limit: F32_LIMIT,
    }
}

/// `gelu(a * b + c) * sigmoid(a)`.
fn gelu_sigmoid(tensors: &[Tensor]) -> tallow::Result<Tensor> {
    let [a, b, c] = [&tensors[0], &tensors[1], &tensors[2]];
    a.mul(b)?.add(c)?.gelu()?.mul(&a.sigmoid()?)
}
