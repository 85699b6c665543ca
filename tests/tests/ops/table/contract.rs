//! Contractions: matmul, quantized weights, attention, convolutions.

use candle_core as candle;
use tallow::Tensor;
use tallow_ir::attention::Attention;
use tallow_ir::{DType, ElementwiseOp, Op};
use tallow_quant::Format;

use super::{add, dims, tensors};
use crate::class::Class;
use crate::row::{Bound, Leaf, Operand, Row};

type T = candle::Tensor;

/// Block formats of every layout on the device: plain, by 32, and by 256 with scales of their own.
const FORMATS: [Format; 4] = [Format::Q4_0, Format::Q8_0, Format::Q4_K, Format::Q6_K];

pub fn rows() -> Vec<Row> {
    let mut rows = vec![
        matmul("matmul few rows", |m| m.min(8)),
        matmul("matmul", |m| m),
        // One left operand for all of a batch.
        Row::new(
            "Contractions",
            "matmul shared right side",
            |d, dtype| {
                let mut one = across(d);
                if let Some(first) = one.first_mut() {
                    *first = 1;
                }
                vec![Operand::new(d, dtype), Operand::new(&one, dtype).shared()]
            },
            |g, v| add(g, Op::Matmul, v),
        )
        .candle(PRODUCTS, |t| t[0].broadcast_matmul(&t[1])),
    ];
    for format in FORMATS {
        rows.push(dequantize(format));
    }
    for format in Op::QUANTIZED {
        rows.push(quantize(format));
    }
    for causal in [false, true] {
        rows.push(attention(causal));
    }
    rows.extend(convolutions());
    rows
}

/// `d` as the right operand of `d`: its inner extent by 5.
fn across(d: &[usize]) -> Vec<usize> {
    let mut right = d.to_vec();
    if let [.., rows, columns] = right.as_mut_slice() {
        (*rows, *columns) = (*columns, 5);
    }
    right
}

/// Sums of at most 67 products are exact in f32, and rounded once; Candle's gemm rounds 16 bits in its own way, by half a
/// step for each product at most.
const PRODUCTS: Bound = Bound::Steps(34.0);

fn matmul(name: &str, rows: fn(usize) -> usize) -> Row {
    Row::new(
        "Contractions",
        name,
        move |d, dtype| {
            let mut left = d.to_vec();
            if let [.., m, _] = left.as_mut_slice() {
                *m = rows(*m);
            }
            vec![Operand::new(&left, dtype), Operand::new(&across(d), dtype)]
        },
        |g, v| add(g, Op::Matmul, v),
    )
    .candle(PRODUCTS, |t| t[0].contiguous()?.matmul(&t[1].contiguous()?))
}

/// Blocks to the row's type, added to an operand of it, which also says what the type is.
fn dequantize(format: Format) -> Row {
    let row = Row::new(
        "Contractions",
        &format!("dequantize {}", format.spec().name),
        move |d, dtype| {
            let whole = Operand::new(d, DType::Block(format)).from(Leaf::Blocks(format));
            vec![Operand::new(d, dtype), whole]
        },
        |g, v| {
            let dtype = g.ty(v[0]).dtype;
            let mut values = add(g, Op::Dequantize(dtype), &v[1..])?;
            let (mut whole, part) = (dims(g, v[0]), dims(g, values));
            if whole != part && !part.is_empty() {
                // The same weight for every copy of its rows.
                whole.splice(..1, [whole[0] / part[0], part[0]]);
                values = add(g, Op::Broadcast(whole.into()), &[values])?;
                values = add(g, Op::Reshape(g.ty(v[0]).shape.clone()), &[values])?;
            }
            add(g, Op::Elementwise(ElementwiseOp::Add), &[v[0], values])
        },
    );
    Row { dims: Class::blocks, ..row }
        // A weight is a product of a scale and a few bits, rounded to the type, and so is the sum: two roundings, the
        // first of which a fused kernel leaves out.
        .bound(Bound::Steps(2.0))
        .word("")
        .lacks("formats are compared bit by bit with ggml's in crates/quant")
}

/// Values rounded to blocks, and what those mean.
fn quantize(format: Format) -> Row {
    // Where a quotient is next to a half, a kernel may take the other level: one of so many on the longer side of zero,
    // or a gap of 24 of 127. (`device/rounding.rs` compares level by level, and asks whether the quotient is.)
    let levels: f64 = match format {
        Format::Q8_0 | Format::Q8_1 => 127.0,
        Format::Q4_0 => 8.0,
        Format::Q5_0 => 16.0,
        Format::Q4_1 => 15.0 / 2.0,
        Format::Q5_1 => 31.0 / 2.0,
        _ => 127.0 / 24.0,
    };
    let row = Row::new(
        "Contractions",
        &format!("quantize {}", format.spec().name),
        |d, dtype| vec![Operand::new(d, dtype)],
        move |g, v| {
            let blocks = add(g, Op::Quantize(format), v)?;
            add(g, Op::Dequantize(DType::F32), &[blocks])
        },
    );
    Row { dims: Class::blocks, ..row }
        .bound(Bound::Steps(1.0 / f64::from(f32::EPSILON) / levels))
        .lacks("formats are compared byte by byte with ggml's in crates/quant")
}

fn attention(causal: bool) -> Row {
    // 1/2 is exact in every type.
    let scale = 0.5;
    Row::new(
        "Contractions",
        if causal { "attention causal" } else { "attention" },
        |d, dtype| vec![Operand::new(d, dtype), Operand::new(d, dtype), Operand::new(d, dtype)],
        move |g, v| add(g, Op::Attention(Attention::new(scale).causal(causal)), v),
    )
    // Scores up to 67 * 16 / 2 are exact in f32; an exponential errs by 3 + 2|x| steps where it matters (below
    // -30 nothing is left), so the weights by 2 * 63 steps, and their sums of at most 9 terms by 5 more.
    .bound(Bound::Steps(135.0))
    .candle(Bound::Steps(135.0), move |t| {
        let wide =
            |x: &T| x.to_dtype(if x.dtype() == candle::DType::F64 { x.dtype() } else { candle::DType::F32 });
        let (q, k, v) = (wide(&t[0])?.contiguous()?, wide(&t[1])?.contiguous()?, wide(&t[2])?.contiguous()?);
        let mut scores = (q.matmul(&k.t()?.contiguous()?)? * scale)?;
        if causal {
            let n = q.dim(1)?;
            let hide: Vec<f32> =
                (0..n * n).map(|i| if i % n > i / n { f32::NEG_INFINITY } else { 0.0 }).collect();
            let hide = T::from_vec(hide, (n, n), q.device())?.to_dtype(q.dtype())?;
            scores = scores.broadcast_add(&hide)?;
        }
        let e = scores.broadcast_sub(&scores.max_keepdim(2)?)?.exp()?;
        let weights = e.broadcast_div(&e.sum_keepdim(2)?)?;
        weights.matmul(&v)?.to_dtype(t[0].dtype())
    })
}

/// Kernels of 3 (or less, where the padded axis is shorter), two output channels.
fn kernel(d: &[usize], dtype: DType, transposed: bool) -> Operand {
    let mut k = d.to_vec();
    k.iter_mut().skip(2).for_each(|n| *n = 3);
    if let [first, second, ..] = k.as_mut_slice() {
        if transposed {
            (*first, *second) = (*second, 2);
        } else {
            *first = 2;
        }
    }
    Operand::new(&k, dtype).shared()
}

fn convolutions() -> Vec<Row> {
    let conv = |name: &str,
                transposed: bool,
                dims: fn(Class) -> Vec<usize>,
                ours: fn(&[Tensor]) -> tallow::Result<Tensor>,
                theirs: fn(&[T]) -> candle::Result<T>| {
        let row = Row::new(
            "Convolutions, pools, resizing",
            name,
            move |d, dtype| vec![Operand::new(d, dtype), kernel(d, dtype, transposed)],
            tensors(ours),
        );
        Row { dims, ..row }.candle(PRODUCTS, theirs)
    };
    vec![
        conv(
            "conv1d",
            false,
            Class::dims,
            |t| t[0].conv1d(&t[1], 1, 1, 1, 1),
            |t| t[0].contiguous()?.conv1d(&t[1].contiguous()?, 1, 1, 1, 1),
        ),
        conv(
            "conv1d stride 2, dilation 2",
            false,
            Class::dims,
            |t| t[0].conv1d(&t[1], 2, 2, 2, 1),
            |t| t[0].contiguous()?.conv1d(&t[1].contiguous()?, 2, 2, 2, 1),
        ),
        conv(
            "conv2d",
            false,
            Class::images,
            |t| t[0].conv2d(&t[1], 1, 1, 1, 1),
            |t| t[0].contiguous()?.conv2d(&t[1].contiguous()?, 1, 1, 1, 1),
        ),
        conv(
            "conv2d stride 2, padding 2",
            false,
            Class::images,
            |t| t[0].conv2d(&t[1], 2, 2, 1, 1),
            |t| t[0].contiguous()?.conv2d(&t[1].contiguous()?, 2, 2, 1, 1),
        ),
        conv(
            "conv_transpose1d",
            true,
            Class::dims,
            |t| t[0].conv_transpose1d(&t[1], 1, 0, 2, 1, 1),
            |t| t[0].contiguous()?.conv_transpose1d(&t[1].contiguous()?, 1, 0, 2, 1, 1),
        ),
        conv(
            "conv_transpose2d",
            true,
            Class::images,
            |t| t[0].conv_transpose2d(&t[1], 1, 1, 2, 1),
            |t| t[0].contiguous()?.conv_transpose2d(&t[1].contiguous()?, 1, 1, 2, 1),
        ),
    ]
    .into_iter()
    .chain([conv3d()])
    .collect()
}

fn conv3d() -> Row {
    Row::new(
        "Convolutions, pools, resizing",
        "conv3d",
        |d, dtype| {
            // Images as slices of a body: one channel.
            let mut body = d.to_vec();
            let mut k = d.to_vec();
            if d.len() == 4 {
                body.insert(1, 1);
                k = vec![2, 1, 1, 3, 3];
            }
            vec![Operand::new(&body, dtype), Operand::new(&k, dtype).shared()]
        },
        tensors(|t| t[0].conv3d(&t[1], 1, 1, 1, 1)),
    )
    .images()
    .lacks("no convolution along three axes in Candle; naive loops in tests/windows.rs")
}
