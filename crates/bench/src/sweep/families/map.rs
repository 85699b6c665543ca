//! Elementwise ops over views: transposed, broadcast, strided, concatenated, sliced.

use tallow::DType::{self, BF16, F16, F32};

use super::{by, distinct, draw, size};
use crate::networks::{Builder, Call, Relation, Unary, Var};
use crate::sweep::point::{Extent, Point, full, sampled};

/// What is computed from `x`, whose extents are given.
type Body = fn(&mut Builder, &[usize]) -> Vec<Var>;

pub(super) fn points() -> Vec<Point> {
    let mut points = vec![];
    for dtype in [F32, F16] {
        for (name, body) in MATRIX {
            points.push(point(dtype, name, &[8192, 4096], *body));
        }
        points.push(point(dtype, "transpose", &[1000, 3001], transpose));
        points.push(point(dtype, "heads", &[8, 1024, 32, 128], heads));
        points.push(point(dtype, "channels-last", &[16, 64, 56, 56], channels_last));
        points.push(point(dtype, "gelu", &[64, 64], gelu));
        points.push(point(dtype, "gelu", &[1000, 1000], gelu));
        points.push(point(dtype, "gelu", &[33, 100_003], gelu));
    }
    points.push(point(BF16, "gelu", &[8192, 4096], gelu));
    points.push(point(BF16, "transpose", &[8192, 4096], transpose));
    let mut draw = draw(6);
    points.extend(distinct(10, || {
        let (name, body) = draw.pick(MATRIX);
        let shape = [2 * size(&mut draw, 8, 4096), 2 * size(&mut draw, 8, 4096)];
        Some(point(draw.pick(&[F16, F32]), name, &shape, body))
    }));
    points
}

/// Ops over `[rows, columns]`.
const MATRIX: &[(&str, Body)] = &[
    ("gelu", gelu),
    ("add-row", |b, s| with_vector(b, s, [1, s[1]])),
    ("add-column", |b, s| with_vector(b, s, [s[0], 1])),
    ("transpose", transpose),
    ("add-transposed", |b, s| {
        let (x, y) = (b.input("x", s), b.input("y", &[s[1], s[0]]));
        let y = b.permute(y, &[1, 0]);
        vec![b.add(x, y)]
    }),
    ("even-columns", |b, s| {
        let x = b.input("x", s);
        let pairs = b.reshape(x, &[s[0], s[1] / 2, 2]);
        let even = b.slice(pairs, 2, 0, 1);
        vec![b.affine(even, 2.0, 1.0)]
    }),
    ("concat-rows", |b, s| concat(b, s, 0)),
    ("concat-columns", |b, s| concat(b, s, 1)),
    ("inner-columns", |b, s| {
        let x = b.input("x", s);
        let inner = b.slice(x, 1, 3, s[1] - 7);
        vec![b.unary(Unary::Relu, inner)]
    }),
    ("pad", |b, s| {
        let x = b.input("x", s);
        vec![b.call(Call::Pad { axis: 1, before: 1, after: 1 }, &[x])]
    }),
    ("cast", |b, s| {
        let x = b.input("x", s);
        let (from, to) = (b.dtype, if b.dtype == F32 { F16 } else { F32 });
        vec![b.cast(x, from, to)]
    }),
    ("where", |b, s| {
        let (x, y) = (b.input("x", s), b.input("y", s));
        let mask = b.call(Call::Compare { relation: Relation::Gt, value: Some(0.0) }, &[x]);
        vec![b.call(Call::Where, &[mask, x, y])]
    }),
    ("repeat-columns", |b, s| {
        let x = b.input("x", &[s[0], s[1] / 2]);
        let x = b.reshape(x, &[s[0], s[1] / 2, 1]);
        let twice = b.broadcast(x, &[s[0], s[1] / 2, 2]);
        vec![b.affine(twice, 2.0, 0.0)]
    }),
];

/// A map of which some rows are checked.
fn point(dtype: DType, name: &str, shape: &[usize], body: Body) -> Point {
    let first: Extent = sampled(shape[0], 8);
    let extents = [first].into_iter().chain(shape[1..].iter().map(|size| full(*size))).collect();
    Point::new(format!("map/{dtype}-{name}/{}", by(shape)), dtype, extents, body)
}

fn gelu(b: &mut Builder, shape: &[usize]) -> Vec<Var> {
    let x = b.input("x", shape);
    vec![b.unary(Unary::Gelu, x)]
}

fn with_vector(b: &mut Builder, shape: &[usize], vector: [usize; 2]) -> Vec<Var> {
    let (x, y) = (b.input("x", shape), b.input("y", &vector));
    vec![b.add(x, y)]
}

fn transpose(b: &mut Builder, shape: &[usize]) -> Vec<Var> {
    let x = b.input("x", shape);
    vec![b.permute(x, &[1, 0])]
}

/// `[batch, positions, heads, dim]` to `[batch, heads, positions, dim]`.
fn heads(b: &mut Builder, shape: &[usize]) -> Vec<Var> {
    let x = b.input("x", shape);
    vec![b.permute(x, &[0, 2, 1, 3])]
}

fn channels_last(b: &mut Builder, shape: &[usize]) -> Vec<Var> {
    let x = b.input("x", shape);
    vec![b.permute(x, &[0, 2, 3, 1])]
}

fn concat(b: &mut Builder, shape: &[usize], axis: usize) -> Vec<Var> {
    let mut half = shape.to_vec();
    half[axis] = shape[axis].div_ceil(2);
    let parts = [b.input("x", &half), b.input("y", &half)];
    vec![b.concat(&parts, axis)]
}
