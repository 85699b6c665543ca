//! The methods of tensors that there are.

use tallow::DType;

use crate::both;
use crate::inputs::{Input, Layout, SHAPES};
use crate::suite::{Bound, Suite};

/// Every method on every shape, in every layout, of some types.
pub fn all(suite: &mut Suite, dtypes: &[DType]) {
    let mut seed = 1;
    for dtype in dtypes {
        for dims in SHAPES {
            for layout in Layout::ALL {
                seed += 1;
                // Values do not depend on the layout of types that only move: one type has them all.
                if layout != Layout::Contiguous && !matches!(dtype, DType::F32 | DType::U8) {
                    continue;
                }
                let input = Input::new(seed, dims, layout, *dtype, &suite.device);
                shapes(suite, &input);
                strides(suite, &input);
                parts(suite, &input);
                joins(suite, &input);
                lookups(suite, &input);
                order(suite, &input);
                reductions(suite, &input);
                if dtype.is_float() {
                    means(suite, &input);
                    products(suite, &input);
                    crate::nn::all(suite, &input);
                }
            }
        }
    }
    crate::creation::all(suite);
}

fn shapes(s: &mut Suite, a: &Input) {
    both!(s, a, Bound::Exact, |a| a.x.reshape(((),))?);
    both!(s, a, Bound::Exact, |a| a.x.reshape(((), 3))?);
    both!(s, a, Bound::Exact, |a| a.x.reshape((2, (), 2))?);
    both!(s, a, Bound::Exact, |a| a.x.reshape((12,))?);
    both!(s, a, Bound::Exact, |a| a.x.reshape(a.y.shape())?);
    both!(s, a, Bound::Exact, |a| a.x.reshape(&[1, 7][..])?);
    both!(s, a, Bound::Exact, |a| a.x.flatten_all()?);
    both!(s, a, Bound::Exact, |a| a.x.flatten(0, 1)?);
    both!(s, a, Bound::Exact, |a| a.x.flatten(1, 0)?);
    both!(s, a, Bound::Exact, |a| a.x.flatten(D::Minus2, D::Minus1)?);
    both!(s, a, Bound::Exact, |a| a.x.flatten_to(1)?);
    both!(s, a, Bound::Exact, |a| a.x.flatten_from(1)?);
    both!(s, a, Bound::Exact, |a| a.x.t()?);
    both!(s, a, Bound::Exact, |a| a.x.transpose(0, D::Minus1)?);
    both!(s, a, Bound::Exact, |a| a.x.transpose(1, 2)?);
    both!(s, a, Bound::Exact, |a| a.x.permute((1, 0))?);
    both!(s, a, Bound::Exact, |a| a.x.permute((2, 0, 1))?);
    both!(s, a, Bound::Exact, |a| a.x.permute([0usize, 0, 1])?);
    both!(s, a, Bound::Exact, |a| a.x.permute(vec![3usize, 1, 0, 2])?);
    both!(s, a, Bound::Exact, |a| a.x.squeeze(0)?);
    both!(s, a, Bound::Exact, |a| a.x.squeeze(D::Minus1)?);
    both!(s, a, Bound::Exact, |a| a.x.squeeze(1)?);
    both!(s, a, Bound::Exact, |a| a.x.unsqueeze(0)?);
    both!(s, a, Bound::Exact, |a| a.x.unsqueeze(1)?);
    both!(s, a, Bound::Exact, |a| a.x.unsqueeze(D::Minus1)?);
    both!(s, a, Bound::Exact, |a| a.x.unsqueeze(D::Minus2)?);
    both!(s, a, Bound::Exact, |a| a.x.unsqueeze(D::Minus(3))?);
    both!(s, a, Bound::Exact, |a| a.x.unsqueeze(5)?);
    both!(s, a, Bound::Exact, |a| a.x.broadcast_left(2)?);
    both!(s, a, Bound::Exact, |a| a.x.broadcast_left((2, 1))?);
    both!(s, a, Bound::Exact, |a| a.x.broadcast_as((3, 4))?);
    both!(s, a, Bound::Exact, |a| a.x.broadcast_as((2, 2, 3, 4))?);
    both!(s, a, Bound::Exact, |a| a.x.expand((2, 3, 5))?);
    both!(s, a, Bound::Exact, |a| a.x.detach());
    both!(s, a, Bound::Exact, |a| a.x.copy()?);
    both!(s, a, Bound::Exact, |a| a.x.contiguous()?);
    both!(s, a, Bound::Exact, |a| a.x.force_contiguous()?);
    both!(s, a, Bound::Exact, |a| a.x.to_device(device(&a.y))?);
    both!(s, a, Bound::Exact, |a| Tensor::new(a.x.dim(0)? as u32, device(&a.x))?);
    both!(s, a, Bound::Exact, |a| Tensor::new(a.x.dim(D::Minus2)? as u32, device(&a.x))?);
    both!(s, a, Bound::Exact, |a| Tensor::new(a.x.dims2()?.1 as u32, device(&a.x))?);
    both!(s, a, Bound::Exact, |a| Tensor::new(a.x.dims3()?.2 as u32, device(&a.x))?);
    both!(s, a, Bound::Exact, |a| Tensor::new(a.x.dims4()?.3 as u32, device(&a.x))?);
    both!(s, a, Bound::Exact, |a| Tensor::new(a.x.dims1()? as u32, device(&a.x))?);
    both!(s, a, Bound::Exact, |a| Tensor::new(a.x.normalize_axis(-2)? as u32, device(&a.x))?);
    both!(s, a, Bound::Exact, |a| Tensor::new(a.x.normalize_axis(2)? as u32, device(&a.x))?);
    both!(s, a, Bound::Exact, |a| Tensor::new(a.x.rank() as u32, device(&a.x))?);
    both!(s, a, Bound::Exact, |a| Tensor::new(a.y.is_fortran_contiguous() as u8, device(&a.x))?);
    both!(s, a, Bound::Exact, |a| Tensor::new(a.y.is_contiguous() as u8, device(&a.x))?);
    both!(s, a, Bound::Exact, |a| Tensor::new(a.x.elem_count() as u32, device(&a.x))?);
    both!(s, a, Bound::Exact, |a| Tensor::new(a.x.shape().elem_count() as u32, device(&a.x))?);
    both!(s, a, Bound::Exact, |a| numbers(a.x.dims(), device(&a.x))?);
    both!(s, a, Bound::Exact, |a| numbers(a.x.shape().dims(), device(&a.x))?);
    both!(s, a, Bound::Exact, |a| Tensor::zeros(a.x.shape().clone().extend(&[2]), DType::U8, device(&a.x))?);
    both!(s, a, Bound::Exact, |a| Tensor::new((a.x.shape() == a.y.shape()) as u8, device(&a.x))?);
}

/// Views have Candle's strides, although all that is computed lies row-major in memory.
fn strides(s: &mut Suite, a: &Input) {
    both!(s, a, Bound::Exact, |a| layout(&a.x)?);
    both!(s, a, Bound::Exact, |a| layout(&a.x.t()?)?);
    both!(s, a, Bound::Exact, |a| layout(&a.x.transpose(0, D::Minus1)?)?);
    both!(s, a, Bound::Exact, |a| layout(&a.x.permute((1, 2, 0))?)?);
    both!(s, a, Bound::Exact, |a| layout(&a.x.narrow(0, 0, 2)?)?);
    both!(s, a, Bound::Exact, |a| layout(&a.x.narrow(D::Minus1, 1, 1)?)?);
    both!(s, a, Bound::Exact, |a| layout(&a.x.get(1)?)?);
    both!(s, a, Bound::Exact, |a| layout(&a.x.get_on_dim(1, 1)?)?);
    both!(s, a, Bound::Exact, |a| layout(&a.x.i((.., 0))?)?);
    both!(s, a, Bound::Exact, |a| layout(&a.x.chunk(2, 0)?.pop().unwrap_or(a.x.clone()))?);
    both!(s, a, Bound::Exact, |a| layout(&a.x.squeeze(1)?)?);
    both!(s, a, Bound::Exact, |a| layout(&a.x.unsqueeze(0)?)?);
    both!(s, a, Bound::Exact, |a| layout(&a.x.unsqueeze(D::Minus1)?)?);
    both!(s, a, Bound::Exact, |a| layout(&a.x.broadcast_left((2, 1))?)?);
    both!(s, a, Bound::Exact, |a| layout(&a.row.broadcast_as(a.x.shape())?)?);
    both!(s, a, Bound::Exact, |a| layout(&a.x.unfold(1, 2, 1)?)?);
    both!(s, a, Bound::Exact, |a| layout(&a.x.flatten_all()?)?);
    both!(s, a, Bound::Exact, |a| layout(&a.x.reshape(a.y.shape())?)?);
    both!(s, a, Bound::Exact, |a| layout(&a.x.contiguous()?)?);
    both!(s, a, Bound::Exact, |a| layout(&a.x.t()?.contiguous()?)?);
    both!(s, a, Bound::Exact, |a| layout(&a.x.t()?.force_contiguous()?.t()?)?);
    both!(s, a, Bound::Exact, |a| layout(&a.x.copy()?)?);
    both!(s, a, Bound::Exact, |a| layout(&a.x.add(&a.y)?)?);
    both!(s, a, Bound::Exact, |a| layout(&a.x.to_dtype(DType::F64)?)?);
    both!(s, a, Bound::Exact, |a| layout(&a.mask.where_cond(&a.x, &a.y)?)?);
    both!(s, a, Bound::Exact, |a| layout(&a.y.matmul(&a.y.t()?)?)?);
    both!(s, a, Bound::Exact, |a| layout(&a.y.sum_keepdim(0)?)?);
}

fn parts(s: &mut Suite, a: &Input) {
    both!(s, a, Bound::Exact, |a| a.x.narrow(0, 1, 1)?);
    both!(s, a, Bound::Exact, |a| a.x.narrow(D::Minus1, 0, 1)?);
    both!(s, a, Bound::Exact, |a| a.x.narrow(1, 1, 2)?);
    both!(s, a, Bound::Exact, |a| a.x.narrow(0, 0, 0)?);
    both!(s, a, Bound::Exact, |a| a.x.narrow(0, 5, 0)?);
    both!(s, a, Bound::Exact, |a| a.x.narrow(0, 0, usize::MAX)?);
    both!(s, a, Bound::Exact, |a| a.x.get(0)?);
    both!(s, a, Bound::Exact, |a| a.x.get(2)?);
    both!(s, a, Bound::Exact, |a| a.x.get_on_dim(1, 0)?);
    both!(s, a, Bound::Exact, |a| a.x.get_on_dim(D::Minus1, 3)?);
    both!(s, a, Bound::Exact, |a| a.x.chunk(2, 0)?);
    both!(s, a, Bound::Exact, |a| a.x.chunk(3, D::Minus1)?);
    both!(s, a, Bound::Exact, |a| a.x.chunk(0, 0)?);
    both!(s, a, Bound::Exact, |a| a.x.i(0)?);
    both!(s, a, Bound::Exact, |a| a.x.i(2)?);
    both!(s, a, Bound::Exact, |a| a.x.i(1..)?);
    both!(s, a, Bound::Exact, |a| a.x.i(..=1)?);
    both!(s, a, Bound::Exact, |a| a.x.i((.., 0))?);
    both!(s, a, Bound::Exact, |a| a.x.i((0, ..2))?);
    both!(s, a, Bound::Exact, |a| a.x.i((.., 1..3, 0))?);
    both!(s, a, Bound::Exact, |a| a.x.i((1, 0, 2..))?);
    both!(s, a, Bound::Exact, |a| a.x.i((0, 0, .., 2))?);
    #[allow(clippy::reversed_empty_ranges)]
    {
        both!(s, a, Bound::Exact, |a| a.x.i(1..0)?);
    }
    both!(s, a, Bound::Exact, |a| a.y.i(&a.ids)?);
    both!(s, a, Bound::Exact, |a| a.y.i((.., &a.ids))?);
    both!(s, a, Bound::Exact, |a| a.y.i((.., vec![0u32, 2, 2]))?);
    both!(s, a, Bound::Exact, |a| a.y.i(&[1u32, 0][..])?);
    both!(s, a, Bound::Exact, more: "Candle wants the tensor contiguous", |a| a.x.i(&a.ids)?);
    both!(s, a, Bound::Exact, more: "Candle wants the tensor contiguous", |a| a.x.flip(&[0])?);
    both!(s, a, Bound::Exact, |a| a.x.contiguous()?.flip(&[0])?);
    both!(s, a, Bound::Exact, |a| a.y.flip(&[1, 0])?);
    both!(s, a, Bound::Exact, more: "Candle panics on nothing", |a| a.x.roll(1, 0)?);
    both!(s, a, Bound::Exact, more: "Candle panics on nothing", |a| a.x.roll(-2, D::Minus1)?);
    both!(s, a, Bound::Exact, more: "Candle panics on nothing", |a| a.x.roll(100, 1)?);
}

fn joins(s: &mut Suite, a: &Input) {
    both!(s, a, Bound::Exact, |a| Tensor::cat(&[&a.x, &a.y], 0)?);
    both!(s, a, Bound::Exact, |a| Tensor::cat(&[&a.x, &a.y, &a.x], D::Minus1)?);
    both!(s, a, Bound::Exact, |a| Tensor::cat(&[&a.x, &a.y], 1)?);
    both!(s, a, Bound::Exact, |a| Tensor::cat(&[&a.x], 9)?);
    both!(s, a, Bound::Exact, |a| Tensor::cat(&[&a.x, &a.row], 0)?);
    both!(s, a, Bound::Exact, |a| Tensor::cat(&[&a.x, &a.mask], 0)?);
    both!(s, a, Bound::Exact, |a| Tensor::stack(&[&a.x, &a.y], 0)?);
    both!(s, a, Bound::Exact, |a| Tensor::stack(&[&a.x, &a.y], D::Minus1)?);
    both!(s, a, Bound::Exact, |a| Tensor::stack(&[&a.x, &a.y], 2)?);
    both!(s, a, Bound::Exact, |a| Tensor::stack(&[&a.x, &a.row], 0)?);
    both!(s, a, Bound::Exact, |_a| Tensor::stack(&[] as &[Tensor], 0)?);
    both!(s, a, Bound::Exact, |a| a.x.repeat(2)?);
    both!(s, a, Bound::Exact, |a| a.x.repeat((2, 1, 3))?);
    both!(s, a, Bound::Exact, |a| a.x.repeat((1, 0))?);
    both!(s, a, Bound::Exact, |a| a.x.pad_with_zeros(0, 1, 2)?);
    both!(s, a, Bound::Exact, |a| a.x.pad_with_zeros(D::Minus1, 0, 1)?);
    both!(s, a, Bound::Exact, |a| a.x.pad_with_zeros(1, 2, 0)?);
    both!(s, a, Bound::Exact, |a| a.x.pad_with_zeros(9, 0, 0)?);
    both!(s, a, Bound::Exact, |a| a.x.pad_with_same(0, 1, 2)?);
    both!(s, a, Bound::Exact, |a| a.x.pad_with_same(D::Minus1, 2, 0)?);
    both!(s, a, Bound::Exact, |a| a.x.pad_with_same(1, 0, 3)?);
    both!(s, a, Bound::Exact, |a| a.x.pad_with_same(9, 0, 0)?);
    both!(s, a, Bound::Exact, |a| a.x.slice_scatter(&a.y.narrow(0, 0, 1)?, 0, 1)?);
    both!(s, a, Bound::Exact, |a| a.x.slice_scatter(&a.y.narrow(1, 0, 2)?, 1, 1)?);
    both!(s, a, Bound::Exact, |a| a.x.slice_scatter0(&a.y.narrow(0, 0, 1)?, 0)?);
    both!(s, a, Bound::Exact, |a| a.x.slice_scatter(&a.row, 0, 0)?);
    both!(s, a, Bound::Exact, |a| a.x.slice_assign(&[0..1], &a.y.narrow(0, 0, 1)?)?);
    both!(s, a, Bound::Exact, |a| a.x.slice_assign(&[1..2, 1..3], &a.y.i((..1, ..2))?)?);
    both!(s, a, Bound::Exact, |a| a.x.slice_assign(&[1..3, 0..2], &a.y.i((..1, ..2))?)?);
    both!(s, a, Bound::Exact, |a| a.x.slice_assign(&[0..1, 1..3, 2..5], &a.y.i((..1, ..2, 2..))?)?);
    both!(s, a, Bound::Exact, |a| a.x.zeros_like()?);
    both!(s, a, Bound::Exact, |a| a.x.ones_like()?);
    both!(s, a, Bound::Exact, |a| Tensor::meshgrid(&[&a.x, &a.y], true)?);
    both!(s, a, Bound::Exact, |a| Tensor::meshgrid(&[&a.row, &a.x, &a.y], false)?);
    both!(s, a, Bound::Exact, |a| Tensor::meshgrid(&[&a.row], false)?);
}

/// Scans, sorting and scatters. Sums of the inputs are exact in every type, so their order does not show.
fn order(s: &mut Suite, a: &Input) {
    both!(s, a, Bound::Exact, more: "a scan takes every type and no elements", |a| a.x.cumsum(0)?);
    both!(s, a, Bound::Exact, more: "a scan takes every type and no elements", |a| a.x.cumsum(D::Minus1)?);
    // The order of equal elements is ours alone; the elements in order are the same.
    both!(s, a, Bound::Exact, more: "any layout, no elements", |a| a.x.sort_last_dim(true)?.0);
    both!(s, a, Bound::Exact, more: "any layout, no elements", |a| a.x.sort_last_dim(false)?.0);
    both!(s, a, Bound::Exact, more: "any layout, no elements", |a| a.x.contiguous()?.scatter_add(&a.first, &a.y.contiguous()?, 0)?);
    both!(s, a, Bound::Exact, more: "any layout, no elements", |a| a.x.contiguous()?.scatter_add(&a.last, &a.y.contiguous()?, D::Minus1)?);
    both!(s, a, Bound::Exact, more: "any layout, no elements", |a| a.x.contiguous()?.scatter(&a.first, &a.y.contiguous()?, 0)?);
    both!(s, a, Bound::Exact, more: "any layout, no elements", |a| a.x.contiguous()?.scatter(&a.last, &a.y.contiguous()?, D::Minus1)?);
    both!(s, a, Bound::Exact, more: "any layout, no elements", |a| a.x.contiguous()?.index_add(&a.ids, &a.y.index_select(&a.ids, 0)?, 0)?);
    both!(s, a, Bound::Exact, more: "an index out of range writes nothing", |a| a.x.scatter_add(&a.row, &a.y, 0)?);
    both!(s, a, Bound::Exact, more: "an index out of range writes nothing", |a| a.x.index_add(&a.mask, &a.y, 0)?);
}

fn lookups(s: &mut Suite, a: &Input) {
    both!(s, a, Bound::Exact, |a| a.x.contiguous()?.index_select(&a.ids, 0)?);
    both!(s, a, Bound::Exact, |a| a.y.index_select(&a.ids, D::Minus1)?);
    both!(s, a, Bound::Exact, |a| a.y.index_select(&a.ids, 1)?);
    both!(s, a, Bound::Exact, |a| a.y.index_select(&a.first, 0)?);
    both!(s, a, Bound::Exact, |a| a.y.embedding(&a.ids)?);
    both!(s, a, Bound::Exact, |a| a.x.contiguous()?.gather(&a.first, 0)?);
    both!(s, a, Bound::Exact, |a| a.y.gather(&a.last, D::Minus1)?);
    both!(s, a, Bound::Exact, |a| a.y.gather(&a.last.narrow(D::Minus1, 0, 2)?.contiguous()?, D::Minus1)?);
    both!(s, a, Bound::Exact, |a| a.y.gather(&a.ids, 0)?);
    both!(s, a, Bound::Exact, |a| a.mask.where_cond(&a.x, &a.y)?);
    both!(s, a, Bound::Exact, |a| a.first.where_cond(&a.x, &a.y)?);
    both!(s, a, Bound::Exact, |a| a.mask.where_cond(&a.x, &a.row)?);
    both!(s, a, Bound::Exact, |a| a.x.eq(&a.y)?);
    both!(s, a, Bound::Exact, |a| a.x.lt(2u32)?);
    both!(s, a, Bound::Exact, |a| a.x.broadcast_ge(&a.row)?);
    both!(s, a, Bound::Exact, |a| a.x.maximum(&a.y)?);
    both!(s, a, Bound::Exact, |a| a.x.broadcast_minimum(&a.row)?);
    both!(s, a, Bound::Exact, |a| a.x.clamp(1u8, 3u8)?);
    both!(s, a, Bound::Exact, |a| a.x.to_dtype(DType::F32)?);
    both!(s, a, Bound::Exact, |a| a.x.to_dtype(DType::I64)?);
    both!(s, a, Bound::Exact, |a| a.x.add(&a.row)?);
    both!(s, a, Bound::Exact, less: "Candle checks no types where there is nothing", |a| a.x.broadcast_add(&a.mask)?);
}

fn reductions(s: &mut Suite, a: &Input) {
    // The inputs are such that every sum of at most 30 of them is exact in every type.
    let sums = Bound::Exact;
    both!(s, a, sums, |a| a.x.sum(0)?);
    both!(s, a, sums, |a| a.x.sum(D::Minus1)?);
    both!(s, a, sums, |a| a.x.sum((0, 1))?);
    both!(s, a, sums, |a| a.x.sum((0, D::Minus1))?);
    both!(s, a, sums, |a| a.x.sum(())?);
    both!(s, a, sums, |a| a.x.sum(vec![1usize, 0])?);
    both!(s, a, sums, |a| a.x.sum([7usize])?);
    both!(s, a, sums, |a| a.x.sum_keepdim(1)?);
    both!(s, a, sums, |a| a.x.sum_keepdim((0, 2))?);
    both!(s, a, sums, |a| a.x.sum_all()?);
    both!(s, a, Bound::Exact, more: "no rows, no largest elements", |a| a.x.max(0)?);
    both!(s, a, Bound::Exact, more: "no rows, no smallest elements", |a| a.x.min(D::Minus1)?);
    both!(s, a, Bound::Exact, more: "no rows, no largest elements", |a| a.x.max_keepdim(1)?);
    both!(s, a, Bound::Exact, more: "no rows, no smallest elements", |a| a.x.min_keepdim(0)?);
    both!(s, a, Bound::Exact, more: "no rows, no largest elements", |a| a.x.argmax(D::Minus1)?);
    both!(s, a, Bound::Exact, more: "no rows, no smallest elements", |a| a.x.argmin(0)?);
    both!(s, a, Bound::Exact, more: "no rows, no largest elements", |a| a.x.argmax_keepdim(0)?);
    both!(s, a, Bound::Exact, more: "no rows, no smallest elements", |a| a.x.argmin_keepdim(D::Minus2)?);
    both!(s, a, Bound::Exact, |a| a.x.max_all()?);
    both!(s, a, Bound::Exact, |a| a.x.min_all()?);
}

fn means(s: &mut Suite, a: &Input) {
    // The sum is exact. The divisor's inverse and the product are rounded once each, on either side.
    let means = Bound::Steps(2.0);
    both!(s, a, means, |a| a.x.mean(0)?);
    both!(s, a, means, |a| a.x.mean_keepdim(D::Minus1)?);
    both!(s, a, means, |a| a.x.mean((0, 1))?);
    both!(s, a, means, |a| a.x.mean_all()?);
    // The mean is off by up to 4 steps (it is at most 4), so each of n differences, which are at most 8, and
    // each square by 2 * 8 * 4 = 64 steps; their sum, divided by n - 1, by twice that at most, and n roundings
    // of the sum add 30 half steps of it.
    let variances = Bound::Steps(150.0);
    both!(s, a, variances, less: "nothing has no variance", |a| a.x.var(D::Minus1)?);
    both!(s, a, variances, less: "nothing has no variance", |a| a.x.var_keepdim(1)?);
    // Positive terms: 7 axes' worth of 30 roundings by half a step each, halved by the root; and its own.
    both!(s, a, Bound::Steps(16.0), |a| a.x.norm()?);
    // Exponentials of at most 1 by a step each and up to 30 half steps of their sum, which is at least 1 and
    // whose logarithm has the same error; then two roundings of a sum of at most 8.
    let logs = Bound::Steps(34.0);
    both!(s, a, logs, more: "no rows", |a| a.x.log_sum_exp(0)?);
    both!(s, a, logs, more: "no rows", |a| a.x.log_sum_exp((1, D::Minus1))?);
    both!(s, a, logs, more: "no rows", |a| a.x.log_sum_exp(())?);
    both!(s, a, Bound::Steps(2.0), |a| a.x.round_to(1)?);
    both!(s, a, Bound::Steps(2.0), |a| a.x.affine(0.5, 1.25)?);
}

fn products(s: &mut Suite, a: &Input) {
    // Up to 7 products of 12 bits have an exact sum in f32, in which 16-bit types are summed; it is rounded once.
    let sums = Bound::Steps(1.0);
    both!(s, a, sums, |a| a.x.matmul(&a.y.t()?)?);
    both!(s, a, sums, |a| a.x.matmul(&a.y)?);
    both!(s, a, sums, |a| a.x.broadcast_matmul(&a.y.flatten_to(D::Minus2)?.t()?)?);
    both!(s, a, sums, |a| a.x.mv(&a.row)?);
    // Candle rounds each of up to 6 sums of at most 112 in 16-bit types, by half a step.
    both!(s, a, Bound::Steps(336.0), |a| a.x.dot(&a.row)?);
}
