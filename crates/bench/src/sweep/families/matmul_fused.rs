//! Products with ops before and after them, which a compiler may fuse.

use tallow::DType::{self, F16, F32};

use super::{by, distinct, draw};
use crate::networks::{Builder, Call, Unary, Var};
use crate::sweep::point::{Extent, Point, full, sampled};

/// What computes the left operand from `x: [m, k]`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Prologue {
    None,
    /// A row is added.
    Bias,
    Silu,
    Norm,
    /// Rows are selected by indices.
    Gather,
    /// From the other one of f32 and f16.
    Cast,
}

/// What is done with the product.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Epilogue {
    None,
    /// `gelu(y + bias)`.
    BiasGelu,
    Residual,
    /// `silu(y) * (x w3)`.
    Gate,
    Softmax,
    /// The sum of each row.
    Sum,
}

const PROLOGUES: &[(Prologue, &str)] = &[
    (Prologue::Bias, "bias"),
    (Prologue::Silu, "silu"),
    (Prologue::Norm, "norm"),
    (Prologue::Gather, "gather"),
    (Prologue::Cast, "cast"),
];
const EPILOGUES: &[(Epilogue, &str)] = &[
    (Epilogue::BiasGelu, "bias-gelu"),
    (Epilogue::Residual, "residual"),
    (Epilogue::Gate, "gate"),
    (Epilogue::Softmax, "softmax"),
    (Epilogue::Sum, "sum"),
];
const NO_PROLOGUE: (Prologue, &str) = (Prologue::None, "none");
const NO_EPILOGUE: (Epilogue, &str) = (Epilogue::None, "none");

pub(super) fn points() -> Vec<Point> {
    let mut points = vec![];
    for (dtype, rows) in [(F16, &[1, 16, 512, 4096][..]), (F32, &[4, 512])] {
        for &m in rows {
            points.extend(PROLOGUES.iter().map(|p| product(dtype, *p, NO_EPILOGUE, [m, 4096, 4096])));
            points.extend(EPILOGUES.iter().map(|e| product(dtype, NO_PROLOGUE, *e, [m, 4096, 4096])));
        }
    }
    let mut draw = draw(3);
    points.extend(distinct(16, || {
        let (before, after) = (draw.pick(PROLOGUES), draw.pick(EPILOGUES));
        let [m, k, n] =
            [&[1, 7, 64, 300, 1024][..], &[512, 1024, 4096], &[512, 1000, 4096]].map(|s| draw.pick(s));
        Some(product(draw.pick(&[F16, F16, F32]), before, after, [m, k, n]))
    }));
    points
}

fn product(
    dtype: DType,
    (prologue, before): (Prologue, &str),
    (epilogue, after): (Epilogue, &str),
    [m, k, n]: [usize; 3],
) -> Point {
    let name = format!("matmul-fused/{dtype}-{before}-{after}/{}", by(&[m, k, n]));
    let columns: Extent = match epilogue {
        Epilogue::Softmax | Epilogue::Sum => full(n),
        Epilogue::None | Epilogue::BiasGelu | Epilogue::Residual | Epilogue::Gate => sampled(n, 32),
    };
    let point = Point::new(name, dtype, vec![sampled(m, 4), columns], move |b, sizes| {
        let left = left(b, prologue, [sizes[0], k], m);
        vec![right(b, epilogue, left, [sizes[0], k, sizes[1]])]
    });
    let products = if epilogue == Epilogue::Gate { 2 } else { 1 };
    point.with_flops(products * 2 * (m * k * n) as u64)
}

/// The left operand. Rows are gathered from a table of `table` rows.
fn left(b: &mut Builder, prologue: Prologue, [m, k]: [usize; 2], table: usize) -> Var {
    match prologue {
        Prologue::None => b.input("x", &[m, k]),
        Prologue::Bias => {
            let (x, z) = (b.input("x", &[m, k]), b.input("z", &[1, k]));
            b.add(x, z)
        }
        Prologue::Silu => {
            let x = b.input("x", &[m, k]);
            b.unary(Unary::Silu, x)
        }
        Prologue::Norm => {
            let x = b.input("x", &[m, k]);
            b.norm(x, k, true)
        }
        Prologue::Gather => {
            let (all, rows) = (b.input("table", &[table, k]), b.integers("rows", &[m], table));
            b.call(Call::IndexSelect { axis: 0 }, &[all, rows])
        }
        Prologue::Cast => {
            let dtype = b.dtype;
            let other = if dtype == F16 { F32 } else { F16 };
            let x = b.input_of("x", other, &[m, k]);
            b.cast(x, other, dtype)
        }
    }
}

fn right(b: &mut Builder, epilogue: Epilogue, left: Var, [m, k, n]: [usize; 3]) -> Var {
    let scale = (k as f64).powf(-0.5);
    let weight = b.weight("w", &[k, n], scale);
    let y = b.matmul(left, weight);
    match epilogue {
        Epilogue::None => y,
        Epilogue::BiasGelu => {
            let bias = b.weight("bias", &[n], 0.1);
            let y = b.add(y, bias);
            b.unary(Unary::Gelu, y)
        }
        Epilogue::Residual => {
            let residual = b.input("residual", &[m, n]);
            b.add(y, residual)
        }
        Epilogue::Gate => {
            let other = b.weight("w3", &[k, n], scale);
            let other = b.matmul(left, other);
            let y = b.unary(Unary::Silu, y);
            b.mul(y, other)
        }
        Epilogue::Softmax => b.call(Call::Softmax { axis: 1 }, &[y]),
        Epilogue::Sum => b.sum(y, &[1]),
    }
}
