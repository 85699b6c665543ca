//! Sorting and the selection of the largest.

use tallow::DType::F32;

use super::{by, distinct, draw, size};
use crate::networks::Call;
use crate::sweep::point::{Point, full, sampled};

pub(super) fn points() -> Vec<Point> {
    let mut points = vec![];
    for [rows, length] in [
        [100_000, 10],
        [10_000, 100],
        [1000, 1000],
        [128, 4096],
        [64, 10_000],
        [8, 50_000],
        [1, 100_000],
        [1, 1_000_000],
    ] {
        points.push(argsort([rows, length]));
    }
    for [rows, length] in [
        [100_000, 10],
        [10_000, 100],
        [1000, 1000],
        [512, 32_000],
        [64, 50_000],
        [1, 128_256],
        [8, 1_000_000],
        [1, 10_000_000],
    ] {
        for k in [1, 8, 64] {
            if k <= length {
                points.push(topk(k, [rows, length]));
            }
        }
    }
    let mut draw = draw(9);
    points.extend(distinct(8, || {
        let shape = [size(&mut draw, 1, 4096), size(&mut draw, 10, 100_000)];
        (shape[0] * shape[1] < 1 << 23).then(|| match draw.coin() {
            true => argsort(shape),
            false => topk(draw.pick(&[2, 5, 10]), shape),
        })
    }));
    points
}

fn argsort(shape: [usize; 2]) -> Point {
    let name = format!("sort/f32-argsort/{}", by(&shape));
    Point::new(name, F32, vec![sampled(shape[0], 8), full(shape[1])], |b, shape| {
        let x = b.input("x", shape);
        vec![b.call(Call::Argsort, &[x])]
    })
}

fn topk(k: usize, shape: [usize; 2]) -> Point {
    let name = format!("sort/f32-top{k}/{}", by(&shape));
    Point::new(name, F32, vec![sampled(shape[0], 8), full(shape[1])], move |b, shape| {
        let x = b.input("x", shape);
        vec![b.call(Call::Topk { k }, &[x])]
    })
}
