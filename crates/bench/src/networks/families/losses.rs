//! Losses, and a gradient by hand.

use tallow::DType;

use super::super::builder::{Builder, Var};
use super::super::{Call, Unary};

/// Rows divided by their length.
fn unit_rows(b: &mut Builder, x: Var) -> Var {
    let squares = b.unary(Unary::Square, x);
    let sums = b.sum_keepdim(squares, &[1]);
    let sums = b.affine(sums, 1.0, 1e-6);
    let lengths = b.unary(Unary::Sqrt, sums);
    b.div(x, lengths)
}

/// A contrastive loss: similarities of all pairs, and the cross-entropy of rows and columns.
pub fn contrastive(b: &mut Builder) -> Vec<Var> {
    let dtype = b.dtype;
    let rows = b.draw.extent(&[256, 512, 1024, 2048, 4096], 32);
    let width = b.draw.extent(&[128, 256, 512, 768], 16);
    let [image, text] = ["image", "text"].map(|name| {
        let x = b.input(name, &[rows, width]);
        unit_rows(b, x)
    });
    let labels = b.integers("labels", &[rows, 1], rows);
    let scores = b.matmul_t(image, text);
    let scores = b.cast(scores, dtype, DType::F32);
    let scores = b.affine(scores, 14.0, 0.0);
    let columns = b.permute(scores, &[1, 0]);
    let losses = [scores, columns].map(|scores| {
        let logs = b.call(Call::LogSoftmax { axis: 1 }, &[scores]);
        let of_labels = b.call(Call::Gather { axis: 1 }, &[logs, labels]);
        let mean = b.mean(of_labels, &[0, 1]);
        b.unary(Unary::Neg, mean)
    });
    let sum = b.add(losses[0], losses[1]);
    vec![b.affine(sum, 0.5, 0.0)]
}

/// The cross-entropy of a classifier with label smoothing, whose logits may be computed here.
pub fn cross_entropy(b: &mut Builder) -> Vec<Var> {
    let dtype = b.dtype;
    let rows = b.draw.extent(&[512, 1024, 2048, 4096], 64);
    let classes = b.draw.extent(&[1000, 8192, 32_000], 64);
    let smoothing = 0.1;
    let logits = if b.draw.coin() {
        let width = b.draw.extent(&[256, 512], 16);
        let x = b.input("x", &[rows, width]);
        b.project(x, width, classes)
    } else {
        b.input("logits", &[rows, classes])
    };
    let labels = b.integers("labels", &[rows, 1], classes);
    let logits = b.cast(logits, dtype, DType::F32);
    let logs = b.call(Call::LogSoftmax { axis: 1 }, &[logits]);
    let of_labels = b.call(Call::Gather { axis: 1 }, &[logs, labels]);
    let of_labels = b.reshape(of_labels, &[rows]);
    let of_all = b.mean(logs, &[1]);
    let of_labels = b.affine(of_labels, smoothing - 1.0, 0.0);
    let of_all = b.affine(of_all, -smoothing, 0.0);
    let losses = b.add(of_labels, of_all);
    vec![b.mean(losses, &[0]), losses]
}

/// A step of softmax regression: loss, gradients, new weights.
pub fn softmax_regression(b: &mut Builder) -> Vec<Var> {
    b.dtype = DType::F32;
    let rows = b.draw.extent(&[1024, 4096, 16_384], 128);
    let width = b.draw.extent(&[128, 784, 1024], 16);
    let classes = b.draw.extent(&[10, 100, 256], 4);
    let rate = 0.1;
    let x = b.input("x", &[rows, width]);
    let targets = b.input("targets", &[rows, classes]);
    let targets = b.call(Call::Softmax { axis: 1 }, &[targets]);
    let weight = b.weight("weight", &[width, classes], (width as f64).powf(-0.5));
    let bias = b.weight("bias", &[classes], 0.1);
    let product = b.matmul(x, weight);
    let logits = b.add(product, bias);
    let logs = b.call(Call::LogSoftmax { axis: 1 }, &[logits]);
    let weighted = b.mul(logs, targets);
    let sums = b.sum(weighted, &[1]);
    let mean = b.mean(sums, &[0]);
    let loss = b.unary(Unary::Neg, mean);
    let shares = b.unary(Unary::Exp, logs);
    let difference = b.sub(shares, targets);
    let difference = b.affine(difference, rate / rows as f64, 0.0);
    let step = b.call(Call::Matmul { transpose_a: true, transpose_b: false }, &[x, difference]);
    let bias_step = b.sum(difference, &[0]);
    vec![loss, b.sub(weight, step), b.sub(bias, bias_step)]
}
