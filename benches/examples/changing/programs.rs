//! The programs: what a step computes of its operands, and the sizes that it comes with.

use tallow::nn::ops::softmax;
use tallow::{DType, Device, Result, Tensor};

/// A program whose steps come with other extents.
pub struct Program {
    pub name: &'static str,
    /// What a step computes.
    pub text: &'static str,
    /// Sizes before those that are measured: a plan of symbols is compiled for them.
    pub first: &'static [&'static [usize]],
    /// Sizes that are measured.
    pub sizes: &'static [&'static [usize]],
    /// What all steps share, where widths are divided by a number.
    pub weights: fn(&Device, usize) -> Result<Vec<Tensor>>,
    /// The operands of a step of a size.
    pub operands: fn(&Device, usize, &[usize]) -> Result<Vec<Tensor>>,
    /// A step: of the weights and the operands.
    pub step: fn(&[Tensor], &[Tensor]) -> Result<Tensor>,
}

/// All of them.
pub const PROGRAMS: &[Program] = &[
    Program {
        name: "growing_cache",
        text: "attention of one query over a cache and one more position, 32 heads of 128, f16",
        first: &[&[30], &[31], &[700], &[1500]],
        sizes: &[&[20], &[100], &[500], &[1000], &[2000]],
        weights: |_, _| Ok(vec![]),
        operands: |device, scale, size| {
            let (heads, width) = (32 / scale.min(32), 128);
            let of = |len| random(device, &[heads, len, width], DType::F16);
            Ok(vec![of(size[0])?, of(size[0])?, of(1)?, of(1)?, of(1)?])
        },
        step: |_, operands| {
            let [keys, values, k, v, q] = operands else { return wrong() };
            let (keys, values) = (Tensor::cat(&[keys, k], 1)?, Tensor::cat(&[values, v], 1)?);
            let scores = (q.matmul(&keys.t()?)? * 0.088)?;
            softmax(&scores, 2)?.matmul(&values)
        },
    },
    Program {
        name: "batches",
        text: "softmax(gelu(x @ [1024, 4096] + b) @ [4096, 1024]), f16, x of so many rows",
        first: &[&[10], &[11], &[60]],
        sizes: &[&[2], &[3], &[5], &[8], &[16], &[17], &[33], &[64], &[128], &[256]],
        weights: |device, scale| {
            let (narrow, wide) = (1024 / scale, 4096 / scale);
            Ok(vec![
                random(device, &[narrow, wide], DType::F16)?,
                random(device, &[wide], DType::F16)?,
                random(device, &[wide, narrow], DType::F16)?,
            ])
        },
        operands: |device, scale, size| Ok(vec![random(device, &[size[0], 1024 / scale], DType::F16)?]),
        step: |weights, operands| {
            let ([up, bias, down], [x]) = (weights, operands) else { return wrong() };
            let y = x.matmul(up)?.broadcast_add(bias)?.gelu()?;
            softmax(&(y.matmul(down)? * 0.01)?, 1)
        },
    },
    Program {
        name: "padded_texts",
        text: "attention with a mask over padded texts, [batch, length, 512], f32",
        first: &[&[3, 40], &[5, 70], &[4, 100]],
        sizes: &[&[4, 70], &[3, 120], &[2, 250], &[7, 50], &[6, 33]],
        weights: |device, scale| Ok(vec![random(device, &[512 / scale, 1536 / scale], DType::F32)?]),
        operands: |device, scale, size| {
            let positions = Tensor::arange(0u32, size[1] as u32, device)?;
            Ok(vec![random(device, &[size[0], size[1], 512 / scale], DType::F32)?, positions])
        },
        step: |weights, operands| {
            let ([qkv], [x, rows]) = (weights, operands) else { return wrong() };
            let (batch, len, width) = x.dims3()?;
            let qkv = x.reshape((batch * len, width))?.matmul(qkv)?.reshape((batch, len, 3 * width))?;
            let part = |i: usize| qkv.narrow(2, i * width, width);
            let seen = rows.reshape((1, len))?.broadcast_le(&rows.reshape((len, 1))?)?;
            let (shown, hidden) = (0f32, -1e9f32);
            let of = |value: f32| Tensor::full(value, (len, len), x.device());
            let mask = seen.where_cond(&of(shown)?, &of(hidden)?)?;
            let scores = (part(0)?.matmul(&part(1)?.transpose(1, 2)?)? * 0.01)?.broadcast_add(&mask)?;
            softmax(&scores, 2)?.matmul(&part(2)?)
        },
    },
    Program {
        name: "images",
        text: "relu(conv 3 x 3 of 64 to 64 channels), f32, images of so many rows and columns",
        first: &[&[40, 50], &[60, 90], &[100, 80]],
        sizes: &[&[64, 64], &[128, 96], &[97, 127], &[160, 192], &[72, 72]],
        weights: |device, scale| Ok(vec![random(device, &[64 / scale, 64 / scale, 3, 3], DType::F32)?]),
        operands: |device, scale, size| {
            Ok(vec![random(device, &[1, 64 / scale, size[0], size[1]], DType::F32)?])
        },
        step: |weights, operands| {
            let ([kernel], [x]) = (weights, operands) else { return wrong() };
            x.conv2d(kernel, 1, 1, 1, 1)?.relu()
        },
    },
    Program {
        name: "beam",
        text: "scores of texts: rows of a table [4096, 1024] by index, summed, @ [1024, 4096], f32",
        first: &[&[8], &[9], &[100]],
        sizes: &[&[10], &[64], &[200]],
        weights: |device, scale| Ok(vec![random(device, &[4096 / scale, 1024 / scale], DType::F32)?]),
        operands: |device, scale, size| {
            let ids = random(device, &[4, size[0]], DType::F32)?.abs()?;
            Ok(vec![(ids * (4095 / scale) as f64)?.to_dtype(DType::U32)?])
        },
        step: |weights, operands| {
            let ([table], [texts]) = (weights, operands) else { return wrong() };
            let (count, len) = texts.dims2()?;
            let x = table.index_select(&texts.flatten_all()?, 0)?.reshape((count, len, table.dim(1)?))?;
            x.sum(1)?.matmul(&table.t()?)
        },
    },
    Program {
        name: "rows",
        text: "layer norm of rows of 1000 and a residual, f32, so many rows",
        first: &[&[500], &[700], &[3000]],
        sizes: &[&[17], &[300], &[1000], &[4000]],
        weights: |_, _| Ok(vec![]),
        operands: |device, scale, size| {
            let of = || random(device, &[size[0], 1000 / scale], DType::F32);
            Ok(vec![of()?, of()?])
        },
        step: |_, operands| {
            let [x, y] = operands else { return wrong() };
            let sum = (x + y)?;
            let centered = sum.broadcast_sub(&sum.mean_keepdim(1)?)?;
            let variance = centered.sqr()?.mean_keepdim(1)?;
            centered.broadcast_div(&(variance + 1e-5)?.sqrt()?)? + x
        },
    },
    Program {
        name: "row_lengths",
        text: "softmax of 512 rows of so many elements, f32",
        first: &[&[500], &[700], &[3000]],
        sizes: &[&[17], &[300], &[1000], &[4000]],
        weights: |_, _| Ok(vec![]),
        operands: |device, scale, size| Ok(vec![random(device, &[512 / scale, size[0]], DType::F32)?]),
        step: |_, operands| softmax(&(&operands[0] * 2.0)?, 1),
    },
    Program {
        name: "nested",
        text: "exp(a @ b): [outer, 512] @ [512, inner], f32",
        first: &[&[40, 50], &[60, 90], &[100, 80]],
        sizes: &[&[7, 64], &[64, 7], &[100, 200], &[250, 250]],
        weights: |_, _| Ok(vec![]),
        operands: |device, scale, size| {
            let width = 512 / scale;
            let (a, b) = (&[size[0], width], &[width, size[1]]);
            Ok(vec![random(device, a, DType::F32)?, random(device, b, DType::F32)?])
        },
        step: |_, operands| {
            let [a, b] = operands else { return wrong() };
            (a.matmul(b)? * 0.01)?.exp()
        },
    },
];

fn wrong() -> Result<Tensor> {
    Err(tallow::Error::InvalidArgument { op: "changing", why: "a step without its operands".into() })
}

/// Uniform from -1 to 1.
pub fn random(device: &Device, shape: &[usize], dtype: DType) -> Result<Tensor> {
    let tensor = Tensor::rand(-1f32, 1f32, shape, device)?.to_dtype(dtype)?;
    tallow::eval(&[&tensor])?;
    Ok(tensor)
}
