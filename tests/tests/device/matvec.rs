//! Matmuls of few rows with weights in blocks against the interpreter: activations rounded in the kernel or prepared in
//! shared memory, columns that leave tiles and passes unfilled, rows of an inner extent in parts.

use tallow_ir::{DType, ElementwiseOp as E, Format, Graph, GraphError, Op, ReduceKind, Value, caps, dot};

use crate::differential::{check, report};
use crate::harness::{device, sampled};

/// Columns: fewer than a tile has, more, and of tiles that passes leave unfilled.
const COLUMNS: [i64; 5] = [1, 5, 130, 1030, 3000];

/// Formats that are unpacked in each way that there is, and whose blocks have each size.
const FORMATS: [Format; 20] = [
    Format::Q4_0,
    Format::Q5_1,
    Format::Q8_0,
    Format::Q2_K,
    Format::Q3_K,
    Format::Q4_K,
    Format::Q5_K,
    Format::Q6_K,
    Format::NVFP4,
    Format::TQ2_0,
    Format::IQ4_XS,
    Format::MXFP4,
    Format::IQ1_S,
    Format::IQ1_M,
    Format::IQ2_XXS,
    Format::IQ2_XS,
    Format::IQ2_S,
    Format::IQ3_XXS,
    Format::IQ3_S,
    Format::TQ1_0,
];

/// Each row of `x` over the root of the sum of the squares of `of`'s.
fn normed(g: &mut Graph, x: Value, of: Value) -> Result<Value, GraphError> {
    let square = g.elementwise(E::Mul, &[of, of])?;
    let sum = g.add(Op::Reduce { kind: ReduceKind::Sum, axes: vec![1] }, &[square])?;
    let scale = g.elementwise(E::Rsqrt, &[sum])?;
    let shape = g.ty(x).shape.clone();
    let scale = g.reshape(scale, [shape.dims()[0].clone(), 1.into()])?;
    let scale = g.broadcast(scale, shape)?;
    g.elementwise(E::Mul, &[x, scale])
}

/// What rows are divided by.
#[derive(Clone, Copy)]
pub enum Norm {
    None,
    OfInput,
    /// Of rows of another tensor, so long.
    Other(i64),
}

/// `x`, divided by a norm or not, times each weight; products of neighbours are multiplied where `paired`.
pub struct Case {
    pub rows: i64,
    pub k: i64,
    pub weights: Vec<(Format, i64)>,
    pub norm: Norm,
    pub paired: bool,
    pub quantized: bool,
}

impl Case {
    pub fn graph(&self) -> Result<Graph, GraphError> {
        let mut g = Graph::new("matvec");
        let mut x = g.input("x", DType::F32, [self.rows, self.k])?;
        match self.norm {
            Norm::None => {}
            Norm::OfInput => x = normed(&mut g, x, x)?,
            Norm::Other(length) => {
                let z = g.input("z", DType::F32, [self.rows, length])?;
                x = normed(&mut g, x, z)?;
            }
        }
        let mut products = vec![];
        for (i, &(format, n)) in self.weights.iter().enumerate() {
            let w = g.weight(&format!("w{i}"), DType::Block(format), [n, self.k])?;
            let w = g.add(Op::Dequantize(DType::F32), &[w])?;
            let w = g.permute(w, &[1, 0])?;
            products.push(g.add(Op::Matmul, &[x, w])?);
        }
        if self.paired {
            products = vec![g.elementwise(E::Mul, &[products[0], products[1]])?];
        }
        for (i, y) in products.into_iter().enumerate() {
            g.output(&format!("y{i}"), y)?;
        }
        match self.quantized {
            // As callers write it, also for devices that would not ask for it.
            true => dot::quantize_activations(&g, &caps::h200()),
            false => Ok(g),
        }
    }
}

fn checked(cases: Vec<Case>) {
    let Some(device) = device() else { return };
    let cases: Vec<(usize, Case)> = sampled(&device, 2, cases.into_iter().enumerate()).collect();
    let of = cases.len();
    let failures = cases.iter().filter_map(|&(i, ref case)| {
        let graph = case.graph().expect("a graph of this test");
        check(&graph, 5000 + i as u64).map(|why| format!("{graph}\n{why}"))
    });
    report(failures.collect(), of);
}

/// The inner extent nearest to `k` that is whole blocks.
fn multiple_of_block(format: Format, k: i64) -> i64 {
    let block = format.block_elements() as i64;
    (k / block).max(1) * block
}

#[test]
fn columns_and_rows_of_all_counts_match_the_interpreter() {
    let mut cases = vec![];
    for (i, format) in FORMATS.into_iter().enumerate() {
        for (j, n) in COLUMNS.into_iter().enumerate() {
            let rows = [1, 2, 3, 8, 1][(i + j) % 5];
            let k = multiple_of_block(format, [256, 96, 800, 1536, 32][(i + 2 * j) % 5]);
            let (quantized, norm) = ((i + j) % 3 != 0, if j % 2 == 0 { Norm::OfInput } else { Norm::None });
            cases.push(Case { rows, k, weights: vec![(format, n)], norm, paired: false, quantized });
        }
    }
    checked(cases);
}

/// Epilogue operands are prefetched before the products: for each row, of columns that end within a tile, one tensor or
/// two, and one that all rows share.
#[test]
fn results_with_what_is_added_match_the_interpreter() {
    let graph = |rows: i64, k: i64, n: i64, format: Format, added: &[DType], shared: bool| {
        let mut g = Graph::new("added");
        let x = g.input("x", DType::F32, [rows, k])?;
        let w = g.weight("w", DType::Block(format), [n, k])?;
        let w = g.add(Op::Dequantize(DType::F32), &[w])?;
        let w = g.permute(w, &[1, 0])?;
        let mut y = g.add(Op::Matmul, &[x, w])?;
        for (i, dtype) in added.iter().enumerate() {
            let h = g.input(&format!("h{i}"), *dtype, [rows, n])?;
            let h = g.add(Op::Cast(DType::F32), &[h])?;
            y = g.elementwise(if i == 0 { E::Add } else { E::Mul }, &[h, y])?;
        }
        if shared {
            let bias = g.weight("bias", DType::F32, [n])?;
            let bias = g.broadcast(bias, [rows, n])?;
            y = g.elementwise(E::Add, &[y, bias])?;
        }
        g.output("y", y)?;
        dot::quantize_activations(&g, &caps::h200())
    };
    let (f32, f16, bf16) = (DType::F32, DType::F16, DType::BF16);
    let cases: [Result<Graph, GraphError>; 8] = [
        graph(1, 256, 37, Format::Q4_0, &[f32], false),
        graph(2, 256, 37, Format::Q4_0, &[f32], false),
        graph(3, 512, 129, Format::Q4_K, &[f16], true),
        graph(2, 4096, 9, Format::Q4_0, &[f32, bf16], false),
        graph(8, 96, 5, Format::Q8_0, &[f32], true),
        graph(1, 14336, 66, Format::Q6_K, &[bf16], true),
        graph(4, 1024, 1030, Format::Q5_1, &[f16, f32], true),
        graph(2, 512, 1, Format::Q4_K, &[], true),
    ];
    if device().is_none() {
        return;
    }
    let of = cases.len();
    let failures = cases.into_iter().enumerate().filter_map(|(i, graph)| {
        let graph = graph.expect("a graph of this test");
        check(&graph, 5400 + i as u64).map(|why| format!("{graph}\n{why}"))
    });
    report(failures.collect(), of);
}

#[test]
fn long_rows_in_parts_match_the_interpreter() {
    let case = |format, k, n, quantized| Case {
        rows: 1,
        k,
        weights: vec![(format, n)],
        norm: Norm::OfInput,
        paired: false,
        quantized,
    };
    checked(vec![
        case(Format::Q4_0, 4096, 40, true),
        case(Format::Q4_0, 4096 + 96, 200, true),
        case(Format::Q4_K, 4096 + 256, 9, true),
        case(Format::Q6_K, 8192, 33, true),
        case(Format::F16, 4096 + 8, 40, false),
        case(Format::F16, 5000, 200, false),
        case(Format::IQ2_XXS, 2048, 37, false),
    ]);
}

#[test]
fn tiles_of_all_widths_match_the_interpreter() {
    let mut cases = vec![];
    for (i, format) in [Format::F32, Format::F16, Format::BF16].into_iter().enumerate() {
        // From 64 columns on a CPU makes wide tiles, from 2048 on a GPU, and neither of many times as many.
        for (j, n) in [7, 63, 64, 70, 127, 130, 2050, 4099].into_iter().enumerate() {
            let rows = if j % 3 == 2 { 1 + (i + j) as i64 % 8 } else { 1 };
            let k = [8, 40, 264, 2056, 1028, 33][(i + j) % 6];
            let weights =
                if (i + j) % 4 == 3 { vec![(format, n), (format, n - 1)] } else { vec![(format, n)] };
            cases.push(Case { rows, k, weights, norm: Norm::None, paired: false, quantized: false });
        }
    }
    checked(cases);
}

/// Rows that subgroups read in one step, of so many columns that they pass over a tile three, five or seven times, on a CPU
/// (whose workgroups take a 128th of them) and on a GPU: passes that are written out, and in a loop.
#[test]
fn odd_numbers_of_passes_match_the_interpreter() {
    let case = |format, k, n| Case {
        rows: 1,
        k,
        weights: vec![(format, n)],
        norm: Norm::None,
        paired: false,
        quantized: true,
    };
    checked(vec![
        case(Format::Q2_K, 512, 13_000),
        case(Format::Q3_K, 256, 9_001),
        case(Format::TQ2_0, 512, 5_000),
        case(Format::Q6_K, 512, 13_000),
        case(Format::Q3_K, 4096, 13_000),
        case(Format::Q2_K, 2048, 12_345),
    ]);
}

/// Several rows are multiplied with one, two or four columns at a time: formats of few and of many words, one weight and two
/// in a kernel, steps along K that fill subgroups and that do not, as many rows as fit in shared memory.
#[test]
fn several_rows_with_several_columns_match_the_interpreter() {
    let mut cases = vec![];
    let formats = [Format::Q4_0, Format::Q8_0, Format::Q4_K, Format::Q6_K, Format::IQ4_NL, Format::NVFP4];
    for (i, format) in formats.into_iter().enumerate() {
        for (j, (rows, k, n)) in
            [(2, 4096, 257), (3, 1280, 1030), (4, 2048, 64), (5, 768, 5), (7, 512, 4100), (8, 4096, 33)]
                .into_iter()
                .enumerate()
        {
            let paired = (i + j) % 4 == 0;
            let weights = if paired { vec![(format, n), (Format::Q4_0, n)] } else { vec![(format, n)] };
            let norm = if (i + j) % 3 == 0 { Norm::OfInput } else { Norm::None };
            cases.push(Case { rows, k, weights, norm, paired, quantized: true });
        }
    }
    checked(cases);
}

#[test]
fn norms_of_rows_of_other_lengths_match_the_interpreter() {
    let mut cases = vec![];
    for (format, quantized) in
        [(Format::Q4_0, true), (Format::Q6_K, true), (Format::Q4_0, false), (Format::F16, false)]
    {
        for (rows, k) in [(1, 256), (1, 2048), (3, 512)] {
            for length in [100, k / 2, k, 4 * k + 4] {
                let norm = Norm::Other(length);
                cases.push(Case { rows, k, weights: vec![(format, 24)], norm, paired: false, quantized });
            }
        }
    }
    checked(cases);
}

#[test]
fn several_weights_in_a_kernel_match_the_interpreter() {
    let mut cases = vec![];
    for quantized in [true, false] {
        for norm in [Norm::OfInput, Norm::None] {
            let case = |rows, k, weights: &[(Format, i64)], paired| Case {
                rows,
                k,
                weights: weights.to_vec(),
                norm,
                paired,
                quantized,
            };
            cases.extend([
                case(1, 512, &[(Format::Q4_K, 256), (Format::Q4_K, 64), (Format::Q6_K, 64)], false),
                case(3, 256, &[(Format::Q8_0, 70), (Format::Q4_0, 35), (Format::Q5_0, 7)], false),
                case(1, 768, &[(Format::Q4_0, 1500), (Format::Q4_0, 1500)], true),
                case(2, 256, &[(Format::Q5_K, 300), (Format::Q2_K, 300)], true),
                case(1, 264, &[(Format::F16, 300), (Format::F16, 300)], true),
                // Formats of which an invocation takes 32 and 64 elements at a time, neighbours and such as lie apart.
                case(1, 512, &[(Format::Q4_0, 300), (Format::Q4_K, 300)], true),
                case(2, 768, &[(Format::Q6_K, 90), (Format::NVFP4, 90)], true),
                case(1, 2048, &[(Format::Q3_K, 40), (Format::Q8_0, 40)], true),
                // Two columns of two matrices at a time.
                case(1, 512, &[(Format::Q3_K, 8000), (Format::Q3_K, 8000)], true),
                case(
                    1,
                    512,
                    &[(Format::Q4_1, 40), (Format::Q5_0, 30), (Format::IQ4_NL, 20), (Format::MXFP4, 20)],
                    false,
                ),
                case(3, 256, &[(Format::Q2_K, 40), (Format::Q5_K, 30), (Format::IQ4_XS, 20)], false),
            ]);
        }
    }
    // What is not in blocks is not rounded.
    cases.retain(|case| !(case.quantized && case.weights[0].0 == Format::F16));
    checked(cases);
}
