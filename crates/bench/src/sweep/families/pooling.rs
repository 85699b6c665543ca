//! Pooling and resizing of images.

use tallow::DType::{self, F16, F32};

use super::{by, distinct, draw, size};
use crate::networks::{Builder, Call, Var};
use crate::sweep::point::{Point, full, sampled};

/// What is computed of an image.
#[derive(Clone, Copy)]
enum Kind {
    Average { size: usize, stride: usize },
    Max { size: usize, stride: usize },
    Upsample { factor: usize },
}

const KINDS: &[Kind] = &[
    Kind::Average { size: 2, stride: 2 },
    Kind::Max { size: 2, stride: 2 },
    Kind::Max { size: 3, stride: 2 },
    Kind::Average { size: 3, stride: 1 },
    Kind::Upsample { factor: 2 },
];

pub(super) fn points() -> Vec<Point> {
    let mut points = vec![];
    for dtype in [F16, F32] {
        for shape in [[8, 64, 112], [32, 512, 14], [1, 3, 1000]] {
            points.extend(KINDS.iter().map(|kind| point(dtype, *kind, shape)));
        }
        points.push(point(dtype, Kind::Average { size: 7, stride: 7 }, [32, 2048, 7]));
    }
    let mut draw = draw(12);
    points.extend(distinct(6, || {
        let shape = [draw.pick(&[1, 4]), size(&mut draw, 1, 256), size(&mut draw, 8, 256)];
        Some(point(draw.pick(&[F16, F32]), draw.pick(KINDS), shape))
    }));
    points
}

fn point(dtype: DType, kind: Kind, [batch, channels, side]: [usize; 3]) -> Point {
    let what = match kind {
        Kind::Average { size, stride } => format!("average-{size}-{stride}"),
        Kind::Max { size, stride } => format!("max-{size}-{stride}"),
        Kind::Upsample { factor } => format!("upsample-{factor}"),
    };
    let name = format!("pooling/{dtype}-{what}/{}", by(&[batch, channels, side]));
    Point::new(name, dtype, vec![sampled(batch, 2), sampled(channels, 4), full(side)], move |b, sizes| {
        let x = b.input("x", &[sizes[0], sizes[1], sizes[2], sizes[2]]);
        vec![of_kind(b, kind, x)]
    })
}

fn of_kind(b: &mut Builder, kind: Kind, x: Var) -> Var {
    let call = match kind {
        Kind::Average { size, stride } => Call::AvgPool2d { size, stride },
        Kind::Max { size, stride } => Call::MaxPool2d { size, stride },
        Kind::Upsample { factor } => Call::Upsample { factor },
    };
    b.call(call, &[x])
}
