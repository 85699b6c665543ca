//! What depends on the order of elements along an axis: running sums, sorting.

use tallow_ir::{Op, ScanKind, SortSpan};

use crate::error::{Error, Result};
use crate::shape::{Axis, D};
use crate::tensor::Tensor;

impl Tensor {
    /// Running sums along an axis: element `i` is the sum of elements `0 ..= i`. Sums of 16-bit floats are kept
    /// in f32 and rounded once an element; integers wrap.
    ///
    /// # Errors
    /// When the axis does not exist.
    pub fn cumsum(&self, axis: impl Axis) -> Result<Tensor> {
        let axis = axis.of(self.sym_shape(), "cumsum")?;
        self.unary(Op::Scan { kind: ScanKind::Sum, axis, part: None })
    }

    /// Running products along an axis. A device multiplies in groups: where the product of a group overflows, it is NaN
    /// after a zero.
    ///
    /// # Errors
    /// When the axis does not exist.
    pub fn cumprod(&self, axis: impl Axis) -> Result<Tensor> {
        let axis = axis.of(self.sym_shape(), "cumprod")?;
        self.unary(Op::Scan { kind: ScanKind::Prod, axis, part: None })
    }

    /// The linear recurrence `h[i] = a[i] * h[i-1] + b[i]` along an axis, which begins with `h[0] = b[0]`; `self` is `a`, of
    /// the shape and float type of `b`. Ours, not Candle's. 16-bit floats are kept in f32 and rounded once an element.
    ///
    /// A device combines elements in groups: where the product of a group's coefficients overflows, it is NaN after a
    /// zero.
    ///
    /// # Errors
    /// When shapes or types differ, the type is of integers, or the axis does not exist.
    ///
    /// ```
    /// # use tallow::{Device, Tensor};
    /// let a = Tensor::new(&[0.5f32, 0.5, 2.0], &Device::Cpu)?;
    /// let b = Tensor::new(&[1f32, 2.0, 3.0], &Device::Cpu)?;
    /// assert_eq!(a.linear_scan(&b, 0)?.to_vec1::<f32>()?, [1.0, 2.5, 8.0]);
    /// # Ok::<(), tallow::Error>(())
    /// ```
    pub fn linear_scan(&self, b: &Tensor, axis: impl Axis) -> Result<Tensor> {
        let axis = axis.of(self.sym_shape(), "linear_scan")?;
        Tensor::of_op(Op::Scan { kind: ScanKind::Linear, axis, part: None }, &[self, b], self.device())
    }

    /// The positions (`u32`) along the last axis in the order of the elements there, smallest first if `asc`.
    /// Equal elements keep their order; NaN is above every number.
    ///
    /// # Errors
    /// For a scalar.
    pub fn arg_sort_last_dim(&self, asc: bool) -> Result<Tensor> {
        let axis = D::Minus1.of(self.sym_shape(), "arg_sort_last_dim")?;
        self.unary(Op::ArgSort { axis, descending: !asc, span: SortSpan::All })
    }

    /// The elements along the last axis in order, and the positions that they had.
    ///
    /// # Errors
    /// For a scalar, or when the shape is symbolic.
    pub fn sort_last_dim(&self, asc: bool) -> Result<(Tensor, Tensor)> {
        let order = self.arg_sort_last_dim(asc)?;
        if self.const_elem_count()? == 0 {
            return Ok((self.clone(), order));
        }
        Ok((self.gather(&order, D::Minus1)?, order))
    }

    /// The `k` largest elements along the last axis, largest first, and their positions.
    ///
    /// # Errors
    /// When there are less than `k`, for a scalar, or when the shape is symbolic.
    pub fn topk(&self, k: usize) -> Result<(Tensor, Tensor)> {
        let order = self.arg_sort_last_dim(false)?;
        let extent = self.const_dim(D::Minus1)?;
        if k > extent {
            let why = format!("the {k} largest of {extent} elements, shape {}", self.sym_shape());
            return Err(Error::InvalidArgument { op: "topk", why });
        }
        let order = order.narrow(D::Minus1, 0, k)?;
        if order.const_elem_count()? == 0 {
            return Ok((Tensor::zeros(order.sym_shape(), self.dtype(), self.device())?, order));
        }
        Ok((self.gather(&order, D::Minus1)?, order))
    }
}
