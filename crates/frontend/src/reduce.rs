//! Reductions: many elements to one.

use tallow_ir::{Op, ReduceKind};

use crate::error::{Error, Result};
use crate::shape::{Axes, Axis};
use crate::tensor::Tensor;

/// Generates the methods of a reduction that takes several axes, and of one that takes a single axis.
macro_rules! reductions {
    (
        many { $($many:ident $many_keepdim:ident $many_all:ident $many_kind:ident $many_doc:literal)* }
        one { $($one:ident $one_keepdim:ident $one_kind:ident $one_doc:literal)* }
    ) => {
        impl Tensor {
            $(
                #[doc = $many_doc]
                /// The axes disappear.
                ///
                /// # Errors
                /// When the tensor does not have them.
                pub fn $many(&self, axes: impl Axes) -> Result<Tensor> {
                    let axes = axes.of(self.shape(), stringify!($many))?;
                    self.reduced(ReduceKind::$many_kind, axes)
                }

                #[doc = $many_doc]
                /// The axes stay with extent 1.
                ///
                /// # Errors
                /// When the tensor does not have them.
                pub fn $many_keepdim(&self, axes: impl Axes) -> Result<Tensor> {
                    let axes = axes.of(self.shape(), stringify!($many_keepdim))?;
                    let kept = self.shape().with_ones(&axes);
                    self.reduced(ReduceKind::$many_kind, axes)?.reshape(kept)
                }

                #[doc = $many_doc]
                /// Over all axes; the result is a scalar.
                ///
                /// # Errors
                /// Never for a tensor that exists.
                pub fn $many_all(&self) -> Result<Tensor> {
                    self.reduced(ReduceKind::$many_kind, (0..self.rank()).collect())
                }
            )*
            $(
                #[doc = $one_doc]
                /// The axis disappears.
                ///
                /// # Errors
                /// When the tensor does not have it.
                pub fn $one(&self, axis: impl Axis) -> Result<Tensor> {
                    let axis = axis.of(self.shape(), stringify!($one))?;
                    self.reduced(ReduceKind::$one_kind, vec![axis])
                }

                #[doc = $one_doc]
                /// The axis stays with extent 1.
                ///
                /// # Errors
                /// When the tensor does not have it.
                pub fn $one_keepdim(&self, axis: impl Axis) -> Result<Tensor> {
                    let axis = axis.of(self.shape(), stringify!($one_keepdim))?;
                    let kept = self.shape().with_ones(&[axis]);
                    self.reduced(ReduceKind::$one_kind, vec![axis])?.reshape(kept)
                }
            )*
        }
    };
}

reductions! {
    many {
        sum sum_keepdim sum_all Sum "Sum over axes."
        prod prod_keepdim prod_all Prod "Product over axes."
        max max_keepdim max_all Max "Largest element over axes; NaN if there is one."
        min min_keepdim min_all Min "Smallest element over axes; NaN if there is one."
    }
    one {
        argmax argmax_keepdim ArgMax "Index (u32) of the first largest element of an axis."
        argmin argmin_keepdim ArgMin "Index (u32) of the first smallest element of an axis."
    }
}

impl Tensor {
    fn reduced(&self, kind: ReduceKind, mut axes: Vec<usize>) -> Result<Tensor> {
        axes.sort_unstable();
        if axes.is_empty() { Ok(self.clone()) } else { self.unary(Op::Reduce { kind, axes }) }
    }

    /// Mean over axes, which disappear.
    ///
    /// # Errors
    /// When the tensor does not have them, their extents are symbolic, or the elements are no floats.
    pub fn mean(&self, axes: impl Axes) -> Result<Tensor> {
        let axes = axes.of(self.shape(), "mean")?;
        let count = self.count("mean", &axes)?;
        self.reduced(ReduceKind::Sum, axes)?.affine(1.0 / count, 0.0)
    }

    /// Mean over axes, which stay with extent 1.
    ///
    /// # Errors
    /// As [`Tensor::mean`].
    pub fn mean_keepdim(&self, axes: impl Axes) -> Result<Tensor> {
        let axes = axes.of(self.shape(), "mean_keepdim")?;
        let kept = self.shape().with_ones(&axes);
        let count = self.count("mean_keepdim", &axes)?;
        self.reduced(ReduceKind::Sum, axes)?.reshape(kept)?.affine(1.0 / count, 0.0)
    }

    /// Mean of all elements.
    ///
    /// # Errors
    /// As [`Tensor::mean`].
    pub fn mean_all(&self) -> Result<Tensor> {
        self.mean((0..self.rank()).collect::<Vec<_>>())
    }

    /// `log(sum(e^x))` over an axis, which stays with extent 1, safe for large elements.
    ///
    /// # Errors
    /// When the tensor does not have the axis, or the elements are no floats.
    pub fn log_sum_exp_keepdim(&self, axis: impl Axis) -> Result<Tensor> {
        let axis = axis.of(self.shape(), "log_sum_exp")?;
        let max = self.max_keepdim(axis)?;
        let sum = self.broadcast_sub(&max)?.exp()?.sum_keepdim(axis)?;
        sum.log()?.add(&max)
    }

    /// How many elements a mean is over.
    fn count(&self, op: &'static str, axes: &[usize]) -> Result<f64> {
        if !self.dtype().is_float() {
            let expected = "a float type".to_string();
            return Err(Error::UnexpectedDType { op, expected, got: self.dtype() });
        }
        let extents = axes.iter().map(|axis| self.dim(*axis)).collect::<Result<Vec<_>>>()?;
        Ok(extents.iter().product::<usize>() as f64)
    }
}
