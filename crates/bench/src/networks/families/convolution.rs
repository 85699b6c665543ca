//! Blocks of convolutional networks.

use super::super::builder::{Builder, Var};
use super::super::{Call, Conv, Reduction, Unary};

/// A convolution and a batch norm: folded into its weights, or as factor and summand of each channel.
fn conv_norm(b: &mut Builder, x: Var, shape: [usize; 3], stride: usize, folded: bool) -> Var {
    if folded {
        return b.conv2d(x, shape, stride, 1);
    }
    let [inner, outer, size] = shape;
    let fan_in = inner * size * size;
    let kernel = b.weight("kernel", &[outer, inner, size, size], (fan_in as f64).powf(-0.5));
    let conv = Conv { stride, padding: size / 2, groups: 1, dilation: 1 };
    let y = b.call(Call::Conv2d(conv), &[x, kernel]);
    let [scale, shift] =
        [("scale", 1.0), ("shift", 0.1)].map(|(name, size)| b.weight(name, &[1, outer, 1, 1], size));
    let y = b.mul(y, scale);
    b.add(y, shift)
}

/// A residual block: basic or bottleneck, of stride 1 or 2.
pub fn resnet(b: &mut Builder) -> Vec<Var> {
    let (channels, side) = b.draw.pick(&[(64, 56), (64, 112), (128, 28), (128, 56), (256, 14), (256, 28)]);
    let (channels, side) = b.either((channels, side), (channels / 16, 6));
    let batch = b.batch(&[1, 8, 16, 32]);
    let [bottleneck, folded] = [(); 2].map(|()| b.draw.coin());
    let stride = b.draw.pick(&[1, 1, 2]);
    let outer = if bottleneck { channels * 4 } else { channels };
    let inner = if stride == 2 { outer / 2 } else { outer };
    let x = b.input("x", &[batch, inner, side, side]);
    let y = if bottleneck {
        let y = conv_norm(b, x, [inner, channels, 1], 1, folded);
        let y = b.unary(Unary::Relu, y);
        let y = conv_norm(b, y, [channels, channels, 3], stride, folded);
        let y = b.unary(Unary::Relu, y);
        conv_norm(b, y, [channels, outer, 1], 1, folded)
    } else {
        let y = conv_norm(b, x, [inner, channels, 3], stride, folded);
        let y = b.unary(Unary::Relu, y);
        conv_norm(b, y, [channels, channels, 3], 1, folded)
    };
    let skip = if stride == 2 { conv_norm(b, x, [inner, outer, 1], 2, folded) } else { x };
    let sum = b.add(y, skip);
    vec![b.unary(Unary::Relu, sum)]
}

/// An inverted residual block: expansion, depthwise convolution, optional squeeze and excitation, projection.
pub fn mobilenet(b: &mut Builder) -> Vec<Var> {
    let (channels, side) = b.draw.pick(&[(16, 112), (24, 56), (40, 28), (80, 14), (112, 14), (192, 7)]);
    let (channels, side) = b.either((channels, side), (channels / 8, 6));
    let batch = b.batch(&[1, 8, 16, 32, 64]);
    let squeezed = b.draw.coin();
    let (size, stride) = (b.draw.pick(&[3, 5]), b.draw.pick(&[1, 1, 2]));
    let function = b.draw.pick(&[Unary::Relu, Unary::Silu]);
    let hidden = channels * 6;
    let x = b.input("x", &[batch, channels, side, side]);
    let y = b.conv2d(x, [channels, hidden, 1], 1, 1);
    let y = b.unary(function, y);
    let y = b.conv2d(y, [hidden, hidden, size], stride, hidden);
    let mut y = b.unary(function, y);
    if squeezed {
        let pooled = b.call(Call::Reduce { kind: Reduction::Mean, axes: vec![2, 3], keepdim: true }, &[y]);
        let squeezed = b.conv2d(pooled, [hidden, hidden / 4, 1], 1, 1);
        let squeezed = b.unary(function, squeezed);
        let gate = b.conv2d(squeezed, [hidden / 4, hidden, 1], 1, 1);
        let gate = b.unary(Unary::Sigmoid, gate);
        y = b.mul(y, gate);
    }
    let y = b.conv2d(y, [hidden, channels, 1], 1, 1);
    vec![if stride == 1 { b.add(x, y) } else { y }]
}

/// A ConvNeXt block: a large depthwise kernel, then layers over channels in the last axis.
pub fn convnext(b: &mut Builder) -> Vec<Var> {
    let (channels, side) = b.draw.pick(&[(96, 56), (128, 56), (192, 28), (384, 14), (768, 7)]);
    let (channels, side) = b.either((channels, side), (channels / 16, 7));
    let batch = b.batch(&[1, 8, 16, 32]);
    let x = b.input("x", &[batch, channels, side, side]);
    let y = b.conv2d(x, [channels, channels, 7], 1, channels);
    let y = b.permute(y, &[0, 2, 3, 1]);
    let y = b.norm(y, channels, false);
    let y = b.linear(y, channels, channels * 4);
    let y = b.unary(Unary::GeluErf, y);
    let y = b.linear(y, channels * 4, channels);
    let gamma = b.weight("gamma", &[channels], 0.5);
    let y = b.mul(y, gamma);
    let y = b.permute(y, &[0, 3, 1, 2]);
    vec![b.add(x, y)]
}

/// Group norm, SiLU and a convolution.
fn norm_conv(b: &mut Builder, x: Var, inner: usize, outer: usize) -> Var {
    let [weight, bias] = [("norm", 1.0), ("bias", 0.1)].map(|(name, size)| b.weight(name, &[inner], size));
    let groups = b.either(32, 4);
    let x = b.call(Call::GroupNorm { groups, epsilon: 1e-5 }, &[x, weight, bias]);
    let x = b.unary(Unary::Silu, x);
    b.conv2d(x, [inner, outer, 3], 1, 1)
}

/// A residual block of a diffusion U-Net with the embedding of time; its result may be resized.
pub fn unet(b: &mut Builder) -> Vec<Var> {
    let inner = b.draw.extent(&[128, 256, 320, 640], 16);
    let widened = b.draw.coin();
    let side = b.draw.extent(&[16, 32, 64], 4);
    let batch = b.batch(&[1, 2, 4, 8]);
    let resize = b.draw.pick(&[0, 1, 2]);
    let outer = if widened { inner * 2 } else { inner };
    let x = b.input("x", &[batch, inner, side, side]);
    let time = b.input("time", &[batch, inner * 4]);
    let time = b.unary(Unary::Silu, time);
    let time = b.linear(time, inner * 4, outer);
    let time = b.reshape(time, &[batch, outer, 1, 1]);
    let y = norm_conv(b, x, inner, outer);
    let y = b.add(y, time);
    let y = norm_conv(b, y, outer, outer);
    let skip = if widened { b.conv2d(x, [inner, outer, 1], 1, 1) } else { x };
    let y = b.add(skip, y);
    vec![match resize {
        0 => y,
        1 => b.call(Call::AvgPool2d { size: 2, stride: 2 }, &[y]),
        _ => {
            let larger = b.call(Call::Upsample { factor: 2 }, &[y]);
            b.conv2d(larger, [outer, outer, 3], 1, 1)
        }
    }]
}

/// Gated causal convolutions of growing dilation, with residual and skip connections, as in WaveNet.
pub fn gated_conv(b: &mut Builder) -> Vec<Var> {
    let channels = b.draw.extent(&[64, 128, 256, 512], 16);
    let length = b.draw.extent(&[1024, 2048, 4096], 64);
    let batch = b.batch(&[1, 4, 8]);
    let (size, layers) = (b.draw.pick(&[2, 3]), b.draw.pick(&[2, 3, 4]));
    let mut x = b.input("x", &[batch, channels, length]);
    let mut skips = vec![];
    for layer in 0..layers {
        let dilation = 1 << layer;
        let padded = b.call(Call::Pad { axis: 2, before: (size - 1) * dilation, after: 0 }, &[x]);
        let fan_in = channels * size;
        let kernel = b.weight("kernel", &[channels * 2, channels, size], (fan_in as f64).powf(-0.5));
        let bias = b.weight("bias", &[channels * 2], 0.1);
        let conv = Conv { stride: 1, padding: 0, groups: 1, dilation };
        let both = b.call(Call::Conv1d(conv), &[padded, kernel, bias]);
        let [value, gate] = [(0, Unary::Tanh), (channels, Unary::Sigmoid)].map(|(start, function)| {
            let half = b.slice(both, 1, start, channels);
            b.unary(function, half)
        });
        let gated = b.mul(value, gate);
        let kernel = b.weight("kernel", &[channels * 2, channels, 1], (channels as f64).powf(-0.5));
        let conv = Conv { stride: 1, padding: 0, groups: 1, dilation: 1 };
        let both = b.call(Call::Conv1d(conv), &[gated, kernel]);
        let [residual, skip] = [0, channels].map(|start| b.slice(both, 1, start, channels));
        x = b.add(x, residual);
        skips.push(skip);
    }
    let mut sum = skips[0];
    for skip in &skips[1..] {
        sum = b.add(sum, *skip);
    }
    vec![b.unary(Unary::Relu, sum), x]
}
