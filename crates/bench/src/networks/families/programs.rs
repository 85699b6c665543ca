//! Fixed programs, each of which was once far from the limit of a GPU, or from PyTorch.

use tallow::DType;

use super::super::builder::{Builder, Var};
use super::super::{Call, Conv, Unary};

/// A product of f16 matrices `[rows, k]` and `[k, columns]`, both stored as they are.
fn product(
    b: &mut Builder,
    [rows, k, columns]: [usize; 3],
    prologue: fn(&mut Builder, Var, usize) -> Var,
) -> Var {
    b.dtype = DType::F16;
    let x = b.input("x", &[rows, k]);
    let x = prologue(b, x, k);
    let weight = b.weight("weight", &[k, columns], (k as f64).powf(-0.5));
    b.matmul(x, weight)
}

/// The operand as it is.
fn plain(_: &mut Builder, x: Var, _: usize) -> Var {
    x
}

/// The operand and a row that is added to all of its rows.
fn add_row(b: &mut Builder, x: Var, k: usize) -> Var {
    let row = b.input("z", &[k]);
    b.add(x, row)
}

/// Two large square matrices.
pub fn matmul(b: &mut Builder) -> Vec<Var> {
    let n = b.either(4096, 64);
    vec![product(b, [n, n, n], plain)]
}

/// The same, with a sum as the left operand.
pub fn matmul_of_sum(b: &mut Builder) -> Vec<Var> {
    let n = b.either(4096, 64);
    vec![product(b, [n, n, n], add_row)]
}

/// The same for 512 rows.
pub fn rows_512_of_sum(b: &mut Builder) -> Vec<Var> {
    let (rows, n) = b.either((512, 4096), (24, 64));
    vec![product(b, [rows, n, n], add_row)]
}

/// 16 rows.
pub fn rows_16(b: &mut Builder) -> Vec<Var> {
    let n = b.either(4096, 64);
    vec![product(b, [16, n, n], plain)]
}

/// 64 rows.
pub fn rows_64(b: &mut Builder) -> Vec<Var> {
    let n = b.either(4096, 64);
    vec![product(b, [64, n, n], plain)]
}

/// One row, and a weight stored as `[k, n]`.
pub fn vector(b: &mut Builder) -> Vec<Var> {
    let (k, n) = b.either((14_336, 4096), (224, 64));
    vec![product(b, [1, k, n], plain)]
}

/// Four rows, and a weight stored as `[k, n]`.
pub fn rows_4(b: &mut Builder) -> Vec<Var> {
    let (k, n) = b.either((4096, 14_336), (64, 224));
    vec![product(b, [4, k, n], plain)]
}

/// One row, and a weight stored as `[n, k]`.
pub fn vector_transposed(b: &mut Builder) -> Vec<Var> {
    transposed(b, DType::F16, 1, b.either([14_336, 4096], [224, 64]))
}

/// Four rows, and a weight stored as `[n, k]`.
pub fn rows_4_transposed(b: &mut Builder) -> Vec<Var> {
    transposed(b, DType::F16, 4, b.either([4096, 14_336], [64, 224]))
}

/// One row in f32, and a weight stored as `[n, k]`.
pub fn vector_f32_transposed(b: &mut Builder) -> Vec<Var> {
    transposed(b, DType::F32, 1, b.either([4096, 14_336], [64, 224]))
}

fn transposed(b: &mut Builder, dtype: DType, rows: usize, [k, n]: [usize; 2]) -> Vec<Var> {
    b.dtype = dtype;
    let x = b.input("x", &[rows, k]);
    vec![b.project(x, k, n)]
}

/// One row in f32, and a weight stored as `[k, n]`.
pub fn vector_f32(b: &mut Builder) -> Vec<Var> {
    b.dtype = DType::F32;
    let (k, n) = b.either((4096, 14_336), (64, 224));
    let x = b.input("x", &[1, k]);
    let weight = b.weight("weight", &[k, n], (k as f64).powf(-0.5));
    vec![b.matmul(x, weight)]
}

/// A matrix and one column.
pub fn column(b: &mut Builder) -> Vec<Var> {
    b.dtype = DType::F32;
    let n = b.either(4096, 64);
    let x = b.input("x", &[n, n]);
    let column = b.input("column", &[n, 1]);
    vec![b.matmul(x, column)]
}

/// The feed-forward block of one row, with weights stored as `[k, n]`.
pub fn feed_forward(b: &mut Builder) -> Vec<Var> {
    b.dtype = DType::F16;
    let (width, hidden) = b.either((4096, 14_336), (64, 224));
    let x = b.input("x", &[1, width]);
    let normal = b.norm(x, width, true);
    let [gate, up] = [(); 2].map(|()| {
        let weight = b.weight("weight", &[width, hidden], (width as f64).powf(-0.5));
        b.matmul(normal, weight)
    });
    let gate = b.unary(Unary::Silu, gate);
    let product = b.mul(gate, up);
    let down = b.weight("down", &[hidden, width], (hidden as f64).powf(-0.5));
    vec![b.matmul(product, down)]
}

/// A step of k-means: distances to all centers, the nearest one, the sum of each cluster.
pub fn kmeans(b: &mut Builder) -> Vec<Var> {
    b.dtype = DType::F32;
    let (points, width, clusters) = b.either((262_144, 64, 256), (200, 8, 4));
    let x = b.input("points", &[points, width]);
    let centers = b.input("centers", &[clusters, width]);
    let ones = b.input("ones", &[points]);
    let squares = b.unary(Unary::Square, centers);
    let lengths = b.sum(squares, &[1]);
    let products = b.matmul_t(x, centers);
    let products = b.affine(products, -2.0, 0.0);
    let distances = b.add(products, lengths);
    let nearest = b.call(Call::Argmin { axis: 1 }, &[distances]);
    let zeros = b.call(Call::FullLike { value: 0.0 }, &[centers]);
    let sums = b.call(Call::IndexAdd { axis: 0 }, &[zeros, nearest, x]);
    let zeros = b.call(Call::FullLike { value: 0.0 }, &[lengths]);
    let counts = b.call(Call::IndexAdd { axis: 0 }, &[zeros, nearest, ones]);
    vec![sums, counts]
}

/// A layer of an encoder: 8 sequences of 512, width 1024, 16 heads.
pub fn encoder(b: &mut Builder) -> Vec<Var> {
    b.dtype = DType::F16;
    let (batch, seq, heads, dim) = b.either((8, 512, 16, 64), (2, 16, 2, 16));
    let width = heads * dim;
    let x = b.input("x", &[batch, seq, width]);
    let normal = b.norm(x, width, false);
    let [q, k, v] = [(); 3].map(|()| {
        let projected = b.linear(normal, width, width);
        let split = b.reshape(projected, &[batch, seq, heads, dim]);
        b.permute(split, &[0, 2, 1, 3])
    });
    let y = b.call(Call::Attention { causal: false }, &[q, k, v]);
    let y = b.permute(y, &[0, 2, 1, 3]);
    let y = b.reshape(y, &[batch, seq, width]);
    let y = b.linear(y, width, width);
    let x = b.add(x, y);
    let normal = b.norm(x, width, false);
    let y = b.linear(normal, width, width * 4);
    let y = b.unary(Unary::Gelu, y);
    let y = b.linear(y, width * 4, width);
    vec![b.add(x, y)]
}

/// A residual block of a diffusion model: 4 images of 320 x 64 x 64.
pub fn diffusion(b: &mut Builder) -> Vec<Var> {
    b.dtype = DType::F16;
    let (batch, channels, side, groups) = b.either((4, 320, 64, 32), (2, 16, 6, 4));
    let x = b.input("x", &[batch, channels, side, side]);
    let mut y = x;
    for _ in 0..2 {
        let [weight, bias] =
            [("norm", 1.0), ("bias", 0.1)].map(|(name, size)| b.weight(name, &[channels], size));
        y = b.call(Call::GroupNorm { groups, epsilon: 1e-5 }, &[y, weight, bias]);
        y = b.unary(Unary::Silu, y);
        y = b.conv2d(y, [channels, channels, 3], 1, 1);
    }
    vec![b.add(x, y)]
}

/// The cross-entropy of 4096 x 4096 similarities with the diagonal.
pub fn cross_entropy(b: &mut Builder) -> Vec<Var> {
    b.dtype = DType::F32;
    let (rows, width) = b.either((4096, 256), (48, 16));
    let [image, text] = ["image", "text"].map(|name| b.input(name, &[rows, width]));
    let labels = b.integers("labels", &[rows, 1], rows);
    let scores = b.matmul_t(image, text);
    let logs = b.call(Call::LogSoftmax { axis: 1 }, &[scores]);
    let of_labels = b.call(Call::Gather { axis: 1 }, &[logs, labels]);
    let mean = b.mean(of_labels, &[0, 1]);
    vec![b.unary(Unary::Neg, mean)]
}

/// A gated causal convolution and a norm over channels, in f32.
pub fn gated_conv(b: &mut Builder) -> Vec<Var> {
    b.dtype = DType::F32;
    let (batch, channels, length) = b.either((8, 256, 4096), (2, 8, 40));
    let size = 3;
    let x = b.input("x", &[batch, channels, length]);
    let padded = b.call(Call::Pad { axis: 2, before: size - 1, after: 0 }, &[x]);
    let fan_in = (channels * size) as f64;
    let kernel = b.weight("kernel", &[channels * 2, channels, size], fan_in.powf(-0.5));
    let bias = b.weight("bias", &[channels * 2], 0.1);
    let conv = Conv { stride: 1, padding: 0, groups: 1, dilation: 1 };
    let both = b.call(Call::Conv1d(conv), &[padded, kernel, bias]);
    let [value, gate] = [(0, Unary::Tanh), (channels, Unary::Sigmoid)].map(|(start, function)| {
        let half = b.slice(both, 1, start, channels);
        b.unary(function, half)
    });
    let gated = b.mul(value, gate);
    let y = b.add(x, gated);
    let y = b.permute(y, &[0, 2, 1]);
    let y = b.norm(y, channels, false);
    vec![b.permute(y, &[0, 2, 1])]
}

/// The eight largest elements of each of 64 long rows.
pub fn top_8(b: &mut Builder) -> Vec<Var> {
    b.dtype = DType::F32;
    let (rows, length) = b.either((64, 400_000), (3, 500));
    let x = b.input("x", &[rows, length]);
    vec![b.call(Call::Topk { k: 8 }, &[x])]
}
