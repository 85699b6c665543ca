//! Running sums.

use tallow::DType::{self, F16, F32};

use super::{by, distinct, draw, size};
use crate::networks::Call;
use crate::sweep::point::{Point, full, sampled};

pub(super) fn points() -> Vec<Point> {
    let mut points = vec![];
    for dtype in [F32, F16] {
        for shape in [
            [8192, 4096],
            [100_000, 100],
            [1000, 1000],
            [64, 64],
            [64, 100_003],
            [8, 1 << 20],
            [1, 10_000_000],
        ] {
            points.push(cumsum(dtype, 1, shape));
        }
        for shape in [[4096, 8192], [1000, 1000], [100_003, 64], [1 << 20, 8]] {
            points.push(cumsum(dtype, 0, shape));
        }
    }
    let mut draw = draw(8);
    points.extend(distinct(10, || {
        let shape = [size(&mut draw, 1, 10_000), size(&mut draw, 10, 1_000_000)];
        let axis = draw.pick(&[0, 1]);
        (1 << 14..1 << 26)
            .contains(&(shape[0] * shape[1]))
            .then(|| cumsum(draw.pick(&[F32, F16]), axis, shape))
    }));
    points
}

fn cumsum(dtype: DType, axis: usize, shape: [usize; 2]) -> Point {
    let name = format!("scan/{dtype}-cumsum-{axis}/{}", by(&shape));
    let extents = [0, 1].map(|i| if i == axis { full(shape[i]) } else { sampled(shape[i], 8) });
    Point::new(name, dtype, extents.to_vec(), move |b, shape| {
        let x = b.input("x", shape);
        // Sums of f16 stay finite.
        let x = b.affine(x, 1.0 / 64.0, 0.0);
        vec![b.call(Call::Cumsum { axis }, &[x])]
    })
}
