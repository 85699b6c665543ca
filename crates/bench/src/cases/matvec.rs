//! One row of activations times the transpose of a weight, in each format.

use tallow::{DType, Tensor};
use tallow_quant::Format;

use super::{full, sampled};
use crate::case::{Bound, Case, F32_LIMIT, INTEGER_LIMIT, Operand};

/// Formats that weights of models have: not those of activations, and no integers.
pub fn weight_formats() -> impl Iterator<Item = Format> {
    let is_weight = |format: &Format| match format {
        Format::Q8_1 | Format::Q8_K => false,
        Format::I8 | Format::I16 | Format::I32 | Format::I64 | Format::F64 => false,
        Format::Q4_0 | Format::Q4_1 | Format::Q5_0 | Format::Q5_1 | Format::Q8_0 => true,
        Format::Q2_K | Format::Q3_K | Format::Q4_K | Format::Q5_K | Format::Q6_K => true,
        Format::IQ2_XXS | Format::IQ2_XS | Format::IQ2_S | Format::IQ3_XXS | Format::IQ3_S => true,
        Format::IQ1_S | Format::IQ1_M | Format::IQ4_NL | Format::IQ4_XS => true,
        Format::TQ1_0 | Format::TQ2_0 | Format::MXFP4 | Format::NVFP4 => true,
        Format::F16 | Format::BF16 | Format::F32 => true,
    };
    Format::ALL.iter().copied().filter(is_weight)
}

pub(super) fn cases(quick: bool) -> Vec<Case> {
    let shapes: &[(usize, usize)] =
        if quick { &[(96, 512), (512, 256)] } else { &[(14336, 4096), (4096, 14336), (4096, 4096)] };
    let mut cases = vec![];
    for format in weight_formats() {
        for &(rows, columns) in shapes {
            cases.push(case("matvec", format, rows, columns, false));
        }
    }
    for format in [Format::Q4_0, Format::Q4_K, Format::Q6_K, Format::Q8_0, Format::F16] {
        for &(rows, columns) in shapes {
            cases.push(case("matvec-chained", format, rows, columns, true));
        }
    }
    cases
}

fn case(family: &str, format: Format, rows: usize, columns: usize, chained: bool) -> Case {
    Case {
        name: format!("{family}/{}/{rows}x{columns}", format.name()),
        axes: vec![full("one", 1), sampled("n", rows, 64), full("k", columns)],
        operands: vec![
            Operand::new("x", DType::F32, &["one", "k"]),
            Operand::weight("w", format, DType::F32, &["n", "k"]),
        ],
        result: vec!["one", "n"],
        body: times_transposed,
        chained,
        flops: 2 * (rows * columns) as u64,
        bound: Bound::Read,
        limit: if format.is_plain() { F32_LIMIT } else { INTEGER_LIMIT },
    }
}

/// `x w^T`.
pub(super) fn times_transposed(tensors: &[Tensor]) -> tallow::Result<Tensor> {
    tensors[0].matmul(&tensors[1].t()?)
}
