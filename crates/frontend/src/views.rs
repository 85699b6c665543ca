//! Methods that rearrange elements without computing: they cost nothing once fused.

use tallow_ir::{Dim, Op, Shape};

use crate::error::{Error, Result};
use crate::shape::{Axes, Axis, Extent, IntoShape, ReshapeTo, fill_hole};
use crate::tensor::Tensor;

impl Tensor {
    /// The same elements in row-major order in another shape; one extent may be `()`.
    ///
    /// # Errors
    /// When the shape has another number of elements.
    pub fn reshape(&self, shape: impl ReshapeTo) -> Result<Tensor> {
        let shape = fill_hole("reshape", &self.sym_shape().numel(), shape)?;
        if shape.numel() != self.sym_shape().numel() {
            let op = "reshape";
            return Err(match self.const_elem_count() {
                Ok(buffer_size) => Error::ShapeMismatch { op, buffer_size, shape },
                Err(_) => Error::ShapeMismatchBinaryOp { op, lhs: self.sym_shape().clone(), rhs: shape },
            });
        }
        self.row_major(shape)
    }

    /// All elements along one axis.
    ///
    /// # Errors
    /// Never for a tensor that exists.
    pub fn flatten_all(&self) -> Result<Tensor> {
        self.flatten(0, crate::shape::D::Minus1)
    }

    /// Axes `first` to `last` (included) as one; the tensor itself where they are one or in the wrong order.
    ///
    /// # Errors
    /// When the tensor does not have them.
    pub fn flatten(&self, first: impl Axis, last: impl Axis) -> Result<Tensor> {
        if self.rank() == 0 {
            return self.reshape(1);
        }
        let (first, last) = (first.of(self.sym_shape(), "flatten")?, last.of(self.sym_shape(), "flatten")?);
        if first >= last {
            return Ok(self.clone());
        }
        let dims = self.sym_dims();
        let joined = dims[first..=last].iter().fold(Dim::one(), |n, d| &n * d);
        let all = dims[..first].iter().cloned().chain([joined]).chain(dims[last + 1..].iter().cloned());
        self.reshape(all.collect::<Vec<_>>())
    }

    /// The axes up to `last` (included) as one.
    ///
    /// # Errors
    /// When the tensor does not have it.
    pub fn flatten_to(&self, last: impl Axis) -> Result<Tensor> {
        self.flatten(0, last)
    }

    /// The axes from `first` as one.
    ///
    /// # Errors
    /// When the tensor does not have it.
    pub fn flatten_from(&self, first: impl Axis) -> Result<Tensor> {
        self.flatten(first, crate::shape::D::Minus1)
    }

    /// The two last axes exchanged.
    ///
    /// # Errors
    /// When there are less than two.
    pub fn t(&self) -> Result<Tensor> {
        let rank = self.rank();
        if rank < 2 {
            return Err(Error::UnexpectedNumberOfDims {
                op: "t",
                expected: 2,
                got: rank,
                shape: self.sym_shape().clone(),
            });
        }
        self.transpose(rank - 2, rank - 1)
    }

    /// Two axes exchanged.
    ///
    /// # Errors
    /// When the tensor does not have them.
    pub fn transpose(&self, a: impl Axis, b: impl Axis) -> Result<Tensor> {
        let (a, b) = (a.of(self.sym_shape(), "transpose")?, b.of(self.sym_shape(), "transpose")?);
        let mut order: Vec<usize> = (0..self.rank()).collect();
        order.swap(a, b);
        self.permute(order)
    }

    /// Axis `i` of the result is axis `order[i]` of this tensor.
    ///
    /// # Errors
    /// When that is no permutation.
    pub fn permute(&self, order: impl Axes) -> Result<Tensor> {
        let order = order.of(self.sym_shape(), "permute")?;
        if order.len() != self.rank() {
            let why = format!("{order:?} does not name every axis of {}", self.sym_shape());
            return Err(Error::InvalidArgument { op: "permute", why });
        }
        if order.is_sorted() {
            return Ok(self.clone());
        }
        let all = self.sym_strides();
        let strides = order.iter().map(|axis| all[*axis].clone()).collect();
        self.view(Op::Permute(order), strides)
    }

    /// `len` elements of an axis from `start`.
    ///
    /// # Errors
    /// When they reach beyond the extent.
    pub fn narrow(&self, axis: impl Axis, start: impl Extent, len: impl Extent) -> Result<Tensor> {
        let axis = axis.of(self.sym_shape(), "narrow")?;
        let (start, len) = (start.extent(), len.extent());
        let extent = &self.sym_dims()[axis];
        if let (Some(s), Some(n), Some(e)) = (start.as_const(), len.as_const(), extent.as_const())
            && s.saturating_add(n) > e
        {
            let (shape, msg) = (self.sym_shape().clone(), "start + len > dim_len");
            return Err(Error::NarrowInvalidArgs { shape, dim: axis, start, len, msg });
        }
        if start.is(0) && len == *extent {
            return Ok(self.clone());
        }
        self.view(Op::Slice { axis, start, len }, self.sym_strides().into_owned())
    }

    /// Part `index` of the first axis, without that axis; a scalar is itself.
    ///
    /// # Errors
    /// When there is no such part.
    pub fn get(&self, index: usize) -> Result<Tensor> {
        if self.rank() == 0 {
            return Ok(self.clone());
        }
        // Candle's `get` reshapes, where `get_on_dim` squeezes: of a view it gives a row-major tensor.
        self.narrow(0, index, 1)?.row_major(self.sym_shape().without(&[0]))
    }

    /// Part `index` of an axis, without that axis.
    ///
    /// # Errors
    /// When there is no such part.
    pub fn get_on_dim(&self, axis: impl Axis, index: usize) -> Result<Tensor> {
        let axis = axis.of(self.sym_shape(), "get")?;
        self.narrow(axis, index, 1)?.squeeze(axis)
    }

    /// The tensor in `parts` parts along an axis, the first ones longer by one where the extent is no
    /// multiple; in as many parts as the extent where that is less.
    ///
    /// # Errors
    /// When the axis does not exist or is symbolic, or no parts are asked for.
    pub fn chunk(&self, parts: usize, axis: impl Axis) -> Result<Vec<Tensor>> {
        let axis = axis.of(self.sym_shape(), "chunk")?;
        let extent = self.const_dim(axis)?;
        if parts == 0 {
            let why = format!("0 parts of axis {axis} of shape {}", self.sym_shape());
            return Err(Error::InvalidArgument { op: "chunk", why });
        }
        let (len, longer) = (extent / parts, extent % parts);
        let start = |part: usize| part * len + part.min(longer);
        let count = parts.min(extent);
        // An axis without elements gives no parts at all, as in Candle.
        (0..count).map(|part| self.narrow(axis, start(part), start(part + 1) - start(part))).collect()
    }

    /// Without an axis of extent 1; the tensor itself where the extent is another.
    ///
    /// # Errors
    /// When the axis does not exist.
    pub fn squeeze(&self, axis: impl Axis) -> Result<Tensor> {
        let axis = axis.of(self.sym_shape(), "squeeze")?;
        if self.sym_dims()[axis].is(1) {
            let mut strides = self.sym_strides().into_owned();
            strides.remove(axis);
            self.view(Op::Reshape(self.sym_shape().without(&[axis])), strides)
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
            let (dim, shape) = (axis.shown(), self.sym_shape().clone());
            return Err(Error::DimOutOfRange { op: "unsqueeze", dim, shape });
        };
        let mut dims = self.sym_dims().to_vec();
        dims.insert(axis, Dim::one());
        let mut strides = self.sym_strides().into_owned();
        // Any would do along an axis of extent 1: this one leaves a contiguous tensor contiguous.
        strides.insert(axis, strides.get(axis).cloned().unwrap_or_else(Dim::one));
        self.view(Op::Reshape(Shape::new(dims)), strides)
    }

    /// Repeated to a shape: axes are aligned at the end, extents of 1 and missing axes repeat.
    ///
    /// # Errors
    /// When another extent would have to change.
    pub fn broadcast_as(&self, shape: impl IntoShape) -> Result<Tensor> {
        let to = shape.into_shape();
        if to == *self.sym_shape() {
            return Ok(self.clone());
        }
        if crate::shape::broadcast_shape(self.sym_shape(), &to).as_ref() != Some(&to) {
            let (src_shape, dst_shape) = (self.sym_shape().clone(), to);
            return Err(Error::BroadcastIncompatibleShapes { op: "broadcast_as", src_shape, dst_shape });
        }
        let mut strides = vec![Dim::zero(); to.rank() - self.rank()];
        let new = &to.dims()[strides.len()..];
        let extents = self.sym_dims().iter().zip(new).zip(self.sym_strides().into_owned());
        strides.extend(extents.map(|((from, to), stride)| if from == to { stride } else { Dim::zero() }));
        self.view(Op::Broadcast(to), strides)
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

    /// Reversed along axes.
    ///
    /// # Errors
    /// When the tensor does not have them.
    pub fn flip(&self, axes: impl Axes) -> Result<Tensor> {
        let axes = axes.of(self.sym_shape(), "flip")?;
        axes.into_iter().try_fold(self.clone(), |t, axis| t.unary(Op::Flip { axis }))
    }
}
