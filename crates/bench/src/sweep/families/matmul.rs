//! Products of two plain matrices.

use tallow::DType::{self, BF16, F16, F32};

use super::{by, distinct, draw, size};
use crate::networks::Call;
use crate::sweep::point::{Point, full, sampled};

/// How both operands are stored.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Layout {
    name: &'static str,
    transpose_a: bool,
    transpose_b: bool,
}

const NN: Layout = Layout { name: "nn", transpose_a: false, transpose_b: false };
const NT: Layout = Layout { name: "nt", transpose_a: false, transpose_b: true };
const TN: Layout = Layout { name: "tn", transpose_a: true, transpose_b: false };
const TT: Layout = Layout { name: "tt", transpose_a: true, transpose_b: true };

/// Rows from a matvec to a large product, dense where kernels change.
const ROWS: &[usize] = &[1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024, 2048, 4096, 8192];

pub(super) fn points() -> Vec<Point> {
    let mut points = vec![];
    let mut add = |dtype, layout, [m, k, n]: [usize; 3]| points.push(product(dtype, layout, [m, k, n]));
    for &m in ROWS {
        add(F16, NN, [m, 4096, 4096]);
        add(F16, NT, [m, 4096, 4096]);
    }
    for dtype in [BF16, F32] {
        for m in [1, 4, 16, 64, 512, 2048] {
            add(dtype, NN, [m, 4096, 4096]);
            add(dtype, NT, [m, 4096, 4096]);
        }
    }
    let shapes =
        [[4096, 14336], [14336, 4096], [1024, 1024], [1000, 1000], [64, 4096], [4096, 64], [16, 16384]];
    for [k, n] in shapes.into_iter().chain([[16384, 16], [127, 251], [4096, 1]]) {
        for m in [1, 4, 64, 1024] {
            add(F16, NN, [m, k, n]);
        }
        add(F32, NN, [256, k, n]);
        add(F16, NT, [16, k, n]);
    }
    for dtype in [F16, F32] {
        for m in [1, 64, 1024] {
            add(dtype, TN, [m, 2048, 2048]);
            add(dtype, TT, [m, 2048, 2048]);
        }
    }
    for m in [1, 16, 128, 1024] {
        points.push(batched(F16, false, [32, m, 128, 1024]));
        points.push(batched(F16, true, [8, m, 1024, 1024]));
    }
    points.push(batched(F32, false, [256, 32, 32, 32]));
    points.push(batched(F16, false, [4096, 16, 16, 16]));
    points.extend(random());
    points
}

/// Random shapes, types and layouts, of at most 2^36 operations.
fn random() -> Vec<Point> {
    let mut draw = draw(1);
    distinct(40, || {
        let (dtype, layout) = (draw.pick(&[F16, F16, BF16, F32]), draw.pick(&[NN, NT, NN, NT, TN, TT]));
        let shape = [size(&mut draw, 1, 8192), size(&mut draw, 16, 16384), size(&mut draw, 16, 16384)];
        Some(product(dtype, layout, shape)).filter(|point| point.flops < 1 << 36)
    })
}

/// `[m, k] @ [k, n]`.
fn product(dtype: DType, layout: Layout, [m, k, n]: [usize; 3]) -> Point {
    let Layout { name, transpose_a, transpose_b } = layout;
    let name = format!("matmul/{dtype}-{name}/{}", by(&[m, k, n]));
    let point = Point::new(name, dtype, vec![sampled(m, 8), sampled(n, 32)], move |b, sizes| {
        let (m, n) = (sizes[0], sizes[1]);
        let left = b.input("a", &if transpose_a { [k, m] } else { [m, k] });
        let right = b.weight("b", &if transpose_b { [n, k] } else { [k, n] }, (k as f64).powf(-0.5));
        vec![b.call(Call::Matmul { transpose_a, transpose_b }, &[left, right])]
    });
    point.with_flops(2 * (m * k * n) as u64)
}

/// `[batch, m, k] @ [batch, k, n]`, or one right operand for the whole batch.
fn batched(dtype: DType, broadcast: bool, [batch, m, k, n]: [usize; 4]) -> Point {
    let variant = if broadcast { "broadcast" } else { "batched" };
    let name = format!("matmul/{dtype}-{variant}/{}", by(&[batch, m, k, n]));
    let extents = vec![sampled(batch, 4), full(m), sampled(n, 32)];
    let point = Point::new(name, dtype, extents, move |b, sizes| {
        let (batch, m, n) = (sizes[0], sizes[1], sizes[2]);
        let left = b.input("a", &[batch, m, k]);
        let scale = (k as f64).powf(-0.5);
        let right =
            if broadcast { b.weight("b", &[k, n], scale) } else { b.weight("b", &[batch, k, n], scale) };
        vec![b.matmul(left, right)]
    });
    point.with_flops(2 * (batch * m * k * n) as u64)
}
