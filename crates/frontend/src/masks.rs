//! Patterns of ones and zeros, and grids: comparisons of positions, so that nothing is stored.

use tallow_ir::{DType, Dim, Op, Shape};

use crate::device::Device;
use crate::error::{Error, Result};
use crate::shape::Extent;
use crate::tensor::Tensor;

/// `0, 1, ..` below `len` (u32).
pub(crate) fn positions(len: &Dim, device: &Device) -> Result<Tensor> {
    Tensor::of_op(Op::Iota { len: len.clone(), dtype: DType::U32 }, &[], device)
}

/// The column and the row of each element of a square matrix.
fn columns_and_rows(n: &Dim, device: &Device) -> Result<(Tensor, Tensor)> {
    let (at, square) = (positions(n, device)?, [n.clone(), n.clone()]);
    Ok((at.unsqueeze(0)?.broadcast_as(&square)?, at.unsqueeze(1)?.broadcast_as(&square)?))
}

impl Tensor {
    /// The square matrix with ones on and below the diagonal, zeros above.
    ///
    /// # Errors
    /// When it is too large, or the type is a block format.
    pub fn tril2(n: impl Extent, dtype: DType, device: &Device) -> Result<Tensor> {
        let (column, row) = columns_and_rows(&n.extent(), device)?;
        column.le(&row)?.to_dtype(dtype)
    }

    /// The square matrix with ones on and above the diagonal, zeros below.
    ///
    /// # Errors
    /// When it is too large, or the type is a block format.
    pub fn triu2(n: impl Extent, dtype: DType, device: &Device) -> Result<Tensor> {
        let (column, row) = columns_and_rows(&n.extent(), device)?;
        column.ge(&row)?.to_dtype(dtype)
    }

    /// The square matrix with ones on the diagonal, zeros elsewhere.
    ///
    /// # Errors
    /// When it is too large, or the type is a block format.
    pub fn eye(n: impl Extent, dtype: DType, device: &Device) -> Result<Tensor> {
        let (column, row) = columns_and_rows(&n.extent(), device)?;
        column.eq(&row)?.to_dtype(dtype)
    }

    /// One grid per tensor (of one axis): its values along its own axis of the grid, repeated along the
    /// others. With `xy_indexing` the last tensor has the first axis, as points of a plot have.
    ///
    /// # Errors
    /// When there are less than two tensors, or one of them has not one axis.
    pub fn meshgrid<T: AsRef<Tensor>>(tensors: &[T], xy_indexing: bool) -> Result<Vec<Tensor>> {
        let n = tensors.len();
        if n < 2 {
            return Err(Error::OpRequiresAtLeastTwoTensors { op: "meshgrid" });
        }
        let axis_of = |i: usize| if xy_indexing { n - 1 - i } else { i };
        let mut shape = vec![Dim::one(); n];
        for (i, tensor) in tensors.iter().map(AsRef::as_ref).enumerate() {
            let [extent] = tensor.sym_dims() else {
                let (got, shape) = (tensor.rank(), tensor.sym_shape().clone());
                return Err(Error::UnexpectedNumberOfDims { op: "meshgrid", expected: 1, got, shape });
            };
            shape[axis_of(i)] = extent.clone();
        }
        let grid = |(i, tensor): (usize, &T)| {
            let axis = axis_of(i);
            let mut alone = vec![Dim::one(); n];
            alone[axis] = shape[axis].clone();
            tensor.as_ref().reshape(alone)?.broadcast_as(Shape::new(shape.clone()))
        };
        tensors.iter().enumerate().map(grid).collect()
    }
}
