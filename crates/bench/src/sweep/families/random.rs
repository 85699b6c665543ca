//! Random numbers, alone and in front of other ops.

use tallow::DType::F32;

use super::{by, distinct, draw, size};
use crate::networks::{Call, Relation};
use crate::sweep::point::{Point, full};

/// What is done with the numbers.
#[derive(Clone, Copy)]
enum Use {
    Alone,
    /// Added to a tensor, as noise.
    Noise,
    /// Compared with a number, as the mask of dropout.
    Dropout,
}

const USES: &[(Use, &str)] = &[(Use::Alone, "alone"), (Use::Noise, "noise"), (Use::Dropout, "dropout")];

pub(super) fn points() -> Vec<Point> {
    let mut points = vec![];
    for normal in [false, true] {
        for (usage, name) in USES {
            for shape in [[64, 64], [1000, 1001], [8192, 4096], [3, 1_000_003]] {
                points.push(point(normal, (*usage, name), shape));
            }
        }
    }
    let mut draw = draw(13);
    points.extend(distinct(6, || {
        let shape = [size(&mut draw, 1, 4096), size(&mut draw, 16, 4096)];
        Some(point(draw.coin(), draw.pick(USES), shape))
    }));
    points
}

fn point(normal: bool, (usage, what): (Use, &str), shape: [usize; 2]) -> Point {
    let kind = if normal { "normal" } else { "uniform" };
    let name = format!("random/f32-{kind}-{what}/{}", by(&shape));
    let point = Point::new(name, F32, shape.map(full).to_vec(), move |b, shape| {
        let x = b.input("x", shape);
        let drawn = b.call(Call::RandomLike { normal }, &[x]);
        vec![match usage {
            Use::Alone => drawn,
            Use::Noise => b.add(x, drawn),
            Use::Dropout => {
                let remaining = b.call(Call::Compare { relation: Relation::Gt, value: Some(0.1) }, &[drawn]);
                let zero = b.call(Call::FullLike { value: 0.0 }, &[x]);
                b.call(Call::Where, &[remaining, x, zero])
            }
        }]
    });
    let point = point.checked_at(shape.map(|size| size.min(1003)).to_vec());
    match usage {
        Use::Alone => point.reading(0),
        Use::Noise | Use::Dropout => point,
    }
}
