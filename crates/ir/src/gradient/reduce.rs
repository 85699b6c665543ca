//! Gradients of products and extrema over axes, and of scans.

use super::term::{Passed, Term, wide};
use super::views::{permute, spread};
use crate::dim::Dim;
use crate::dtype::DType;
use crate::formula::Formula;
use crate::op::{Op, ReduceKind, ScanKind};

/// Of a product over axes: each element is multiplied by the product of the others, which is that of those before it and
/// that of those behind it. Dividing the product by the element would be NaN at 0.
pub fn product<'b>(g: Term<'b>, x: Term<'b>, axes: &[usize]) -> Term<'b> {
    let shape = x.shape();
    // The reduced axes behind the others, as one.
    let others = (0..shape.rank()).filter(|axis| !axes.contains(axis));
    let order: Vec<usize> = others.chain(axes.iter().copied()).collect();
    let moved: Vec<Dim> = order.iter().map(|axis| shape.dims()[*axis].clone()).collect();
    let lead = shape.rank() - axes.len();
    let count = moved[lead..].iter().fold(Dim::one(), |n, d| &n * d);
    let rows: Vec<Dim> = moved[..lead].iter().cloned().chain([count.clone()]).collect();
    let flat = x.apply(Op::Permute(order.clone())).reshape(rows.clone());
    let before = exclusive_product(flat, lead, &count);
    let reversed = Op::Flip { axis: lead };
    let behind = exclusive_product(flat.apply(reversed.clone()), lead, &count).apply(reversed);
    let of_others = permute((before * behind).reshape(moved), &order);
    spread(g, &shape, axes).times(of_others)
}

/// Products of the elements before each one, 1 for the first.
fn exclusive_product<'b>(x: Term<'b>, axis: usize, count: &Dim) -> Term<'b> {
    let scanned = x.apply(Op::Scan { kind: ScanKind::Prod, axis, part: None });
    scanned.pad(axis, &Dim::one(), &Dim::zero(), 1.0).slice(axis, &Dim::zero(), count)
}

/// Of the largest or smallest element of a row, whose position `position` finds: equal ones share it.
///
/// A kernel that computes `x` again need not round it as the result was rounded: 16-bit floats stay in 32 bits, products
/// and sums may become one operation. Then no element is equal to the result. Its position is right in any case.
pub fn extremum<'b>(
    g: Term<'b>,
    x: Term<'b>,
    result: Term<'b>,
    position: ReduceKind,
    axes: &[usize],
) -> Term<'b> {
    let shape = x.shape();
    let first = x.apply(Op::Reduce { kind: position, axes: axes.to_vec() });
    let is_first = positions(x, axes).equals(spread(first, &shape, axes));
    let is_it = x.equals(spread(result, &shape, axes)).or(is_first);
    // Counted in 32 bits: f16 has no 2049.
    let count = is_it.cast(wide(g.dtype())).sum_keepdim(axes).cast(g.dtype());
    let share = g.reshape(shape.with_ones(axes)).over(count).broadcast(shape);
    is_it.select(share, share.filled(0.0))
}

/// The row-major position of each element of `x` among those that are reduced over `axes`, which ascend.
fn positions<'b>(x: Term<'b>, axes: &[usize]) -> Term<'b> {
    let (shape, build) = (x.shape(), x.build());
    let number = |axis: &usize| build.positions(&shape, *axis, DType::U32);
    let joined = |sum: Term<'b>, axis: &usize| {
        let extent = build.dim(&shape.dims()[*axis], DType::U32).broadcast(shape.clone());
        sum * extent + number(axis)
    };
    match axes.split_first() {
        Some((first, rest)) => rest.iter().fold(number(first), joined),
        None => build.number(DType::U32, 0.0).broadcast(shape.clone()),
    }
}

/// Of a running sum: an element is part of all sums from its own on.
pub fn cumulative_sum<'b>(g: Term<'b>, axis: usize) -> Term<'b> {
    let reversed = Op::Flip { axis };
    g.apply(reversed.clone()).apply(Op::Scan { kind: ScanKind::Sum, axis, part: None }).apply(reversed)
}

/// Of a running product `y`: `dx_j = sum_{i >= j} g_i y_i / x_j`.
///
/// From the first zero on all `y` are 0. Elements before it are as above; those behind it have the gradient 0; the zero
/// itself, at `z`, has `sum_{i >= z} g_i` times the product of all `x` up to `i` but this one, which is what a scan gives
/// with 1 in its place.
pub fn cumulative_product<'b>(g: Term<'b>, x: Term<'b>, y: Term<'b>, axis: usize) -> Term<'b> {
    let is_zero = x.is(0.0);
    let count = cumulative(is_zero.cast(DType::U32), ScanKind::Sum, axis);
    let is_first = is_zero.and(count.is(1.0));
    let without = cumulative(is_first.select(x.filled(1.0), x), ScanKind::Prod, axis);
    let of_first = cumulative_sum(g * without, axis);
    let of_others = cumulative_sum(g * y, axis).over(x);
    let zero = x.filled(0.0);
    is_first.select(of_first, count.is(0.0).select(of_others, zero))
}

/// Of a linear recurrence `h_t = a_t h_{t-1} + b_t` with `h_0 = b_0`: `db_t = g_t + a_{t+1} db_{t+1}`, which is one from the
/// last element to the first, and `da_t = db_t h_{t-1}`, 0 for the first element.
pub fn linear_recurrence<'b>(g: Term<'b>, a: Term<'b>, h: Term<'b>, axis: usize) -> Passed<'b> {
    let reversed = Op::Flip { axis };
    let count = a.shape().dims()[axis].clone();
    let preceding =
        |x: Term<'b>| x.pad(axis, &Dim::one(), &Dim::zero(), 0.0).slice(axis, &Dim::zero(), &count);
    let following = preceding(a.apply(reversed.clone()));
    let scan = Op::Scan { kind: ScanKind::Linear, axis, part: None };
    let db = following.apply_with(scan, &[g.apply(reversed.clone())]).apply(reversed);
    vec![Some(db * preceding(h)), Some(db)]
}

fn cumulative<'b>(x: Term<'b>, kind: ScanKind, axis: usize) -> Term<'b> {
    x.apply(Op::Scan { kind, axis, part: None })
}
