//! Matrix products and lookups.

use tallow_ir::{DType, Op, Shape};

use crate::error::{Error, Result};
use crate::shape::{Axis, broadcast_shape};
use crate::tensor::Tensor;

impl Tensor {
    /// `[.., m, k]` times `[.., k, n]`: a matrix product for each of the leading axes, which are equal or 1.
    ///
    /// # Errors
    /// When ranks, inner extents, leading axes, element types or devices do not fit.
    pub fn matmul(&self, rhs: &Tensor) -> Result<Tensor> {
        self.same_dtype("matmul", rhs)?;
        let (a, b) = (self.sym_dims(), rhs.sym_dims());
        let fits = a.len() >= 2 && a.len() == b.len() && a[a.len() - 1] == b[b.len() - 2] && {
            let outer = |d: &[tallow_ir::Dim]| d[..d.len() - 2].iter().cloned().collect::<Shape>();
            broadcast_shape(&outer(a), &outer(b)).is_some()
        };
        if !fits {
            let (lhs, rhs) = (self.shape().clone(), rhs.shape().clone());
            return Err(Error::ShapeMismatch { op: "matmul", lhs, rhs });
        }
        Tensor::apply(Op::Matmul, &[self, rhs], self.device())
    }

    /// [`Tensor::matmul`] with missing leading axes added on either side.
    ///
    /// # Errors
    /// As there.
    pub fn broadcast_matmul(&self, rhs: &Tensor) -> Result<Tensor> {
        let (mut lhs, mut rhs) = (self.clone(), rhs.clone());
        while lhs.rank() < rhs.rank() && lhs.rank() >= 2 {
            lhs = lhs.unsqueeze(0)?;
        }
        while rhs.rank() < lhs.rank() && rhs.rank() >= 2 {
            rhs = rhs.unsqueeze(0)?;
        }
        lhs.matmul(&rhs)
    }

    /// The parts of an axis that `indices` (integers, one axis) name; indices are clamped to the extent.
    ///
    /// # Errors
    /// When the axis does not exist or is empty, or the indices are no integers of one axis.
    pub fn index_select(&self, indices: &Tensor, axis: impl Axis) -> Result<Tensor> {
        let axis = axis.of(self.shape(), "index_select")?;
        if indices.rank() != 1 {
            let (got, shape) = (indices.rank(), indices.shape().clone());
            return Err(Error::UnexpectedRank { expected: 1, got, shape });
        }
        self.lookup("index_select", indices, axis)
    }

    /// Rows of this matrix: `[n, width]` and indices of any shape to `[.., width]`; indices are clamped.
    ///
    /// # Errors
    /// When this is no matrix or is empty, or the indices are no integers.
    pub fn embedding(&self, indices: &Tensor) -> Result<Tensor> {
        if self.rank() != 2 {
            let (got, shape) = (self.rank(), self.shape().clone());
            return Err(Error::UnexpectedRank { expected: 2, got, shape });
        }
        self.lookup("embedding", indices, 0)
    }

    fn lookup(&self, op: &'static str, indices: &Tensor, axis: usize) -> Result<Tensor> {
        let indices = match indices.dtype() {
            DType::U8 | DType::U32 => indices.to_dtype(DType::U32)?,
            // Below 0 is clamped to 0 before the cast would wrap it to the far end.
            DType::I16 | DType::I32 | DType::I64 => indices.maximum(0.0)?.to_dtype(DType::U32)?,
            got @ (DType::F8E4M3 | DType::F16 | DType::BF16 | DType::F32 | DType::F64 | DType::Block(_)) => {
                return Err(Error::UnexpectedDType { op, expected: "an integer type".into(), got });
            }
        };
        Tensor::apply(Op::Gather { axis }, &[self, &indices], self.device())
    }
}
