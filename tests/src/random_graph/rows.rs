//! Row programs: several reductions over the same rows with elementwise work around them.

use tallow_ir::{Dim, ElementwiseOp as E, Op, ReduceKind, Shape};

use super::builder::Builder;
use super::contractions::{products_of_rows, reduce_by};
use super::item::Item;
use super::maps::{random_binary, random_unary};

/// A whole program over new inputs.
pub fn row_program(b: &mut Builder) {
    let rank = *b.rng.pick(&[1, 2, 2, 3, 3, 4]);
    let mut dims: Vec<Dim> = (0..rank).map(|_| b.random_dim()).collect();
    while !b.fits(&dims) {
        let i = b.rng.below(rank);
        dims[i] = Dim::from(b.rng.between(1, 5));
    }
    // Mostly the trailing axes; sometimes any.
    let axes: Vec<usize> = if b.rng.chance(70) {
        let n = b.rng.between(1, 2.min(rank as i64)) as usize;
        (rank - n..rank).collect()
    } else {
        vec![b.rng.below(rank)]
    };
    let dtype = b.random_float();
    let x = b.input(dtype, Shape::new(dims));
    run(b, x, &axes);
}

/// A program over runs of neighbouring columns of what few rows times one or two weights are, as norms of heads are.
pub fn over_columns(b: &mut Builder) -> Option<Item> {
    let length = *b.rng.pick(&[1i64, 2, 3, 8, 16, 24, 32, 40, 64, 80]);
    let rows = *b.rng.pick(&[1i64, 1, 2, 3, 8]);
    let mut last = None;
    for y in products_of_rows(b, rows, length)? {
        let shape =
            Shape::new(vec![rows.into(), b.dims(y.value)[1].div_exact(&length.into())?, length.into()]);
        let mut y = b.view(Op::Reshape(shape), y);
        if b.rng.chance(30) {
            y = random_unary(b, y);
        }
        y = b.tame(y);
        last = run(b, y, &[2]).or(last);
    }
    last
}

/// A program over a remembered value.
pub fn over_existing(b: &mut Builder) -> Option<Item> {
    let x = b.pick(|b, i| b.dtype(i.value).is_float() && !b.dims(i.value).is_empty())?;
    let rank = b.dims(x.value).len();
    run(b, x, &[rank - 1])
}

/// One to three reductions of values of the shape of `x`, each of which later values may use.
fn run(b: &mut Builder, x: Item, axes: &[usize]) -> Option<Item> {
    let shape = b.graph.ty(x.value).shape.clone();
    let mut full = vec![x];
    let mut scalars: Vec<Item> = vec![];
    for _ in 0..b.rng.between(1, 3) {
        for _ in 0..b.rng.below(3) {
            grow(b, &shape, axes, &mut full, &scalars);
        }
        let a = *b.rng.pick(&full);
        let kind = *b.rng.pick(&[
            ReduceKind::Sum,
            ReduceKind::Sum,
            ReduceKind::Max,
            ReduceKind::Min,
            ReduceKind::ArgMax,
        ]);
        let Some(reduced) = reduce_by(b, kind, a, axes) else { continue };
        let reduced = b.push(reduced);
        if kind.is_arg() {
            b.want(reduced.value);
            continue;
        }
        let keepdim = b.view(Op::Reshape(shape.with_ones(axes)), reduced);
        let keepdim = if b.rng.chance(30) { random_unary(b, keepdim) } else { keepdim };
        scalars.push(b.tame(keepdim));
        grow(b, &shape, axes, &mut full, &scalars);
    }
    let last = *full.last()?;
    if b.rng.chance(30) {
        let other = *b.rng.pick(&full);
        b.want(other.value);
    }
    b.want(last.value);
    Some(b.push(last))
}

/// Another value of the full shape.
fn grow(b: &mut Builder, shape: &Shape, axes: &[usize], full: &mut Vec<Item>, scalars: &[Item]) {
    let a = *b.rng.pick(full);
    let result = match b.rng.below(4) {
        0 => random_unary(b, a),
        1 => {
            let other = *b.rng.pick(full);
            random_binary(b, a, other)
        }
        2 if !scalars.is_empty() => {
            let scalar = *b.rng.pick(scalars);
            let spread = b.view(Op::Broadcast(shape.clone()), scalar);
            if b.rng.chance(50) { b.apply(E::Sub, &[a, spread]) } else { random_binary(b, a, spread) }
        }
        _ => {
            // A gain for each element of a row, the same in all rows.
            let others: Vec<usize> = (0..shape.rank()).filter(|i| !axes.contains(i)).collect();
            let gain = b.input(b.dtype(a.value), shape.with_ones(&others));
            let spread = b.view(Op::Broadcast(shape.clone()), gain);
            b.apply(E::Mul, &[a, spread])
        }
    };
    let tamed = b.tame(result);
    full.push(tamed);
}
