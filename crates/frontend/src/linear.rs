//! Matrix products.

use tallow_ir::{Dim, Op, Shape};

use crate::error::{Error, Result};
use crate::shape::broadcast_shape;
use crate::tensor::Tensor;

impl Tensor {
    /// `[.., m, k]` times `[.., k, n]`: a matrix product for each of the leading axes, of which both have as many elements;
    /// the result has those of the left side. [`Tensor::broadcast_matmul`] repeats leading axes.
    ///
    /// # Errors
    /// When ranks, inner extents, leading axes, element types or devices do not fit.
    pub fn matmul(&self, rhs: &Tensor) -> Result<Tensor> {
        let count = |batch: &[Dim]| batch.iter().fold(Dim::one(), |n, dim| &n * dim);
        let ([batch @ .., _, k], [others @ .., l, n]) = (self.sym_dims(), rhs.sym_dims()) else {
            return Err(self.no_product("matmul", rhs));
        };
        if batch.len() != others.len() || k != l || count(batch) != count(others) {
            return Err(self.no_product("matmul", rhs));
        }
        self.same_device("matmul", rhs)?;
        self.same_dtype("matmul", rhs)?;
        if batch == others {
            return Tensor::of_op(Op::Matmul, &[self, rhs], self.device());
        }
        let dims: Shape = batch.iter().chain([k, n]).cloned().collect();
        Tensor::of_op(Op::Matmul, &[self, &rhs.reshape(dims)?], self.device())
    }

    /// [`Tensor::matmul`] of matrices whose leading axes are repeated to those of the other side: extents of 1 and
    /// missing axes.
    ///
    /// # Errors
    /// When ranks, inner extents, leading axes, element types or devices do not fit.
    pub fn broadcast_matmul(&self, rhs: &Tensor) -> Result<Tensor> {
        let is_product = match (self.sym_dims(), rhs.sym_dims()) {
            ([batch @ .., _, k], [others @ .., l, _]) => {
                let shape = |dims: &[Dim]| Shape::new(dims.to_vec());
                k == l && broadcast_shape(&shape(batch), &shape(others)).is_some()
            }
            _ => false,
        };
        if !is_product {
            return Err(self.no_product("broadcast_matmul", rhs));
        }
        self.same_device("broadcast_matmul", rhs)?;
        self.same_dtype("broadcast_matmul", rhs)?;
        let (mut lhs, mut rhs) = (self.clone(), rhs.clone());
        while lhs.rank() < rhs.rank() {
            lhs = lhs.unsqueeze(0)?;
        }
        while rhs.rank() < lhs.rank() {
            rhs = rhs.unsqueeze(0)?;
        }
        // The op repeats extents of 1 by itself.
        Tensor::of_op(Op::Matmul, &[&lhs, &rhs], self.device())
    }

    fn no_product(&self, op: &'static str, rhs: &Tensor) -> Error {
        Error::ShapeMismatchBinaryOp { op, lhs: self.sym_shape().clone(), rhs: rhs.sym_shape().clone() }
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
