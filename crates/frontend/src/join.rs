//! Methods that put tensors together: one after the other, repeated, padded, one written into another.

use std::ops::{Bound, RangeBounds};

use tallow_ir::{Op, Scalar};

use crate::error::{Error, Result};
use crate::shape::{Axis, Extent, IntoShape};
use crate::tensor::Tensor;

impl Tensor {
    /// Tensors one after the other along an axis.
    ///
    /// # Errors
    /// When there are none, or they differ in type, device, rank or another extent.
    pub fn cat<T: AsRef<Tensor>>(tensors: &[T], axis: impl Axis) -> Result<Tensor> {
        let all: Vec<&Tensor> = tensors.iter().map(AsRef::as_ref).collect();
        let Some((first, rest)) = all.split_first() else {
            return Err(Error::OpRequiresAtLeastOneTensor { op: "cat" });
        };
        if rest.is_empty() {
            return Ok((*first).clone());
        }
        let axis = axis.of(first.sym_shape(), "cat")?;
        for (n, other) in (2..).zip(rest) {
            first.same_dtype("cat", other)?;
            if other.rank() != first.rank() {
                let (got, shape) = (other.rank(), other.sym_shape().clone());
                return Err(Error::UnexpectedNumberOfDims { op: "cat", expected: first.rank(), got, shape });
            }
            let mut pairs = first.sym_dims().iter().zip(other.sym_dims()).enumerate();
            if let Some((dim, _)) = pairs.find(|(dim, (a, b))| *dim != axis && a != b) {
                let (first_shape, nth_shape) = (first.sym_shape().clone(), other.sym_shape().clone());
                return Err(Error::ShapeMismatchCat { dim, first_shape, n, nth_shape });
            }
        }
        Tensor::of_op(Op::Concat { axis }, &all, first.device())
    }

    /// Tensors of one shape along a new axis.
    ///
    /// # Errors
    /// When there are none, or they differ in type, device or shape.
    pub fn stack<T: AsRef<Tensor>>(tensors: &[T], axis: impl Axis) -> Result<Tensor> {
        let Some(first) = tensors.first().map(AsRef::as_ref) else {
            return Err(Error::OpRequiresAtLeastOneTensor { op: "stack" });
        };
        if let Some(other) = tensors.iter().map(AsRef::as_ref).find(|t| t.sym_shape() != first.sym_shape()) {
            let (lhs, rhs) = (first.sym_shape().clone(), other.sym_shape().clone());
            return Err(Error::ShapeMismatchBinaryOp { op: "stack", lhs, rhs });
        }
        let lift = |tensor: &T| tensor.as_ref().unsqueeze(axis);
        let lifted: Vec<Tensor> = tensors.iter().map(lift).collect::<Result<_>>()?;
        // Counted in the result, as `unsqueeze` counts.
        Tensor::cat(&lifted, axis.of(lifted[0].sym_shape(), "stack")?)
    }

    /// The tensor so many times along each axis, e.g. `(2, 1)`: counts belong to the first axes; where there
    /// are more counts than axes, axes of extent 1 are added in front.
    ///
    /// # Errors
    /// When the counts are symbolic or the result is too large.
    pub fn repeat(&self, counts: impl IntoShape) -> Result<Tensor> {
        let counts = counts.into_shape();
        let mut out = self.clone();
        while out.rank() < counts.rank() {
            out = out.unsqueeze(0)?;
        }
        let counts = counts.dims().iter().enumerate().filter(|(_, count)| !count.is(1));
        for (axis, count) in counts {
            let mut spread = out.sym_dims().to_vec();
            let mut repeated = spread.clone();
            repeated[axis] = &repeated[axis] * count;
            spread.insert(axis, count.clone());
            out = out.unsqueeze(axis)?.broadcast_as(spread)?.reshape(repeated)?;
        }
        Ok(out)
    }

    /// Each element of an axis `count` times in a row.
    ///
    /// # Errors
    /// When the axis does not exist or the result is too large.
    pub fn repeat_interleave(&self, count: usize, axis: impl Axis) -> Result<Tensor> {
        let axis = axis.of(self.sym_shape(), "repeat_interleave")?;
        let mut spread = self.sym_dims().to_vec();
        let mut repeated = spread.clone();
        repeated[axis] = &repeated[axis] * &count.into();
        spread.insert(axis + 1, count.into());
        self.unsqueeze(axis + 1)?.broadcast_as(spread)?.reshape(repeated)
    }

    /// Moved along an axis by `shift` places; what leaves at one end enters at the other.
    ///
    /// # Errors
    /// When the axis does not exist or is symbolic.
    pub fn roll(&self, shift: i32, axis: impl Axis) -> Result<Tensor> {
        let axis = axis.of(self.sym_shape(), "roll")?;
        let extent = self.const_dim(axis)?;
        let shift = i64::from(shift).checked_rem_euclid(extent as i64).unwrap_or(0) as usize;
        if shift == 0 {
            return Ok(self.clone());
        }
        let (front, back) = (extent - shift, shift);
        Tensor::cat(&[self.narrow(axis, front, back)?, self.narrow(axis, 0, front)?], axis)
    }

    /// Zeros before and after along an axis.
    ///
    /// # Errors
    /// When the axis does not exist.
    pub fn pad_with_zeros(&self, axis: impl Axis, before: impl Extent, after: impl Extent) -> Result<Tensor> {
        let (before, after) = (before.extent(), after.extent());
        if before.is(0) && after.is(0) {
            return Ok(self.clone());
        }
        let axis = axis.of(self.sym_shape(), "pad_with_zeros")?;
        let value = Scalar::of(self.dtype(), 0.0);
        self.unary(Op::Pad { axis, before, after, value })
    }

    /// The first element of an axis `before` times more, the last one `after` times more.
    ///
    /// # Errors
    /// When the axis does not exist or has no element.
    pub fn pad_with_same(&self, axis: impl Axis, before: usize, after: usize) -> Result<Tensor> {
        if before == 0 && after == 0 {
            return Ok(self.clone());
        }
        let axis = axis.of(self.sym_shape(), "pad_with_same")?;
        let extent = self.const_dim(axis)?;
        if self.sym_dims().iter().any(|d| d.is(0)) {
            return Err(Error::EmptyTensor { op: "pad_with_same", shape: self.sym_shape().clone() });
        }
        let copies = |at: usize, count: usize| {
            let mut dims = self.sym_dims().to_vec();
            dims[axis] = count.into();
            self.narrow(axis, at, 1)?.broadcast_as(dims)
        };
        let mut parts = vec![self.clone()];
        if before > 0 {
            parts.insert(0, copies(0, before)?);
        }
        if after > 0 {
            parts.push(copies(extent - 1, after)?);
        }
        Tensor::cat(&parts, axis)
    }

    /// This tensor with `src` in place of as many elements of an axis from `start`.
    ///
    /// # Errors
    /// When types, devices, ranks or other extents differ, or `src` reaches beyond the axis.
    pub fn slice_scatter(&self, src: &Tensor, axis: impl Axis, start: impl Extent) -> Result<Tensor> {
        let op = "slice_scatter";
        let axis = axis.of(self.sym_shape(), op)?;
        self.same_dtype(op, src)?;
        if src.rank() != self.rank() {
            let (got, shape) = (src.rank(), src.sym_shape().clone());
            return Err(Error::UnexpectedNumberOfDims { op, expected: self.rank(), got, shape });
        }
        let (extent, len) = (&self.sym_dims()[axis], &src.sym_dims()[axis]);
        let start = start.extent();
        let end = &start + len;
        let beyond = end.as_const().zip(extent.as_const()).is_some_and(|(end, extent)| end > extent);
        if beyond || src.sym_shape().with_ones(&[axis]) != self.sym_shape().with_ones(&[axis]) {
            let (lhs, rhs) = (self.sym_shape().clone(), src.sym_shape().clone());
            return Err(Error::ShapeMismatchBinaryOp { op, lhs, rhs });
        }
        let (before, after) = (self.narrow(axis, 0, &start)?, self.narrow(axis, &end, extent - &end)?);
        let parts: Vec<&Tensor> =
            [&before, src, &after].into_iter().filter(|part| !part.sym_dims()[axis].is(0)).collect();
        // Where nothing has elements, the tensor is empty and stays so.
        if parts.is_empty() { Ok(self.clone()) } else { Tensor::cat(&parts, axis) }
    }

    /// [`Tensor::slice_scatter`] along the first axis.
    ///
    /// # Errors
    /// As there.
    pub fn slice_scatter0(&self, src: &Tensor, start: impl Extent) -> Result<Tensor> {
        self.slice_scatter(src, 0, start)
    }

    /// This tensor with `src` in place of the part that `ranges`, one per axis, name.
    ///
    /// # Errors
    /// When ranks, types or devices differ, or a range is empty, reaches beyond its axis or has another
    /// length than `src`.
    pub fn slice_assign<R: RangeBounds<usize>>(&self, ranges: &[R], src: &Tensor) -> Result<Tensor> {
        let op = "slice_assign";
        for (rank, shape) in [(src.rank(), src.sym_shape()), (ranges.len(), self.sym_shape())] {
            if rank != self.rank() {
                let shape = shape.clone();
                return Err(Error::UnexpectedNumberOfDims { op, expected: self.rank(), got: rank, shape });
            }
        }
        self.same_dtype(op, src)?;
        let (extents, lens) = (self.const_dims()?, src.const_dims()?);
        let mut part = src.clone();
        let mut inside = Tensor::ones(src.sym_shape(), tallow_ir::DType::U8, self.device())?;
        for (axis, range) in ranges.iter().enumerate() {
            let start = match range.start_bound() {
                Bound::Included(at) => *at,
                Bound::Excluded(at) => at.saturating_add(1),
                Bound::Unbounded => 0,
            };
            let end = match range.end_bound() {
                Bound::Included(at) => at.saturating_add(1),
                Bound::Excluded(at) => *at,
                Bound::Unbounded => extents[axis],
            };
            if end <= start || end > extents[axis] || end - start != lens[axis] {
                let why = format!(
                    "{start}..{end} of axis {axis} of shape {} is no place for shape {}",
                    self.sym_shape(),
                    src.sym_shape()
                );
                return Err(Error::InvalidArgument { op, why });
            }
            part = part.pad_with_zeros(axis, start, extents[axis] - end)?;
            inside = inside.pad_with_zeros(axis, start, extents[axis] - end)?;
        }
        inside.where_cond(&part, self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Device;

    #[test]
    fn repeat_counts_belong_to_the_first_axes() {
        let x = Tensor::arange(0u32, 6, &Device::Cpu).unwrap().reshape((1, 2, 3)).unwrap();
        assert_eq!(x.repeat(2).unwrap().dims(), [2, 2, 3]);
        assert_eq!(x.repeat((2, 1, 1, 2)).unwrap().dims(), [2, 1, 2, 6]);
        assert_eq!(x.repeat((1, 0)).unwrap().dims(), [1, 0, 3]);
    }
}
