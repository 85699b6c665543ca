//! Gradients through indices: gathers, scatters, windows and updates of states.

use std::ops::Rem;

use super::term::{Passed, Term};
use super::views::inside;
use crate::dim::Dim;
use crate::dtype::DType;
use crate::formula::Formula;
use crate::op::Op;
use crate::shape::Shape;

/// Of the source of a gather along `axis`, of extents `shape`: each row is added at its index, in the order of the indices.
/// Indices beyond the axis read its last element, so that is where they add.
pub fn gather<'b>(g: Term<'b>, shape: &Shape, axis: usize, indices: Term<'b>) -> Term<'b> {
    let (dims, build) = (shape.dims(), g.build());
    let product = |dims: &[Dim]| dims.iter().fold(Dim::one(), |n, d| &n * d);
    let (outer, inner, count) = (product(&dims[..axis]), product(&dims[axis + 1..]), indices.shape().numel());
    let last = build.dim(&(&dims[axis] - &Dim::one()), DType::U32).broadcast(vec![count.clone()]);
    let index = indices.reshape(vec![count.clone()]).minimum(last);
    let zeros = build.number(g.dtype(), 0.0);
    let zeros = zeros.broadcast(vec![outer.clone(), dims[axis].clone(), inner.clone()]);
    let rows = g.reshape(vec![outer, count, inner]);
    zeros.apply_with(Op::IndexAdd, &[index, rows]).reshape(shape.clone())
}

/// Of an indexed addition: the target's is that of the result; a row's is that of the row where it was added, and 0 if it
/// was added nowhere.
pub fn index_add<'b>(g: Term<'b>, operands: &[Term<'b>]) -> Passed<'b> {
    let (indices, source) = (operands[1], operands[2].shape());
    let rows = g.build().dim(&g.shape().dims()[1], DType::U32).broadcast(indices.shape());
    let read = g.apply_with(Op::Gather { axis: 1 }, &[indices]);
    let added = indices.lt(rows).reshape(source.with_ones(&[0, 2])).broadcast(source);
    vec![Some(g), None, Some(added.select(read, read.filled(0.0)))]
}

/// Of a scatter that adds: the target's is that of the result; an element's is that of the place where it was added, and 0
/// if it was added nowhere.
pub fn scatter_add<'b>(g: Term<'b>, operands: &[Term<'b>]) -> Passed<'b> {
    let (target, indices) = (operands[0], operands[1]);
    let len = g.build().dim(&target.shape().dims()[0], DType::U32).broadcast(indices.shape());
    let read = g.apply_with(Op::Gather { axis: 0 }, &[indices]);
    let source = indices.lt(len).select(read, read.filled(0.0));
    vec![Some(g), None, Some(source)]
}

/// Of an update that writes `source` at `offsets`: the source's is what lies there, the old state's is 0 there.
pub fn update<'b>(g: Term<'b>, source: Term<'b>, offsets: &[Dim]) -> Passed<'b> {
    let (extents, written) = (g.shape(), source.shape());
    let mut part = g;
    let mut is_written = g.build().number(DType::U8, 1.0).broadcast(extents.clone());
    for (axis, offset) in offsets.iter().enumerate() {
        let len = &written.dims()[axis];
        part = part.slice(axis, offset, len);
        if extents.dims()[axis] != *len {
            is_written = is_written.and(inside(g.build(), &extents, axis, offset, len).1);
        }
    }
    vec![Some(is_written.select(g.filled(0.0), g)), Some(part)]
}

/// Of windows over `axis` of `shape`: an element is the sum over the windows that it lies in.
///
/// Element `i` is number `k` of window `o` if `i = o * stride + k * dilation`; so for each `k` it lies in one window at
/// most, whose number is found by division. The sum over `k` reads, no address is written twice.
///
/// # Errors
/// When the axis is symbolic.
pub fn window<'b>(g: Term<'b>, shape: &Shape, axis: usize, window: [usize; 3]) -> Result<Term<'b>, String> {
    let [size, stride, dilation] = window;
    let len = shape.dims()[axis].clone();
    let windows = g.shape().dims()[axis].clone();
    if len.as_const().is_none() {
        return Err(format!("axis {axis} of {shape} is symbolic, and windows slide along it"));
    }
    let joined = |count: Dim| {
        let dims = g.shape();
        Shape::from([&dims.dims()[..axis], &[count], &dims.dims()[axis + 2..]].concat())
    };
    let covered = &windows * &Dim::from(size);
    let flat = g.reshape(joined(covered.clone()));
    if stride == size && dilation == 1 {
        // They touch and do not overlap.
        return Ok(flat.pad(axis, &Dim::zero(), &(&len - &covered), 0.0));
    }
    let build = g.build();
    let places = Shape::from(vec![len.clone(), Dim::from(size)]);
    let number = |n: &Dim| build.dim(n, DType::U32).broadcast(places.clone());
    let element = build.positions(&places, 0, DType::U32);
    let k = build.positions(&places, 1, DType::U32);
    let reach = k * number(&Dim::from(dilation));
    let start = element - reach;
    let by = number(&Dim::from(stride));
    let index = start / by;
    let is_in = reach.le(element).and(start.rem(by).is(0.0)).and(index.lt(number(&windows)));
    // What lies in no window reads anything: it is not used.
    let read = flat.apply_with(Op::Gather { axis }, &[index * number(&Dim::from(size)) + k]);
    let mut lifted = vec![Dim::one(); read.shape().rank()];
    (lifted[axis], lifted[axis + 1]) = (len, Dim::from(size));
    let is_in = is_in.reshape(lifted).broadcast(read.shape());
    let summed = is_in.select(read, read.filled(0.0)).sum_keepdim(&[axis + 1]);
    Ok(summed.reshape(shape.clone()))
}
