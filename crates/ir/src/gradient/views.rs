//! Gradients through views: each element goes back to where it was read.

use super::term::{Build, Passed, Term};
use crate::dim::Dim;
use crate::dtype::DType;
use crate::formula::Formula;
use crate::op::Op;
use crate::shape::Shape;

/// Through a permutation: by its inverse.
pub fn permute<'b>(g: Term<'b>, axes: &[usize]) -> Term<'b> {
    let mut inverse = vec![0; axes.len()];
    for (to, from) in axes.iter().enumerate() {
        inverse[*from] = to;
    }
    g.apply(Op::Permute(inverse))
}

/// Through a slice of `shape`: zeros around it.
pub fn slice<'b>(g: Term<'b>, shape: &Shape, axis: usize, start: &Dim, len: &Dim) -> Term<'b> {
    let after = &(&shape.dims()[axis] - start) - len;
    if after.is_nonnegative() {
        return g.pad(axis, start, &after, 0.0);
    }
    // Only a run knows that the slice fits, and padding must be known not to be negative: read by position.
    let extent = Shape::from(vec![shape.dims()[axis].clone()]);
    let (position, is_in) = inside(g.build(), &extent, 0, start, len);
    let read = g.apply_with(Op::Gather { axis }, &[position]);
    let others: Vec<usize> = (0..shape.rank()).filter(|other| *other != axis).collect();
    let is_in = is_in.reshape(shape.with_ones(&others)).broadcast(shape.clone());
    is_in.select(read, read.filled(0.0))
}

/// Of each element of `shape` its position behind `start` along `axis`, and whether that is below `len`.
pub fn inside<'b>(
    build: &'b Build,
    shape: &Shape,
    axis: usize,
    start: &Dim,
    len: &Dim,
) -> (Term<'b>, Term<'b>) {
    let number = |dim: &Dim| build.dim(dim, DType::U32).broadcast(shape.clone());
    // Before the start it wraps, to a number above every length.
    let position = build.positions(shape, axis, DType::U32) - number(start);
    (position, position.lt(number(len)))
}

/// Through a concatenation: to each operand its part.
pub fn concat<'b>(g: Term<'b>, axis: usize, operands: &[Term<'b>]) -> Passed<'b> {
    let mut start = Dim::zero();
    let mut parts = vec![];
    for operand in operands {
        let len = operand.shape().dims()[axis].clone();
        parts.push(Some(g.slice(axis, &start, &len)));
        start = &start + &len;
    }
    parts
}

/// Through a sum over `axes` of `shape`: the same to all that was added.
pub fn spread<'b>(g: Term<'b>, shape: &Shape, axes: &[usize]) -> Term<'b> {
    g.reshape(shape.with_ones(axes)).broadcast(shape.clone())
}
