//! Lookups: elements that an index tensor or a mask chooses. Indices are data, for which a GPU cannot stop;
//! those out of range are clamped.

use tallow_ir::{DType, Dim, Op, Shape};

use crate::elementwise::TensorOrScalar;
use crate::error::{Error, Result};
use crate::masks::positions;
use crate::shape::Axis;
use crate::tensor::{Tensor, row_major};

impl Tensor {
    /// The parts of an axis that `indices` (integers, one axis) name; indices are clamped to the extent.
    ///
    /// # Errors
    /// When the axis does not exist or is empty, or the indices are no integers of one axis.
    pub fn index_select(&self, indices: &Tensor, axis: impl Axis) -> Result<Tensor> {
        let op = "index_select";
        let axis = axis.of(self.sym_shape(), op)?;
        if indices.rank() != 1 {
            let (lhs, rhs) = (self.sym_shape().clone(), indices.sym_shape().clone());
            return Err(Error::ShapeMismatchBinaryOp { op, lhs, rhs });
        }
        self.lookup(op, indices, axis)
    }

    /// Rows of this matrix: `[n, width]` and indices of any shape to `[.., width]`; indices are clamped.
    ///
    /// # Errors
    /// When this is no matrix or is empty, or the indices are no integers.
    pub fn embedding(&self, indices: &Tensor) -> Result<Tensor> {
        let op = "embedding";
        if self.rank() != 2 {
            let (got, shape) = (self.rank(), self.sym_shape().clone());
            return Err(Error::UnexpectedNumberOfDims { op, expected: 2, got, shape });
        }
        self.lookup(op, indices, 0)
    }

    /// For each index the element at its own place, but at the index along `axis`: `[i, j]` of the result is
    /// `[i, indices[i, j]]` of this tensor for axis 1. Indices are clamped to the extent.
    ///
    /// # Errors
    /// When the axis does not exist or is empty, the indices are no integers, have another rank or reach
    /// beyond this tensor along another axis, the shape is symbolic, or the tensor has 2^32 elements.
    pub fn gather(&self, indices: &Tensor, axis: impl Axis) -> Result<Tensor> {
        let op = "gather";
        let axis = axis.of(self.sym_shape(), op)?;
        let (extents, wanted) = (self.const_dims()?, indices.const_dims()?);
        let mut pairs = extents.iter().zip(wanted).enumerate();
        if extents.len() != wanted.len() || pairs.any(|(at, (have, want))| at != axis && want > have) {
            let (lhs, rhs) = (self.sym_shape().clone(), indices.sym_shape().clone());
            return Err(Error::ShapeMismatchBinaryOp { op, lhs, rhs });
        }
        let strides = row_major(extents);
        if self.const_elem_count()? > u32::MAX as usize {
            let why = format!("shape {} has more elements than an index can name", self.sym_shape());
            return Err(Error::InvalidArgument { op, why });
        }
        if indices.const_elem_count()? == 0 {
            return Tensor::zeros(indices.sym_shape(), self.dtype(), self.device());
        }
        if extents[axis] == 0 {
            return Err(Error::EmptyTensor { op, shape: self.sym_shape().clone() });
        }
        let last = (extents[axis] - 1) as f64;
        let mut flat = indices.as_indices(op)?.minimum(last)?.affine(strides[axis] as f64, 0.0)?;
        for (other, stride) in strides.iter().enumerate().filter(|(other, _)| *other != axis) {
            let mut alone = vec![Dim::one(); wanted.len()];
            alone[other] = wanted[other].into();
            let at = positions(&alone[other], self.device())?.affine(*stride as f64, 0.0)?;
            flat = flat.broadcast_add(&at.reshape(alone)?)?;
        }
        Tensor::of_op(Op::Gather { axis: 0 }, &[&self.flatten_all()?, &flat], self.device())
    }

    /// This tensor with `value`, a number or a tensor of the same shape, where `mask` (integers, of a shape
    /// that repeats to this one) is not 0.
    ///
    /// # Errors
    /// When shapes, element types or devices do not fit, or the mask holds floats.
    pub fn masked_fill(&self, mask: &Tensor, value: impl TensorOrScalar) -> Result<Tensor> {
        mask.broadcast_as(self.sym_shape())?.where_cond(&value.operand(self)?, self)
    }

    fn lookup(&self, op: &'static str, indices: &Tensor, axis: usize) -> Result<Tensor> {
        let indices = indices.as_indices(op)?;
        if !self.sym_dims()[axis].is(0) {
            return Tensor::of_op(Op::Gather { axis }, &[self, &indices], self.device());
        }
        if !indices.sym_dims().iter().any(|d| d.is(0)) {
            return Err(Error::EmptyTensor { op, shape: self.sym_shape().clone() });
        }
        // Nothing of nothing.
        let dims = self.sym_dims();
        let all = dims[..axis].iter().chain(indices.sym_dims()).chain(&dims[axis + 1..]);
        Tensor::zeros(all.cloned().collect::<Shape>(), self.dtype(), self.device())
    }

    /// These integers as u32, those beyond it clamped before the cast would wrap them to the other end.
    pub(crate) fn as_indices(&self, op: &'static str) -> Result<Tensor> {
        match self.dtype() {
            DType::U8 | DType::U32 => self.to_dtype(DType::U32),
            DType::I16 | DType::I32 => self.maximum(0.0)?.to_dtype(DType::U32),
            DType::I64 => self.clamp(0i64, i64::from(u32::MAX))?.to_dtype(DType::U32),
            got @ (DType::F8E4M3 | DType::F16 | DType::BF16 | DType::F32 | DType::F64 | DType::Block(_)) => {
                Err(Error::UnexpectedDType { op, expected: "an integer type".into(), got })
            }
        }
    }
}
