//! A selective state space model, as in Mamba.

use tallow::DType;

use super::super::builder::{Builder, Var};
use super::super::{Call, Conv, Unary};

/// Extents: batch, steps, channels, states of each channel.
#[derive(Clone, Copy)]
struct Extents {
    batch: usize,
    steps: usize,
    channels: usize,
    states: usize,
}

/// A block: projection, causal convolution, scan with gates that depend on the input, gate, projection.
pub fn ssm(b: &mut Builder) -> Vec<Var> {
    let dtype = b.dtype;
    let unrolled = b.draw.coin();
    let steps = if unrolled { b.draw.extent(&[8, 16, 32], 4) } else { b.draw.extent(&[64, 128, 256], 8) };
    let width = b.draw.extent(&[256, 512, 768], 16);
    let batch = b.draw.extent(&[1, 2, 4], 2);
    let states = b.draw.extent(&[8, 16], 2);
    let e = Extents { batch, steps, channels: width * 2, states };
    let x = b.input("x", &[batch, steps, width]);
    let normal = b.norm(x, width, true);
    let both = b.project(normal, width, 2 * e.channels);
    let [u, z] = [0, e.channels].map(|start| b.slice(both, 2, start, e.channels));
    let u = causal_conv(b, u, e.channels);
    let [input, output] = [(); 2].map(|()| {
        let projected = b.project(u, e.channels, e.states);
        b.cast(projected, dtype, DType::F32)
    });
    // Softplus, far below 1: the state then lasts for many steps.
    let raw = b.project(u, e.channels, e.channels);
    let raw = b.cast(raw, dtype, DType::F32);
    let raw = b.affine(raw, 0.5, -4.0);
    let raw = b.unary(Unary::Exp, raw);
    let raw = b.affine(raw, 1.0, 1.0);
    let delta = b.unary(Unary::Log, raw);
    let wide = b.cast(u, dtype, DType::F32);
    let y = scan(b, e, unrolled, [delta, wide, input, output]);
    let y = b.cast(y, DType::F32, dtype);
    let gate = b.unary(Unary::Silu, z);
    let y = b.mul(y, gate);
    let y = b.project(y, e.channels, width);
    vec![b.add(x, y)]
}

/// A depthwise convolution over the last four steps, and SiLU: `[batch, steps, channels]` to the same.
fn causal_conv(b: &mut Builder, x: Var, channels: usize) -> Var {
    let x = b.permute(x, &[0, 2, 1]);
    let x = b.call(Call::Pad { axis: 2, before: 3, after: 0 }, &[x]);
    let kernel = b.weight("kernel", &[channels, 1, 4], 0.5);
    let bias = b.weight("bias", &[channels], 0.1);
    let conv = Conv { stride: 1, padding: 0, groups: channels, dilation: 1 };
    let y = b.call(Call::Conv1d(conv), &[x, kernel, bias]);
    let y = b.permute(y, &[0, 2, 1]);
    b.unary(Unary::Silu, y)
}

/// `h = exp(delta A) h + delta u B`, `y = h C`, all f32: step by step, or by running sums of logarithms.
fn scan(b: &mut Builder, e: Extents, unrolled: bool, [delta, u, input, output]: [Var; 4]) -> Var {
    let Extents { batch, steps, channels, states } = e;
    let dtype = std::mem::replace(&mut b.dtype, DType::F32);
    let a = b.weight("a", &[channels, states], 0.5);
    b.dtype = dtype;
    let a = b.unary(Unary::Exp, a);
    let a = b.unary(Unary::Neg, a);
    let product = b.mul(delta, u);
    let [delta, product] = [delta, product].map(|x| b.reshape(x, &[batch, steps, channels, 1]));
    let [input, output] = [input, output].map(|x| b.reshape(x, &[batch, steps, 1, states]));
    let log_decay = b.mul(delta, a);
    let added = b.mul(product, input);
    if !unrolled {
        let sums = b.call(Call::Cumsum { axis: 1 }, &[log_decay]);
        let inverse = b.unary(Unary::Neg, sums);
        let inverse = b.unary(Unary::Exp, inverse);
        let scaled = b.mul(inverse, added);
        let scaled = b.call(Call::Cumsum { axis: 1 }, &[scaled]);
        let decay = b.unary(Unary::Exp, sums);
        let h = b.mul(decay, scaled);
        let weighted = b.mul(h, output);
        return b.sum(weighted, &[3]);
    }
    let decay = b.unary(Unary::Exp, log_decay);
    let mut h = b.slice(added, 1, 0, 1);
    let mut results = vec![];
    for step in 0..steps {
        if step > 0 {
            let [decay, new] = [decay, added].map(|x| b.slice(x, 1, step, 1));
            let last = b.mul(decay, h);
            h = b.add(last, new);
        }
        let read = b.slice(output, 1, step, 1);
        let weighted = b.mul(h, read);
        results.push(b.sum(weighted, &[3]));
    }
    b.concat(&results, 1)
}
