//! Writes to places that an index tensor chooses. Indices are data, for which a GPU cannot stop; what an index
//! beyond its axis names is not written.

use tallow_ir::{DType, Dim, Op, ScatterKind};

use crate::error::{Error, Result};
use crate::masks::positions;
use crate::shape::Axis;
use crate::tensor::{Tensor, row_major};

impl Tensor {
    /// This tensor with each element of `source` added at its own place, but at the index along `axis`: for
    /// axis 1, `source[i, j]` is added to `[i, indices[i, j]]`. The order of sums is the device's.
    ///
    /// # Errors
    /// When shapes, element types or devices do not fit, the indices are no integers, a shape is symbolic, or
    /// the tensor has 2^32 elements.
    pub fn scatter_add(&self, indices: &Tensor, source: &Tensor, axis: impl Axis) -> Result<Tensor> {
        let targets = self.targets("scatter_add", indices, source, axis)?;
        let op = Op::Scatter(ScatterKind::Add);
        let (into, from) = (self.flatten_all()?, source.flatten_all()?);
        Tensor::of_op(op, &[&into, &targets, &from], self.device())?.reshape(self.sym_shape())
    }

    /// This tensor with each element of `source` in place of what is at the index along `axis`. Of several
    /// elements for one place the last stays.
    ///
    /// # Errors
    /// As [`Tensor::scatter_add`].
    pub fn scatter(&self, indices: &Tensor, source: &Tensor, axis: impl Axis) -> Result<Tensor> {
        let targets = self.targets("scatter", indices, source, axis)?;
        let (flat, count) = (source.flatten_all()?, source.const_elem_count()?);
        if count == 0 {
            return Ok(self.clone());
        }
        // The number, from 1, of the last element that goes to each place; 0 where none goes.
        let numbers = positions(&count.into(), self.device())?.affine(1.0, 1.0)?;
        let none = Tensor::zeros(self.const_elem_count()?, DType::U32, self.device())?;
        let op = Op::Scatter(ScatterKind::Max);
        let winner = Tensor::of_op(op, &[&none, &targets, &numbers], self.device())?;
        // Place 0 holds no winner where there is none; what it then picks is not used.
        let picked = flat.index_select(&winner.maximum(1u32)?.affine(1.0, -1.0)?, 0)?;
        let all = winner.ne(0u32)?.where_cond(&picked, &self.flatten_all()?)?;
        all.reshape(self.sym_shape())
    }

    /// This tensor with part `i` of `source` along `axis` added to part `indices[i]`, in the order of `i`: a float sum is the
    /// same in every run and on every device. What an index beyond the axis names is not added.
    ///
    /// # Errors
    /// When shapes, element types or devices do not fit, or the indices are no integers or have not one axis.
    pub fn index_add(&self, indices: &Tensor, source: &Tensor, axis: impl Axis) -> Result<Tensor> {
        let op = "index_add";
        let axis = axis.of(self.sym_shape(), op)?;
        self.same_dtype(op, source)?;
        let (have, given) = (self.sym_dims(), source.sym_dims());
        let same_rows = have.len() == given.len()
            && have.iter().zip(given).enumerate().all(|(i, (a, b))| i == axis || a == b)
            && indices.sym_dims() == &given[axis..=axis];
        if !same_rows {
            let (lhs, rhs) = (self.sym_shape().clone(), source.sym_shape().clone());
            return Err(Error::ShapeMismatchBinaryOp { op, lhs, rhs });
        }
        let at = match indices.dtype() {
            DType::U8 | DType::U32 => indices.as_indices(op)?,
            // `as_indices` clamps what is below 0, where nothing must be added.
            _ => {
                let at = indices.as_indices(op)?;
                indices.ge(0.0)?.where_cond(&at, &at.constant_like(f64::from(u32::MAX))?)?
            }
        };
        let product = |dims: &[Dim]| dims.iter().fold(Dim::one(), |n, d| &n * d);
        let (outer, inner) = (product(&have[..axis]), product(&have[axis + 1..]));
        let rows_of = |t: &Tensor, rows: &Dim| t.reshape(vec![outer.clone(), rows.clone(), inner.clone()]);
        let (into, from) = (rows_of(self, &have[axis])?, rows_of(source, &given[axis])?);
        Tensor::of_op(Op::IndexAdd, &[&into, &at, &from], self.device())?.reshape(self.sym_shape())
    }

    /// The row-major position of the place of each element of `source`, on one axis; beyond the tensor where
    /// the index is beyond its axis.
    fn targets(
        &self,
        op: &'static str,
        indices: &Tensor,
        source: &Tensor,
        axis: impl Axis,
    ) -> Result<Tensor> {
        let axis = axis.of(self.sym_shape(), op)?;
        self.same_dtype(op, source)?;
        let mismatch = |lhs: &Tensor, rhs: &Tensor| {
            let (lhs, rhs) = (lhs.sym_shape().clone(), rhs.sym_shape().clone());
            Error::ShapeMismatchBinaryOp { op, lhs, rhs }
        };
        let (extents, given) = (self.const_dims()?, source.const_dims()?);
        if indices.sym_shape() != source.sym_shape() {
            return Err(mismatch(indices, source));
        }
        let mut pairs = extents.iter().zip(given).enumerate();
        if extents.len() != given.len() || pairs.any(|(at, (have, want))| at != axis && want > have) {
            return Err(mismatch(self, source));
        }
        // The largest u32 stands for no place.
        if self.const_elem_count()? >= u32::MAX as usize {
            let why = format!("shape {} has more elements than an index can name", self.sym_shape());
            return Err(Error::InvalidArgument { op, why });
        }
        let strides = row_major(extents);
        let given_indices = indices;
        let indices = given_indices.as_indices(op)?;
        // `as_indices` clamps what is below 0, which must not be written either.
        let inside = indices.lt(extents[axis] as u32)?.logical_and(&given_indices.ge(0.0)?)?;
        let mut flat = indices.affine(strides[axis] as f64, 0.0)?;
        for (other, stride) in strides.iter().enumerate().filter(|(other, _)| *other != axis) {
            let mut alone = vec![Dim::one(); given.len()];
            alone[other] = given[other].into();
            let at = positions(&alone[other], self.device())?.affine(*stride as f64, 0.0)?;
            flat = flat.broadcast_add(&at.reshape(alone)?)?;
        }
        let nowhere = flat.constant_like(f64::from(u32::MAX))?;
        inside.where_cond(&flat, &nowhere)?.flatten_all()
    }
}
