//! Softmax and norms.

use tallow::DType::{self, BF16, F16, F32};

use super::{by, distinct, draw, size};
use crate::networks::{Builder, Call, Var};
use crate::sweep::point::{Point, full, sampled};

/// What is computed over the last axis of `[rows, width]`.
type Body = fn(&mut Builder, &[usize]) -> Vec<Var>;

const ROWS: &[(&str, Body)] = &[
    ("softmax", |b, s| {
        let x = b.input("x", s);
        vec![b.call(Call::Softmax { axis: 1 }, &[x])]
    }),
    ("log-softmax", |b, s| {
        let x = b.input("x", s);
        vec![b.call(Call::LogSoftmax { axis: 1 }, &[x])]
    }),
    ("rms-norm", |b, s| {
        let x = b.input("x", s);
        vec![b.norm(x, s[1], true)]
    }),
    ("layer-norm", |b, s| {
        let x = b.input("x", s);
        vec![b.norm(x, s[1], false)]
    }),
    ("residual-norm", |b, s| {
        let (x, y) = (b.input("x", s), b.input("y", s));
        let sum = b.add(x, y);
        vec![b.norm(sum, s[1], true), sum]
    }),
];

pub(super) fn points() -> Vec<Point> {
    let mut points = vec![];
    for (name, body) in ROWS {
        for shape in [[8192, 4096], [1, 4096], [100_000, 64], [512, 32_000], [1000, 1001]] {
            points.push(point(F16, name, shape, *body));
        }
        points.push(point(F32, name, [16_384, 1024], *body));
        points.push(point(F32, name, [8, 262_144], *body));
    }
    points.push(point(BF16, "rms-norm", [8192, 4096], ROWS[2].1));
    points.push(point(BF16, "softmax", [8192, 4096], ROWS[0].1));
    for dtype in [F16, F32] {
        points.push(first_axis(dtype, [4096, 4096]));
        points.push(group_norm(dtype, [4, 320, 64]));
        points.push(group_norm(dtype, [1, 128, 256]));
    }
    let mut draw = draw(10);
    points.extend(distinct(8, || {
        let (name, body) = draw.pick(ROWS);
        let shape = [size(&mut draw, 1, 20_000), size(&mut draw, 10, 100_000)];
        (shape[0] * shape[1] < 1 << 26).then(|| point(draw.pick(&[F16, F32]), name, shape, body))
    }));
    points
}

fn point(dtype: DType, name: &str, shape: [usize; 2], body: Body) -> Point {
    let name = format!("normalization/{dtype}-{name}/{}", by(&shape));
    Point::new(name, dtype, vec![sampled(shape[0], 8), full(shape[1])], body)
}

fn first_axis(dtype: DType, shape: [usize; 2]) -> Point {
    let name = format!("normalization/{dtype}-softmax-0/{}", by(&shape));
    Point::new(name, dtype, vec![full(shape[0]), sampled(shape[1], 16)], |b, shape| {
        let x = b.input("x", shape);
        vec![b.call(Call::Softmax { axis: 0 }, &[x])]
    })
}

/// Of `[batch, channels, side, side]` in 32 groups.
fn group_norm(dtype: DType, [batch, channels, side]: [usize; 3]) -> Point {
    let name = format!("normalization/{dtype}-group-norm/{}", by(&[batch, channels, side]));
    Point::new(name, dtype, vec![sampled(batch, 1)], move |b, sizes| {
        let x = b.input("x", &[sizes[0], channels, side, side]);
        let (weight, bias) = (b.weight("weight", &[channels], 1.0), b.weight("bias", &[channels], 0.1));
        vec![b.call(Call::GroupNorm { groups: 32, epsilon: 1e-5 }, &[x, weight, bias])]
    })
}
