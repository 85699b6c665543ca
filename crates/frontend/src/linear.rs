//! Matrix products.

use tallow_ir::{Op, Shape};

use crate::error::{Error, Result};
use crate::shape::broadcast_shape;
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
            let (lhs, rhs) = (self.sym_shape().clone(), rhs.sym_shape().clone());
            return Err(Error::ShapeMismatchBinaryOp { op: "matmul", lhs, rhs });
        }
        Tensor::of_op(Op::Matmul, &[self, rhs], self.device())
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

    /// A matrix times a vector: `[m, k]` and `[k]` to `[m]`.
    ///
    /// # Errors
    /// When these are no matrix and vector, or extents, element types or devices do not fit.
    pub fn mv(&self, rhs: &Tensor) -> Result<Tensor> {
        match (self.sym_dims(), rhs.sym_dims()) {
            ([_, k], [n]) if k == n => self.matmul(&rhs.unsqueeze(1)?)?.squeeze(1),
            _ => {
                let (lhs, rhs) = (self.sym_shape().clone(), rhs.sym_shape().clone());
                Err(Error::ShapeMismatchBinaryOp { op: "mv", lhs, rhs })
            }
        }
    }

    /// The sum of the products of two vectors.
    ///
    /// # Errors
    /// When these are no vectors of one length, or element types or devices differ.
    pub fn dot(&self, rhs: &Tensor) -> Result<Tensor> {
        if self.rank() != 1 || rhs.rank() != 1 {
            let (lhs, rhs) = (self.sym_shape().clone(), rhs.sym_shape().clone());
            return Err(Error::ShapeMismatchBinaryOp { op: "dot", lhs, rhs });
        }
        self.mul(rhs)?.sum_all()
    }
}
