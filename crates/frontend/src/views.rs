//! Methods that rearrange elements without computing: they cost nothing once fused.

use tallow_ir::{Dim, Op, Scalar, Shape};

use crate::error::{Error, Result};
use crate::shape::{Axes, Axis, Extent, IntoShape, ReshapeTo};
use crate::tensor::Tensor;

impl Tensor {
    /// The same elements in row-major order in another shape; one extent may be `()`.
    ///
    /// # Errors
    /// When the shape has another number of elements.
    pub fn reshape(&self, shape: impl ReshapeTo) -> Result<Tensor> {
        let extents = shape.extents();
        let known = extents.iter().flatten().fold(Dim::one(), |n, d| &n * d);
        let holes = extents.iter().filter(|d| d.is_none()).count();
        let fail = |why: String| Error::InvalidArgument { op: "reshape", why };
        let hole = match holes {
            0 => Dim::one(),
            1 => self.shape().numel().div_exact(&known).ok_or_else(|| {
                fail(format!("the elements of {} are no multiple of {known}", self.shape()))
            })?,
            n => return Err(fail(format!("{n} extents are open, at most one can be"))),
        };
        let shape = Shape::new(extents.into_iter().map(|d| d.unwrap_or_else(|| hole.clone())).collect());
        if shape.numel() != self.shape().numel() {
            return Err(Error::ShapeMismatch { op: "reshape", lhs: self.shape().clone(), rhs: shape });
        }
        if shape == *self.shape() { Ok(self.clone()) } else { self.unary(Op::Reshape(shape)) }
    }

    /// All elements along one axis.
    ///
    /// # Errors
    /// Never for a tensor that exists.
    pub fn flatten_all(&self) -> Result<Tensor> {
        self.reshape(self.shape().numel())
    }

    /// Axes `first` to `last` (included) as one.
    ///
    /// # Errors
    /// When the tensor does not have them, or they are in the wrong order.
    pub fn flatten(&self, first: impl Axis, last: impl Axis) -> Result<Tensor> {
        let (first, last) = (first.of(self.shape(), "flatten")?, last.of(self.shape(), "flatten")?);
        if first > last {
            let why = format!("axis {first} comes after axis {last}");
            return Err(Error::InvalidArgument { op: "flatten", why });
        }
        let dims = self.sym_dims();
        let joined = dims[first..=last].iter().fold(Dim::one(), |n, d| &n * d);
        let all = dims[..first].iter().cloned().chain([joined]).chain(dims[last + 1..].iter().cloned());
        self.reshape(all.collect::<Vec<_>>())
    }

    /// The two last axes exchanged.
    ///
    /// # Errors
    /// When there are less than two.
    pub fn t(&self) -> Result<Tensor> {
        let rank = self.rank();
        if rank < 2 {
            return Err(Error::UnexpectedRank { expected: 2, got: rank, shape: self.shape().clone() });
        }
        self.transpose(rank - 2, rank - 1)
    }

    /// Two axes exchanged.
    ///
    /// # Errors
    /// When the tensor does not have them.
    pub fn transpose(&self, a: impl Axis, b: impl Axis) -> Result<Tensor> {
        let (a, b) = (a.of(self.shape(), "transpose")?, b.of(self.shape(), "transpose")?);
        let mut order: Vec<usize> = (0..self.rank()).collect();
        order.swap(a, b);
        self.permute(order)
    }

    /// Axis `i` of the result is axis `order[i]` of this tensor.
    ///
    /// # Errors
    /// When that is no permutation.
    pub fn permute(&self, order: impl Axes) -> Result<Tensor> {
        let order = order.of(self.shape(), "permute")?;
        if order.len() != self.rank() {
            let why = format!("{order:?} does not name every axis of {}", self.shape());
            return Err(Error::InvalidArgument { op: "permute", why });
        }
        if order.is_sorted() { Ok(self.clone()) } else { self.unary(Op::Permute(order)) }
    }

    /// `len` elements of an axis from `start`.
    ///
    /// # Errors
    /// When they reach beyond the extent.
    pub fn narrow(&self, axis: impl Axis, start: impl Extent, len: impl Extent) -> Result<Tensor> {
        let axis = axis.of(self.shape(), "narrow")?;
        let (start, len) = (start.extent(), len.extent());
        let extent = &self.sym_dims()[axis];
        if let (Some(s), Some(n), Some(e)) = (start.as_const(), len.as_const(), extent.as_const())
            && s.saturating_add(n) > e
        {
            let why = format!("{start}..{start}+{len} is outside of axis {axis} of shape {}", self.shape());
            return Err(Error::InvalidArgument { op: "narrow", why });
        }
        if start.is(0) && len == *extent {
            return Ok(self.clone());
        }
        self.unary(Op::Slice { axis, start, len })
    }

    /// Part `index` of the first axis, without that axis.
    ///
    /// # Errors
    /// When there is no such part.
    pub fn get(&self, index: usize) -> Result<Tensor> {
        self.get_on_dim(0, index)
    }

    /// Part `index` of an axis, without that axis.
    ///
    /// # Errors
    /// When there is no such part.
    pub fn get_on_dim(&self, axis: impl Axis, index: usize) -> Result<Tensor> {
        let axis = axis.of(self.shape(), "get")?;
        self.narrow(axis, index, 1)?.squeeze(axis)
    }

    /// The tensor in at most `parts` parts along an axis; the last one may be shorter.
    ///
    /// # Errors
    /// When the axis does not exist or is symbolic, or no parts are asked for.
    pub fn chunk(&self, parts: usize, axis: impl Axis) -> Result<Vec<Tensor>> {
        let axis = axis.of(self.shape(), "chunk")?;
        let extent = self.dim(axis)?;
        if parts == 0 {
            return Err(Error::InvalidArgument { op: "chunk", why: "0 parts".into() });
        }
        let step = extent.div_ceil(parts).max(1);
        (0..extent).step_by(step).map(|at| self.narrow(axis, at, step.min(extent - at))).collect()
    }

    /// Without an axis of extent 1; the tensor itself where the extent is another.
    ///
    /// # Errors
    /// When the axis does not exist.
    pub fn squeeze(&self, axis: impl Axis) -> Result<Tensor> {
        let axis = axis.of(self.shape(), "squeeze")?;
        if self.sym_dims()[axis].is(1) {
            self.reshape(self.shape().without(&[axis]))
        } else {
            Ok(self.clone())
        }
    }

    /// With a new axis of extent 1 before `axis`, which may be the rank.
    ///
    /// # Errors
    /// When that is no place of the shape.
    pub fn unsqueeze(&self, axis: impl Axis) -> Result<Tensor> {
        // Counted in the result: -1 is a new last axis.
        let grown = self.rank() + 1;
        let Some(axis) = axis.position(grown).filter(|a| *a < grown) else {
            let (dim, shape) = (axis.shown(), self.shape().clone());
            return Err(Error::DimOutOfRange { op: "unsqueeze", dim, shape });
        };
        let mut dims = self.sym_dims().to_vec();
        dims.insert(axis, Dim::one());
        self.reshape(dims)
    }

    /// Repeated to a shape: axes are aligned at the end, extents of 1 and missing axes repeat.
    ///
    /// # Errors
    /// When another extent would have to change.
    pub fn broadcast_as(&self, shape: impl IntoShape) -> Result<Tensor> {
        let to = shape.into_shape();
        if to == *self.shape() {
            return Ok(self.clone());
        }
        if crate::shape::broadcast_shape(self.shape(), &to).as_ref() != Some(&to) {
            return Err(Error::BroadcastIncompatible { op: "broadcast_as", from: self.shape().clone(), to });
        }
        self.unary(Op::Broadcast(to))
    }

    /// Another name of [`Tensor::broadcast_as`].
    ///
    /// # Errors
    /// As there.
    pub fn expand(&self, shape: impl IntoShape) -> Result<Tensor> {
        self.broadcast_as(shape)
    }

    /// Repeated along new axes in front.
    ///
    /// # Errors
    /// When the result is too large.
    pub fn broadcast_left(&self, left: impl IntoShape) -> Result<Tensor> {
        let left = left.into_shape();
        self.broadcast_as(left.dims().iter().chain(self.sym_dims()).cloned().collect::<Shape>())
    }

    /// The tensor so many times along each axis, e.g. `(2, 1)`; missing axes are added in front.
    ///
    /// # Errors
    /// When the counts are symbolic or the result is too large.
    pub fn repeat(&self, counts: impl IntoShape) -> Result<Tensor> {
        let counts = counts.into_shape();
        let symbolic = || Error::SymbolicShape { shape: counts.clone() };
        let counts = counts.as_const().ok_or_else(symbolic)?;
        let mut out = self.clone();
        while out.rank() < counts.len() {
            out = out.unsqueeze(0)?;
        }
        let skip = out.rank() - counts.len();
        for (axis, count) in counts.into_iter().enumerate() {
            let dims = out.sym_dims().to_vec();
            let mut spread = dims.clone();
            spread.insert(axis + skip, count.into());
            let mut repeated = dims;
            repeated[axis + skip] = &repeated[axis + skip] * &count.into();
            out = out.unsqueeze(axis + skip)?.broadcast_as(spread)?.reshape(repeated)?;
        }
        Ok(out)
    }

    /// Reversed along axes.
    ///
    /// # Errors
    /// When the tensor does not have them.
    pub fn flip(&self, axes: impl Axes) -> Result<Tensor> {
        let axes = axes.of(self.shape(), "flip")?;
        axes.into_iter().try_fold(self.clone(), |t, axis| t.unary(Op::Flip { axis }))
    }

    /// Zeros before and after along an axis.
    ///
    /// # Errors
    /// When the axis does not exist.
    pub fn pad_with_zeros(&self, axis: impl Axis, before: impl Extent, after: impl Extent) -> Result<Tensor> {
        let axis = axis.of(self.shape(), "pad_with_zeros")?;
        let value = Scalar::of(self.dtype(), 0.0);
        self.unary(Op::Pad { axis, before: before.extent(), after: after.extent(), value })
    }

    /// Tensors one after the other along an axis.
    ///
    /// # Errors
    /// When there are none, or they differ in type, device or another extent.
    pub fn cat<T: AsRef<Tensor>>(tensors: &[T], axis: impl Axis) -> Result<Tensor> {
        let all: Vec<&Tensor> = tensors.iter().map(AsRef::as_ref).collect();
        let Some(first) = all.first() else {
            return Err(Error::InvalidArgument { op: "cat", why: "there are no tensors".into() });
        };
        let axis = axis.of(first.shape(), "cat")?;
        for other in &all[1..] {
            first.same_dtype("cat", other)?;
            if other.rank() != first.rank()
                || other.shape().with_ones(&[axis]) != first.shape().with_ones(&[axis])
            {
                let (lhs, rhs) = (first.shape().clone(), other.shape().clone());
                return Err(Error::ShapeMismatch { op: "cat", lhs, rhs });
            }
        }
        if all.len() == 1 {
            return Ok((*first).clone());
        }
        Tensor::apply(Op::Concat { axis }, &all, first.device())
    }

    /// Tensors of one shape along a new axis.
    ///
    /// # Errors
    /// When there are none, or they differ in type, device or shape.
    pub fn stack<T: AsRef<Tensor>>(tensors: &[T], axis: impl Axis) -> Result<Tensor> {
        let lifted: Vec<Tensor> =
            tensors.iter().map(|t| t.as_ref().unsqueeze(axis)).collect::<Result<_>>()?;
        let Some(first) = lifted.first() else {
            return Err(Error::InvalidArgument { op: "stack", why: "there are no tensors".into() });
        };
        if let Some(other) = lifted.iter().find(|t| t.shape() != first.shape()) {
            let (lhs, rhs) = (first.shape().clone(), other.shape().clone());
            return Err(Error::ShapeMismatch { op: "stack", lhs, rhs });
        }
        let axis = axis.position(first.rank()).unwrap_or(0);
        Tensor::cat(&lifted, axis)
    }

    /// The tensor itself: every result is contiguous.
    ///
    /// # Errors
    /// Never; the signature is Candle's.
    pub fn contiguous(&self) -> Result<Tensor> {
        Ok(self.clone())
    }
}
