//! Products of matrices and convolutions.

use tallow::{DType, Tensor};
use tallow_quant::Format;

use super::matvec::times_transposed;
use super::{full, sampled};
use crate::case::{Bound, Case, F16_LIMIT, F32_LIMIT, INTEGER_LIMIT, Operand};

pub(super) fn cases(quick: bool) -> Vec<Case> {
    let mut cases = vec![];
    let (m, k, n) = if quick { (40, 256, 96) } else { (512, 4096, 14336) };
    cases.push(plain(DType::F16, m, k, n));
    for format in [Format::Q4_0, Format::Q4_K, Format::Q8_0] {
        cases.push(quantized(format, m, k, n));
    }
    let squares: &[usize] = if quick { &[64] } else { &[256, 512, 1024, 2048, 4096] };
    cases.extend(squares.iter().map(|&n| plain(DType::F32, n, n, n)));
    let n = if quick { 64 } else { 4096 };
    cases.push(plain(DType::F16, n, n, n));
    let (b, m, k, n) = if quick { (3, 40, 32, 48) } else { (32, 1024, 128, 1024) };
    cases.push(batched(b, m, k, n));
    for dtype in [DType::F32, DType::F16] {
        cases.push(conv2d(dtype, quick));
    }
    cases
}

fn bound(dtype: DType) -> (Bound, f64) {
    if dtype == DType::F32 { (Bound::Fma, F32_LIMIT) } else { (Bound::Matrix, F16_LIMIT) }
}

/// `[m, k]` times `[k, n]`, both in `dtype`, as is the result.
fn plain(dtype: DType, m: usize, k: usize, n: usize) -> Case {
    let (bound, limit) = bound(dtype);
    Case {
        name: format!("matmul/{dtype}/{m}x{k}x{n}"),
        axes: vec![sampled("m", m, 24), full("k", k), sampled("n", n, 24)],
        operands: vec![
            Operand::new("a", dtype, &["m", "k"]),
            Operand { size: 1.0 / (k as f32).sqrt(), ..Operand::new("b", dtype, &["k", "n"]) },
        ],
        result: vec!["m", "n"],
        body: |tensors| tensors[0].matmul(&tensors[1]),
        chained: false,
        flops: 2 * (m * k * n) as u64,
        bound,
        limit,
    }
}

/// Rows of f32 activations times the transpose of a quantized weight, as in prefill.
fn quantized(format: Format, m: usize, k: usize, n: usize) -> Case {
    Case {
        name: format!("matmul/{}/{m}x{k}x{n}", format.name()),
        axes: vec![sampled("m", m, 24), sampled("n", n, 24), full("k", k)],
        operands: vec![
            Operand::new("x", DType::F32, &["m", "k"]),
            Operand::weight("w", format, DType::F32, &["n", "k"]),
        ],
        result: vec!["m", "n"],
        body: times_transposed,
        chained: false,
        flops: 2 * (m * k * n) as u64,
        bound: Bound::Matrix,
        limit: INTEGER_LIMIT,
    }
}

fn batched(b: usize, m: usize, k: usize, n: usize) -> Case {
    let dtype = DType::F16;
    Case {
        name: format!("batched-matmul/{dtype}/{b}x{m}x{k}x{n}"),
        axes: vec![sampled("batch", b, 3), sampled("m", m, 24), full("k", k), sampled("n", n, 24)],
        operands: vec![
            Operand::new("a", dtype, &["batch", "m", "k"]),
            Operand { size: 1.0 / (k as f32).sqrt(), ..Operand::new("b", dtype, &["batch", "k", "n"]) },
        ],
        result: vec!["batch", "m", "n"],
        body: |tensors| tensors[0].matmul(&tensors[1]),
        chained: false,
        flops: 2 * (b * m * k * n) as u64,
        bound: Bound::Matrix,
        limit: F16_LIMIT,
    }
}

/// Images `[batch, in, h, w]` under kernels `[out, in, 3, 3]` with one element of padding on each side.
fn conv2d(dtype: DType, quick: bool) -> Case {
    let (batch, inputs, outputs, side) = if quick { (2, 8, 12, 10) } else { (8, 64, 128, 128) };
    let (bound, limit) = bound(dtype);
    let terms = 9 * inputs;
    Case {
        name: format!("conv2d/{dtype}/{batch}x{inputs}x{side}x{side}-{outputs}x{inputs}x3x3"),
        axes: vec![
            sampled("batch", batch, 1),
            full("in", inputs),
            sampled("out", outputs, 4),
            full("h", side),
            full("w", side),
            full("kh", 3),
            full("kw", 3),
        ],
        operands: vec![
            Operand::new("x", dtype, &["batch", "in", "h", "w"]),
            Operand {
                size: 1.0 / (terms as f32).sqrt(),
                ..Operand::new("kernel", dtype, &["out", "in", "kh", "kw"])
            },
        ],
        result: vec!["batch", "out", "h", "w"],
        body: convolved,
        chained: false,
        flops: 2 * (batch * outputs * side * side * terms) as u64,
        bound,
        limit,
    }
}

fn convolved(tensors: &[Tensor]) -> tallow::Result<Tensor> {
    tensors[0].conv2d(&tensors[1], 1, 1, 1, 1)
}
