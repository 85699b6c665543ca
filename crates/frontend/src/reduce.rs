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
                    let axes = axes.of(self.sym_shape(), stringify!($many))?;
                    self.reduced(ReduceKind::$many_kind, axes)
                }

                #[doc = $many_doc]
                /// The axes stay with extent 1.
                ///
                /// # Errors
                /// When the tensor does not have them.
                pub fn $many_keepdim(&self, axes: impl Axes) -> Result<Tensor> {
                    let axes = axes.of(self.sym_shape(), stringify!($many_keepdim))?;
                    let keepdim = self.sym_shape().with_ones(&axes);
                    self.reduced(ReduceKind::$many_kind, axes)?.reshape(keepdim)
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
                    let axis = axis.of(self.sym_shape(), stringify!($one))?;
                    self.reduced(ReduceKind::$one_kind, vec![axis])
                }

                #[doc = $one_doc]
                /// The axis stays with extent 1.
                ///
                /// # Errors
                /// When the tensor does not have it.
                pub fn $one_keepdim(&self, axis: impl Axis) -> Result<Tensor> {
                    let axis = axis.of(self.sym_shape(), stringify!($one_keepdim))?;
                    let keepdim = self.sym_shape().with_ones(&[axis]);
                    self.reduced(ReduceKind::$one_kind, vec![axis])?.reshape(keepdim)
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
        let op = match kind {
            ReduceKind::Sum | ReduceKind::Prod => None,
            ReduceKind::Max => Some("max"),
            ReduceKind::Min => Some("min"),
            ReduceKind::ArgMax => Some("argmax"),
            ReduceKind::ArgMin => Some("argmin"),
        };
        // Nothing has no largest element. (It has a sum, and a row of nothing among no rows is no row.)
        if let Some(op) = op.filter(|_| axes.iter().any(|axis| self.sym_dims()[*axis].is(0))) {
            return Err(Error::EmptyTensor { op, shape: self.sym_shape().clone() });
        }
        if axes.is_empty() { Ok(self.clone()) } else { self.unary(Op::Reduce { kind, axes }) }
    }

    /// Mean over axes, which disappear.
    ///
    /// # Errors
    /// When the tensor does not have them, their extents are symbolic, or the elements are no floats.
    pub fn mean(&self, axes: impl Axes) -> Result<Tensor> {
        let axes = axes.of(self.sym_shape(), "mean")?;
        let count = self.count("mean", &axes)?;
        self.reduced(ReduceKind::Sum, axes)?.affine(1.0 / count, 0.0)
    }

    /// Mean over axes, which stay with extent 1.
    ///
    /// # Errors
    /// As [`Tensor::mean`].
    pub fn mean_keepdim(&self, axes: impl Axes) -> Result<Tensor> {
        let axes = axes.of(self.sym_shape(), "mean_keepdim")?;
        let keepdim = self.sym_shape().with_ones(&axes);
        let count = self.count("mean_keepdim", &axes)?;
        self.reduced(ReduceKind::Sum, axes)?.reshape(keepdim)?.affine(1.0 / count, 0.0)
    }

    /// Mean of all elements.
    ///
    /// # Errors
    /// As [`Tensor::mean`].
    pub fn mean_all(&self) -> Result<Tensor> {
        self.mean((0..self.rank()).collect::<Vec<_>>())
    }

    /// Variance over an axis, which disappears: squared distances from the mean, divided by one less than
    /// their number.
    ///
    /// # Errors
    /// When the tensor does not have the axis, it is symbolic or empty, or the elements are no floats.
    pub fn var(&self, axis: impl Axis) -> Result<Tensor> {
        let axis = axis.of(self.sym_shape(), "var")?;
        self.var_keepdim(axis)?.squeeze(axis)
    }

    /// [`Tensor::var`]; the axis stays with extent 1.
    ///
    /// # Errors
    /// As there.
    pub fn var_keepdim(&self, axis: impl Axis) -> Result<Tensor> {
        let axis = axis.of(self.sym_shape(), "var")?;
        let count = self.count("var", &[axis])?;
        if count == 0.0 {
            return Err(Error::EmptyTensor { op: "var", shape: self.sym_shape().clone() });
        }
        let squares = self.broadcast_sub(&self.mean_keepdim(axis)?)?.sqr()?;
        squares.sum_keepdim(axis)?.affine(1.0 / (count - 1.0), 0.0)
    }

    /// `log(sum(e^x))` over axes, which disappear, safe for large elements.
    ///
    /// # Errors
    /// When the tensor does not have the axes, or the elements are no floats.
    pub fn log_sum_exp(&self, axes: impl Axes) -> Result<Tensor> {
        let axes = axes.of(self.sym_shape(), "log_sum_exp")?;
        if axes.is_empty() {
            return Ok(self.clone());
        }
        let without = self.sym_shape().without(&axes);
        // Whatever is subtracted, the result is the same: it has no part in the gradient.
        let max = self.max_keepdim(axes.as_slice())?.detach();
        let sum = self.broadcast_sub(&max)?.exp()?.sum(axes)?;
        sum.log()?.add(&max.reshape(without)?)
    }

    /// [`Tensor::log_sum_exp`]; the axes stay with extent 1.
    ///
    /// # Errors
    /// As there.
    pub fn log_sum_exp_keepdim(&self, axes: impl Axes) -> Result<Tensor> {
        let axes = axes.of(self.sym_shape(), "log_sum_exp")?;
        let keepdim = self.sym_shape().with_ones(&axes);
        self.log_sum_exp(axes)?.reshape(keepdim)
    }

    /// The square root of the sum of all squares.
    ///
    /// # Errors
    /// When the elements are no floats.
    pub fn norm(&self) -> Result<Tensor> {
        self.float_only("norm")?;
        let squares = self.sqr()?.sum_all()?;
        match self.origin() {
            None => squares.sqrt(),
            // The gradient of a norm of 0 is 0, where that of the square root is infinite.
            Some(_) => {
                let is_zero = squares.eq(0.0)?;
                let root = is_zero.where_cond(&squares.ones_like()?, &squares)?.sqrt()?;
                is_zero.where_cond(&squares.zeros_like()?, &root)
            }
        }
    }

    /// 1 (u8) where an element over the axes is not 0, else 0. The axes disappear.
    ///
    /// # Errors
    /// When the tensor does not have them.
    pub fn any(&self, axes: impl Axes) -> Result<Tensor> {
        let axes = axes.of(self.sym_shape(), "any")?;
        // Not all of them are zero, which also holds for none at all.
        self.eq(0.0)?.all_ones(axes)?.eq(0.0)
    }

    /// 1 (u8) where all elements over the axes are not 0, else 0. The axes disappear.
    ///
    /// # Errors
    /// When the tensor does not have them.
    pub fn all(&self, axes: impl Axes) -> Result<Tensor> {
        let axes = axes.of(self.sym_shape(), "all")?;
        self.ne(0.0)?.all_ones(axes)
    }

    /// The product of truths: 1 for none at all.
    fn all_ones(&self, axes: Vec<usize>) -> Result<Tensor> {
        self.reduced(ReduceKind::Prod, axes)
    }

    fn float_only(&self, op: &'static str) -> Result<()> {
        if self.dtype().is_float() {
            return Ok(());
        }
        Err(Error::UnexpectedDType { op, expected: "a float type".into(), got: self.dtype() })
    }

    /// How many elements a mean is over.
    fn count(&self, op: &'static str, axes: &[usize]) -> Result<f64> {
        self.float_only(op)?;
        let extents = axes.iter().map(|axis| self.const_dim(*axis)).collect::<Result<Vec<_>>>()?;
        Ok(extents.iter().product::<usize>() as f64)
    }
}
