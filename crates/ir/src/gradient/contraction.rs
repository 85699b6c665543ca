//! Gradients of matrix products.

use super::term::{Passed, Term};
use crate::dim::Dim;
use crate::op::Op;

/// `y = a b`: `da = g b^T`, `db = a^T g`. Where a batch axis repeats an operand, its gradient is the sum over that axis, which
/// becomes a part of the inner extent: one product, however many batches, and no partial sums in memory.
pub fn matmul<'b>(g: Term<'b>, a: Term<'b>, b: Term<'b>) -> Passed<'b> {
    let rank = g.shape().rank();
    let (rows, columns) = (rank - 2, rank - 1);
    let of_a = repeated(a, g);
    let left = joined(g, &of_a, columns).matmul(joined(b, &of_a, columns).transposed());
    let of_b = repeated(b, g);
    let right = joined(a, &of_b, rows).transposed().matmul(joined(g, &of_b, rows));
    vec![Some(left.reshape(a.shape())), Some(right.reshape(b.shape()))]
}

/// The batch axes along which an operand of a product is repeated.
fn repeated(operand: Term<'_>, product: Term<'_>) -> Vec<usize> {
    let (have, want) = (operand.shape(), product.shape());
    (0..want.rank() - 2).filter(|axis| have.dims()[*axis] != want.dims()[*axis]).collect()
}

/// The term with these batch axes joined to one of its last two, in front of it.
fn joined<'b>(x: Term<'b>, axes: &[usize], to: usize) -> Term<'b> {
    if axes.is_empty() {
        return x;
    }
    let shape = x.shape();
    let dims = shape.dims();
    let others = (0..to).filter(|axis| !axes.contains(axis));
    let order: Vec<usize> = others.chain(axes.iter().copied()).chain(to..dims.len()).collect();
    let product = axes.iter().fold(dims[to].clone(), |n, axis| &n * &dims[*axis]);
    let mut result: Vec<Dim> = vec![];
    for axis in order.iter().filter(|axis| !axes.contains(axis)) {
        result.push(if *axis == to { product.clone() } else { dims[*axis].clone() });
    }
    let in_place = order.iter().enumerate().all(|(at, axis)| at == *axis);
    let moved = if in_place { x } else { x.apply(Op::Permute(order)) };
    moved.reshape(result)
}
