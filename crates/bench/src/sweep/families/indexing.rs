//! Gathers, and additions to indexed elements.

use tallow::DType::{self, F16, F32};

use super::{by, bytes, distinct, draw, size};
use crate::networks::Call;
use crate::sweep::point::{Point, full, sampled};

pub(super) fn points() -> Vec<Point> {
    let mut points = vec![];
    for (table, width, rows) in [
        (128_256, 4096, 1),
        (128_256, 4096, 64),
        (32_000, 4096, 2048),
        (32_000, 768, 8192),
        (1000, 16, 1 << 20),
        (1 << 20, 3, 1 << 18),
        (1 << 22, 1, 1 << 22),
    ] {
        points.push(select(F16, [table, width, rows]));
        points.push(select(F32, [table, width, rows]));
    }
    for (rows, width, picked) in [(4096, 4096, 1), (4096, 4096, 64), (512, 32_000, 1), (8192, 1024, 1024)] {
        points.push(gather(F32, [rows, width, picked]));
    }
    for (targets, width, rows) in [
        (16, 64, 1 << 18),
        (256, 64, 1 << 18),
        (256, 1, 1 << 20),
        (4096, 128, 1 << 16),
        (1 << 16, 64, 1 << 18),
        (1 << 20, 1, 1 << 20),
        (32_000, 768, 2048),
    ] {
        for sorted in [false, true] {
            points.push(index_add(F32, sorted, [targets, width, rows]));
        }
    }
    points.push(index_add(F16, false, [256, 64, 1 << 18]));
    points.push(index_add(F16, false, [32_000, 768, 2048]));
    let mut draw = draw(7);
    points.extend(distinct(10, || {
        let shape = [size(&mut draw, 2, 1 << 18), size(&mut draw, 1, 512), size(&mut draw, 16, 1 << 18)];
        (shape[1] * shape[0].max(shape[2]) < 1 << 26).then(|| match draw.coin() {
            true => select(draw.pick(&[F16, F32]), shape),
            false => index_add(F32, draw.coin(), shape),
        })
    }));
    points
}

/// `rows` rows of a table.
fn select(dtype: DType, [table, width, rows]: [usize; 3]) -> Point {
    let name = format!("indexing/{dtype}-select/{}", by(&[table, width, rows]));
    let point = Point::new(name, dtype, vec![sampled(rows, 64)], move |b, sizes| {
        let (x, rows) = (b.weight("table", &[table, width], 1.0), b.integers("rows", &[sizes[0]], table));
        vec![b.call(Call::IndexSelect { axis: 0 }, &[x, rows])]
    });
    point.reading(4 * rows as u64 + bytes(dtype) * (width * rows.min(table)) as u64)
}

/// `picked` elements of each row.
fn gather(dtype: DType, [rows, width, picked]: [usize; 3]) -> Point {
    let name = format!("indexing/{dtype}-gather/{}", by(&[rows, width, picked]));
    let point = Point::new(name, dtype, vec![sampled(rows, 16)], move |b, sizes| {
        let x = b.input("x", &[sizes[0], width]);
        let columns = b.integers("columns", &[sizes[0], picked], width);
        vec![b.call(Call::Gather { axis: 1 }, &[x, columns])]
    });
    // An element alone is a whole sector of 32 bytes.
    let each = bytes(dtype) * width as u64;
    point.reading(4 * (rows * picked) as u64 + (rows as u64) * each.min(32 * picked as u64))
}

/// `rows` rows added to those of `targets` rows that indices select.
fn index_add(dtype: DType, sorted: bool, [targets, width, rows]: [usize; 3]) -> Point {
    let order = if sorted { "sorted" } else { "random" };
    let name = format!("indexing/{dtype}-add-{order}/{}", by(&[targets, width, rows]));
    Point::new(name, dtype, vec![full(targets), sampled(width, 4)], move |b, sizes| {
        let (targets, width) = (sizes[0], sizes[1]);
        let base = b.input("base", &[targets, width]);
        let at = if sorted { b.sorted("at", &[rows], targets) } else { b.integers("at", &[rows], targets) };
        let x = b.input("x", &[rows, width]);
        vec![b.call(Call::IndexAdd { axis: 0 }, &[base, at, x])]
    })
}
