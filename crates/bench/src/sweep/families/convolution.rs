//! Convolutions of one and two axes.

use tallow::DType::{self, F16, F32};

use super::{by, distinct, draw, size};
use crate::networks::{Call, Conv};
use crate::sweep::point::{Point, Rate, full, sampled};

/// A convolution of a square image (or a line, of `side` elements).
#[derive(Clone, Copy)]
struct Shape {
    batch: usize,
    inner: usize,
    outer: usize,
    side: usize,
    kernel: usize,
    stride: usize,
    groups: usize,
}

fn plain(batch: usize, [inner, outer]: [usize; 2], side: usize, kernel: usize, stride: usize) -> Shape {
    Shape { batch, inner, outer, side, kernel, stride, groups: 1 }
}

fn depthwise(batch: usize, channels: usize, side: usize, kernel: usize, stride: usize) -> Shape {
    Shape { groups: channels, ..plain(batch, [channels, channels], side, kernel, stride) }
}

pub(super) fn points() -> Vec<Point> {
    let images = [
        plain(8, [3, 64], 224, 7, 2),
        plain(1, [3, 64], 224, 7, 2),
        plain(8, [3, 16], 256, 3, 1),
        plain(8, [1, 32], 28, 3, 1),
        plain(8, [64, 64], 56, 3, 1),
        plain(8, [128, 128], 28, 3, 1),
        plain(8, [128, 256], 28, 3, 2),
        plain(8, [512, 512], 7, 3, 1),
        plain(1, [512, 512], 7, 3, 1),
        plain(8, [64, 256], 56, 1, 1),
        plain(8, [1024, 256], 14, 1, 1),
        plain(8, [1280, 1280], 16, 1, 1),
        plain(4, [320, 320], 64, 3, 1),
        plain(4, [1280, 1280], 16, 3, 1),
        plain(1, [4, 320], 64, 3, 1),
        plain(1, [320, 4], 64, 3, 1),
        plain(1, [48, 3], 256, 3, 1),
        depthwise(8, 96, 112, 3, 2),
        depthwise(8, 192, 56, 7, 1),
        depthwise(8, 960, 7, 3, 1),
        Shape { groups: 32, ..plain(8, [128, 128], 56, 3, 1) },
        Shape { groups: 2, ..plain(8, [256, 256], 28, 3, 1) },
    ];
    let lines = [
        plain(8, [80, 512], 3000, 3, 1),
        plain(8, [512, 512], 1500, 3, 2),
        plain(1, [1, 64], 160_000, 10, 5),
        depthwise(4, 1024, 2048, 4, 1),
        depthwise(16, 768, 1024, 31, 1),
    ];
    let mut points = vec![];
    for dtype in [F16, F32] {
        points.extend(images.iter().map(|shape| conv(dtype, 2, *shape)));
        points.extend(lines.iter().map(|shape| conv(dtype, 1, *shape)));
    }
    let mut draw = draw(4);
    points.extend(distinct(10, || {
        let [inner, outer] = [size(&mut draw, 3, 640), size(&mut draw, 3, 640)];
        let shape =
            plain(draw.pick(&[1, 4]), [inner, outer], size(&mut draw, 7, 128), draw.pick(&[1, 3, 5]), 1);
        Some(conv(draw.pick(&[F16, F32]), 2, shape)).filter(|point| point.flops < 1 << 36)
    }));
    points
}

fn conv(dtype: DType, axes: usize, shape: Shape) -> Point {
    let Shape { batch, inner, outer, side, kernel, stride, groups } = shape;
    let padding = kernel / 2;
    let results = ((side + 2 * padding - kernel) / stride + 1).pow(axes as u32);
    let taps = kernel.pow(axes as u32);
    let kind = if groups == 1 { String::new() } else { format!("-g{groups}") };
    let sizes = by(&[batch, inner, outer, side]);
    let name = format!("convolution/{dtype}-{axes}d-k{kernel}-s{stride}{kind}/{sizes}");
    // Channels of a group depend on each other.
    let channels = if groups == 1 { sampled(outer, 4) } else { full(outer) };
    let point = Point::new(name, dtype, vec![sampled(batch, 1), channels], move |b, sizes| {
        let (batch, outer) = (sizes[0], sizes[1]);
        let x = b.input("x", &[vec![batch, inner], vec![side; axes]].concat());
        let each = inner / groups;
        let scale = ((each * taps) as f64).powf(-0.5);
        let kernel = b.weight("kernel", &[vec![outer, each], vec![kernel; axes]].concat(), scale);
        let conv = Conv { stride, padding, groups, dilation: 1 };
        vec![b.call(if axes == 1 { Call::Conv1d(conv) } else { Call::Conv2d(conv) }, &[x, kernel])]
    });
    let point = point.with_flops(2 * (batch * outer * results * inner / groups * taps) as u64);
    // Cooperative matrices need an inner extent, which one channel a group has not.
    if groups == inner { point.at_rate(Rate::Fma) } else { point }
}
