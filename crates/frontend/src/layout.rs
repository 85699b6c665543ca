//! The strides that a tensor has in Candle, where a view shares the memory of the tensor that it is of.
//!
//! Here a value never changes, so nobody can tell what shares memory, and a value that was computed is row-major. Programs
//! ask for strides nevertheless, and whether to call `contiguous`: they get Candle's answers.

use std::borrow::Cow;
use std::sync::Arc;

use tallow_ir::{Dim, Op, Shape};

use crate::error::Result;
use crate::tensor::Tensor;

impl Tensor {
    /// How far apart neighbours along each axis are, counted in elements: 0 along an axis that repeats.
    /// [`Tensor::dims`] says what a symbolic extent gives.
    pub fn stride(&self) -> &[usize] {
        let largest = |dim: &Dim| usize::try_from(dim.max_value().max(0)).unwrap_or(usize::MAX);
        self.shape().read("stride");
        self.0.strides.get_or_init(|| self.sym_strides().iter().map(largest).collect())
    }

    /// Whether the strides are those of row-major order. A symbolic extent counts as more than 1.
    pub fn is_contiguous(&self) -> bool {
        self.0.view.as_deref().is_none_or(|strides| in_order(self.sym_dims().iter().zip(strides).rev()))
    }

    /// Whether the strides are those of column-major order. A symbolic extent counts as more than 1.
    pub fn is_fortran_contiguous(&self) -> bool {
        in_order(self.sym_dims().iter().zip(self.sym_strides().iter()))
    }

    /// The same elements in row-major order: the tensor itself where it is so already.
    ///
    /// # Errors
    /// Never; the signature is Candle's.
    pub fn contiguous(&self) -> Result<Tensor> {
        if self.is_contiguous() { Ok(self.clone()) } else { self.row_major(self.sym_shape().clone()) }
    }

    /// The same elements in row-major order.
    ///
    /// # Errors
    /// Never; the signature is Candle's.
    pub fn force_contiguous(&self) -> Result<Tensor> {
        self.row_major(self.sym_shape().clone())
    }

    /// The same elements in row-major order in a shape that has as many; the tensor itself where nothing changes.
    pub(crate) fn row_major(&self, shape: Shape) -> Result<Tensor> {
        if self.0.view.is_none() && shape == *self.sym_shape() {
            return Ok(self.clone());
        }
        // Where the shape is the same, simplification removes it again.
        self.unary(Op::Reshape(shape))
    }

    /// The strides as expressions.
    pub(crate) fn sym_strides(&self) -> Cow<'_, [Dim]> {
        match &self.0.view {
            Some(strides) => Cow::Borrowed(strides),
            None => Cow::Owned(self.sym_shape().strides()),
        }
    }

    /// A view of this tensor, as `op` makes it, that has these strides.
    pub(crate) fn view(&self, op: Op, strides: Vec<Dim>) -> Result<Tensor> {
        Ok(self.unary(op)?.with_strides(strides))
    }

    /// A tensor that was just made, with these strides.
    pub(crate) fn with_strides(mut self, strides: Vec<Dim>) -> Tensor {
        // Nobody else has it.
        if let Some(node) = Arc::get_mut(&mut self.0) {
            node.view = Some(strides.into());
        }
        self
    }
}

/// Whether each stride is the product of the extents before it, as far as it is of any importance.
fn in_order<'a>(axes: impl Iterator<Item = (&'a Dim, &'a Dim)>) -> bool {
    let mut expected = Dim::one();
    for (extent, stride) in axes {
        if *stride != expected && extent.as_const().is_none_or(|n| n > 1) {
            return false;
        }
        expected = &expected * extent;
    }
    true
}

#[cfg(test)]
mod tests {
    use tallow_ir::{DType, Symbol};

    use super::*;
    use crate::compile::{Input, compile};
    use crate::device::Device;

    /// `[2, 3, 4]`.
    fn cube() -> Tensor {
        Tensor::arange(0f32, 24.0, &Device::Cpu).unwrap().reshape((2, 3, 4)).unwrap()
    }

    #[test]
    fn views_have_the_strides_of_what_they_are_of() {
        let x = cube();
        assert_eq!(
            (x.stride(), x.is_contiguous(), x.is_fortran_contiguous()),
            (&[12, 4, 1][..], true, false)
        );
        let t = x.t().unwrap();
        assert_eq!((t.stride(), t.is_contiguous()), (&[12, 1, 4][..], false));
        assert!(x.permute((2, 1, 0)).unwrap().is_fortran_contiguous());
        assert_eq!(t.t().unwrap().stride(), [12, 4, 1]);
        let part = x.narrow(1, 1, 2).unwrap();
        assert_eq!((part.stride(), part.is_contiguous()), (&[12, 4, 1][..], false));
        assert!(x.narrow(0, 1, 1).unwrap().is_contiguous());
        assert_eq!(x.get_on_dim(1, 2).unwrap().stride(), [12, 1]);
        assert_eq!(t.unsqueeze(1).unwrap().stride(), [12, 1, 1, 4]);
        assert_eq!(t.unsqueeze(3).unwrap().stride(), [12, 1, 4, 1]);
        assert_eq!(x.broadcast_left(5).unwrap().stride(), [0, 12, 4, 1]);
        let column = Tensor::zeros((3, 1), DType::F32, &Device::Cpu).unwrap();
        assert_eq!(column.broadcast_as((2, 3, 4)).unwrap().stride(), [0, 1, 0]);
        assert_eq!(x.unfold(2, 2, 2).unwrap().stride(), [12, 4, 2, 1]);
    }

    #[test]
    fn what_is_computed_or_reshaped_is_contiguous() {
        let t = cube().t().unwrap();
        for made in [
            t.contiguous().unwrap(),
            t.force_contiguous().unwrap(),
            t.reshape((2, 4, 3)).unwrap(),
            t.flatten_all().unwrap(),
            t.relu().unwrap(),
            Tensor::cat(&[&t, &t], 0).unwrap(),
        ] {
            assert!(made.is_contiguous());
            let expected = t.to_flat_vec::<f32>().unwrap();
            let elements = made.to_flat_vec::<f32>().unwrap();
            assert_eq!(elements[..expected.len()], expected);
        }
        assert_eq!(t.contiguous().unwrap().stride(), [12, 3, 1]);
    }

    #[test]
    fn symbolic_extents_count_as_more_than_one() {
        let input = Input::new("x", DType::F32, (Symbol::new("rows", 8), 1, 4));
        compile(&Device::Cpu, &[input], |x| {
            assert!(x[0].is_contiguous() && x[0].transpose(0, 1)?.is_contiguous());
            assert!(!x[0].transpose(0, 2)?.is_contiguous() && x[0].transpose(0, 2)?.is_fortran_contiguous());
            Ok(x.to_vec())
        })
        .unwrap();
    }
}
