//! Windows that slide along axes: the view under convolutions and pools.

use tallow_ir::{DType, Dim, Op};

use crate::device::Device;
use crate::error::{Error, Result};
use crate::shape::{Axis, IntoShape};
use crate::tensor::Tensor;

/// Two sizes as an argument: one number for both, or `(height, width)`.
pub trait ToUsize2 {
    /// Height and width.
    fn to_usize2(self) -> (usize, usize);
}

impl ToUsize2 for usize {
    fn to_usize2(self) -> (usize, usize) {
        (self, self)
    }
}

impl ToUsize2 for (usize, usize) {
    fn to_usize2(self) -> (usize, usize) {
        self
    }
}

/// Most entries along an axis for which a table of positions is made.
pub(crate) const MAX_TABLE: usize = 1 << 28;

/// How windows slide along one axis.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sliding {
    /// Elements of a window.
    pub size: usize,
    /// From one window to the next.
    pub stride: usize,
    /// From one element of a window to the next.
    pub dilation: usize,
}

impl Tensor {
    /// All slices of `size` elements of an axis, `step` apart: the axis counts them, and a new last axis holds
    /// the elements of each. A view; nothing is copied.
    ///
    /// # Errors
    /// When the axis does not exist or is shorter than `size`, or `size` or `step` is 0.
    pub fn unfold(&self, axis: impl Axis, size: usize, step: usize) -> Result<Tensor> {
        let axis = axis.of(self.sym_shape(), "unfold")?;
        let out = self.windows("unfold", axis, Sliding { size, stride: step, dilation: 1 })?;
        let rest = (0..out.rank()).filter(|i| *i != axis + 1);
        let mut strides = self.sym_strides().into_owned();
        strides.push(strides[axis].clone());
        strides[axis] = &strides[axis] * &step.into();
        out.view(Op::Permute(rest.chain([axis + 1]).collect()), strides)
    }

    /// `axis` as two, the windows along it and their elements.
    pub(crate) fn windows(&self, op: &'static str, axis: usize, by: Sliding) -> Result<Tensor> {
        let Sliding { size, stride, dilation } = by;
        if size == 0 || stride == 0 || dilation == 0 {
            let why = format!("size {size}, stride {stride} and dilation {dilation} must not be 0");
            return Err(Error::InvalidArgument { op, why });
        }
        let extent = &self.sym_dims()[axis];
        // Kernels count positions in 32 bits, those before a pad as large numbers.
        if extent.max_value() > i64::from(i32::MAX) {
            let why = format!("axis {axis} of shape {} is longer than 2^31 - 1", self.sym_shape());
            return Err(Error::InvalidArgument { op, why });
        }
        let span = (size - 1).checked_mul(dilation).and_then(|n| n.checked_add(1));
        if extent.as_const().is_some_and(|n| span.is_none_or(|span| Dim::from(span) > Dim::from(n))) {
            let why = format!(
                "windows of {size} elements {dilation} apart are longer than axis {axis} of shape {}",
                self.sym_shape()
            );
            return Err(Error::InvalidArgument { op, why });
        }
        self.unary(Op::Window { axis, size, stride, dilation })
    }

    /// Axes `first..` as windows, one slide each: `[.., n, m]` to `[.., windows, size, windows, size]`.
    pub(crate) fn windows_from(&self, op: &'static str, first: usize, slides: &[Sliding]) -> Result<Tensor> {
        // From the last axis, so that the numbers of those before stay.
        let mut axes = slides.iter().enumerate().rev();
        axes.try_fold(self.clone(), |t, (i, by)| t.windows(op, first + i, *by))
    }

    /// A tensor of numbers that were computed here.
    pub(crate) fn table(
        dtype: DType,
        values: &[f64],
        shape: impl IntoShape,
        device: &Device,
    ) -> Result<Tensor> {
        let array = tallow_reference::Array::from_f64s(dtype, &[values.len()], values)
            .map_err(|e| Error::Interpreter(e.to_string()))?;
        Tensor::from_raw(dtype, shape.into_shape(), array.to_bytes(), device)
    }

    /// The tensor in f32 where its floats are shorter, so that sums of it are rounded once.
    pub(crate) fn widened(&self) -> Result<Tensor> {
        let short = self.dtype().is_float() && self.dtype().size().is_some_and(|bytes| bytes < 4);
        if short { self.to_dtype(DType::F32) } else { Ok(self.clone()) }
    }

    /// Refuses elements that are no floats.
    pub(crate) fn floats(&self, op: &'static str) -> Result<()> {
        let expected = || "a float type".to_string();
        let got = self.dtype();
        if got.is_float() { Ok(()) } else { Err(Error::UnexpectedDType { op, expected: expected(), got }) }
    }

    /// Refuses tensors of another rank.
    pub(crate) fn of_rank(&self, op: &'static str, expected: usize) -> Result<&[Dim]> {
        let (got, dims) = (self.rank(), self.sym_dims());
        let wrong = || Error::UnexpectedNumberOfDims { op, expected, got, shape: self.sym_shape().clone() };
        if got == expected { Ok(dims) } else { Err(wrong()) }
    }
}
