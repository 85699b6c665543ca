//! Reductions over any axes.

use tallow::DType::{self, BF16, F16, F32};

use super::{by, distinct, draw, size};
use crate::networks::{Builder, Call, Reduction, Var};
use crate::sweep::point::{Extent, Point, full, sampled};

/// What is computed over the reduced axes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Sum,
    Mean,
    Max,
    ArgMax,
    ArgMin,
    Variance,
}

pub(super) fn points() -> Vec<Point> {
    let mut points = vec![];
    let sums: &[(&[usize], &[usize])] = &[
        (&[8192, 4096], &[1]),
        (&[8192, 4096], &[0]),
        (&[8192, 4096], &[0, 1]),
        (&[1 << 20, 16], &[1]),
        (&[1 << 22, 16], &[0]),
        (&[16, 1 << 20], &[1]),
        (&[3, 5_000_000], &[1]),
        (&[1, 1 << 25], &[1]),
        (&[1000, 1000], &[0]),
        (&[1000, 1000], &[1]),
        (&[64, 512, 512], &[1]),
        (&[64, 512, 512], &[0, 2]),
        (&[32, 64, 56, 56], &[0, 2, 3]),
        (&[32, 256, 14, 14], &[2, 3]),
        (&[100_003, 33], &[1]),
        (&[100_003, 33], &[0]),
        (&[64, 64], &[1]),
    ];
    points.extend(sums.iter().map(|(shape, axes)| reduce(F32, Kind::Sum, shape, axes)));
    for kind in [Kind::Mean, Kind::Max, Kind::Variance] {
        points.push(reduce(F16, kind, &[8192, 4096], &[1]));
        points.push(reduce(F16, kind, &[8192, 4096], &[0]));
        points.push(reduce(F32, kind, &[32, 64, 56, 56], &[0, 2, 3]));
    }
    for kind in [Kind::ArgMax, Kind::ArgMin] {
        for (shape, axis) in [([8192, 4096], 1), ([8192, 4096], 0), ([16, 1 << 20], 1), ([1, 128_256], 1)] {
            points.push(reduce(F32, kind, &shape, &[axis]));
        }
    }
    points.push(reduce(BF16, Kind::Sum, &[8192, 4096], &[1]));
    points.extend([[8192, 4096], [1000, 3000]].map(two_axes));
    let mut draw = draw(5);
    points.extend(distinct(10, || {
        let shape = [size(&mut draw, 1, 1000), size(&mut draw, 1, 1000), size(&mut draw, 1, 1000)];
        let axes = draw.pick(&[&[0][..], &[1], &[2], &[0, 1], &[1, 2], &[0, 2]]);
        let small = (1 << 16..1 << 26).contains(&shape.iter().product::<usize>());
        small.then(|| reduce(draw.pick(&[F16, F32]), draw.pick(&[Kind::Sum, Kind::Max]), &shape, axes))
    }));
    points
}

/// Whole along the reduced axes, some positions of the others.
fn extents(shape: &[usize], axes: &[usize]) -> Vec<Extent> {
    let one =
        |(axis, size): (usize, &usize)| if axes.contains(&axis) { full(*size) } else { sampled(*size, 16) };
    shape.iter().enumerate().map(one).collect()
}

fn name(kind: Kind) -> &'static str {
    match kind {
        Kind::Sum => "sum",
        Kind::Mean => "mean",
        Kind::Max => "max",
        Kind::ArgMax => "argmax",
        Kind::ArgMin => "argmin",
        Kind::Variance => "variance",
    }
}

fn reduce(dtype: DType, kind: Kind, shape: &[usize], axes: &[usize]) -> Point {
    let over: Vec<String> = axes.iter().map(ToString::to_string).collect();
    let name = format!("reduction/{dtype}-{}-{}/{}", name(kind), over.join(""), by(shape));
    let axes = axes.to_vec();
    Point::new(name, dtype, extents(shape, &axes), move |b, shape| {
        let x = b.input("x", shape);
        vec![of_kind(b, kind, x, &axes)]
    })
}

fn of_kind(b: &mut Builder, kind: Kind, x: Var, axes: &[usize]) -> Var {
    let reduce = |kind| Call::Reduce { kind, axes: axes.to_vec(), keepdim: false };
    match kind {
        Kind::Sum => b.sum(x, axes),
        Kind::Mean => b.mean(x, axes),
        Kind::Max => b.call(reduce(Reduction::Max), &[x]),
        Kind::ArgMax => b.call(Call::Argmax { axis: axes[0] }, &[x]),
        Kind::ArgMin => b.call(Call::Argmin { axis: axes[0] }, &[x]),
        Kind::Variance => {
            let mean =
                b.call(Call::Reduce { kind: Reduction::Mean, axes: axes.to_vec(), keepdim: true }, &[x]);
            let difference = b.sub(x, mean);
            let squares = b.mul(difference, difference);
            b.mean(squares, axes)
        }
    }
}

/// The sums of rows and of columns.
fn two_axes(shape: [usize; 2]) -> Point {
    let name = format!("reduction/f32-both-sums/{}", by(&shape));
    Point::new(name, F32, shape.map(full).to_vec(), |b, shape| {
        let x = b.input("x", shape);
        vec![b.sum(x, &[0]), b.sum(x, &[1])]
    })
}
