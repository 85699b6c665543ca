//! Making tensors.

use tallow_ir::{DType, Op, Scalar, Shape, TensorType};

use crate::device::Device;
use crate::element::{NdArray, WithDType, to_bytes, write_float, write_integer};
use crate::error::{Error, Result};
use crate::resident::check_bytes;
use crate::shape::{IntoShape, ReshapeTo, fill_hole};
use crate::tensor::{Expr, Tensor};

/// The most elements that [`Tensor::arange`] makes.
const MAX_RANGE: f64 = (1u64 << 32) as f64;

impl Tensor {
    /// A tensor of a number or of nested arrays, slices or vectors of numbers.
    ///
    /// # Errors
    /// When parts of one level differ in length.
    pub fn new<A: NdArray>(array: A, device: &Device) -> Result<Tensor> {
        let extents = array.extents()?;
        let mut elements = Vec::with_capacity(extents.iter().product());
        array.flatten(&mut elements);
        Tensor::from_vec(elements, extents, device)
    }

    /// A tensor of elements in row-major order; one extent of a tuple may be `()`.
    ///
    /// # Errors
    /// When the shape has another number of elements, or is symbolic.
    pub fn from_vec<T: WithDType>(
        elements: Vec<T>,
        shape: impl ReshapeTo,
        device: &Device,
    ) -> Result<Tensor> {
        Tensor::from_elements("from_vec", &elements, shape, device)
    }

    /// A tensor of elements in row-major order; one extent of a tuple may be `()`.
    ///
    /// # Errors
    /// When the shape has another number of elements, or is symbolic.
    pub fn from_slice<T: WithDType>(
        elements: &[T],
        shape: impl ReshapeTo,
        device: &Device,
    ) -> Result<Tensor> {
        Tensor::from_elements("from_slice", elements, shape, device)
    }

    /// A tensor of one axis with the elements that an iterator gives.
    ///
    /// # Errors
    /// When they are too many for a tensor.
    pub fn from_iter<T: WithDType>(elements: impl IntoIterator<Item = T>, device: &Device) -> Result<Tensor> {
        let elements: Vec<T> = elements.into_iter().collect();
        Tensor::from_elements("from_iter", &elements, elements.len(), device)
    }

    fn from_elements<T: WithDType>(
        op: &'static str,
        elements: &[T],
        shape: impl ReshapeTo,
        device: &Device,
    ) -> Result<Tensor> {
        let count = elements.len();
        let shape = fill_hole(op, &count.into(), shape)?;
        let extents = shape.as_const().ok_or_else(|| Error::SymbolicShape { shape: shape.clone() })?;
        let expected = extents.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
        if expected != Some(count) {
            return Err(Error::ShapeMismatch { op, buffer_size: count, shape });
        }
        Tensor::from_raw(T::DTYPE, shape, to_bytes(elements), device)
    }

    /// A tensor from its bytes: row-major and little-endian.
    ///
    /// # Errors
    /// When the number of bytes is not the type's, the type is a block format, or the shape is symbolic.
    pub fn from_raw_bytes(
        bytes: &[u8],
        dtype: DType,
        shape: impl IntoShape,
        device: &Device,
    ) -> Result<Tensor> {
        Tensor::from_raw(dtype, shape.into_shape(), bytes.to_vec(), device)
    }

    /// [`Tensor::from_raw_bytes`] that takes the bytes over instead of copying them.
    ///
    /// # Errors
    /// As there.
    pub fn from_raw_vec(
        bytes: Vec<u8>,
        dtype: DType,
        shape: impl IntoShape,
        device: &Device,
    ) -> Result<Tensor> {
        Tensor::from_raw(dtype, shape.into_shape(), bytes, device)
    }

    /// [`Tensor::from_raw_bytes`] under Candle's name.
    ///
    /// # Errors
    /// As there.
    pub fn from_raw_buffer(bytes: &[u8], dtype: DType, shape: &[usize], device: &Device) -> Result<Tensor> {
        Tensor::from_raw_bytes(bytes, dtype, shape, device)
    }

    pub(crate) fn from_raw(dtype: DType, shape: Shape, bytes: Vec<u8>, device: &Device) -> Result<Tensor> {
        let extents = shape.as_const().ok_or_else(|| Error::SymbolicShape { shape: shape.clone() })?;
        if dtype.size().is_none() {
            let expected = "a scalar type".to_string();
            return Err(Error::UnexpectedDType { op: "from_raw_bytes", expected, got: dtype });
        }
        let ty = TensorType { dtype, shape };
        check_bytes("tensor", "", &ty, &extents, bytes.len())?;
        // The IR's own limits (rank, number of elements) hold for tensors that are only data too.
        tallow_ir::infer::infer(&tallow_ir::Op::Input { name: String::new(), ty: ty.clone() }, &[])?;
        Tensor::node(ty, device, Expr::Data(std::sync::Arc::new(bytes)))
    }

    /// A tensor of one value.
    ///
    /// # Errors
    /// When the shape is not possible.
    pub fn full<T: WithDType>(value: T, shape: impl IntoShape, device: &Device) -> Result<Tensor> {
        let scalar = if T::DTYPE.is_int() {
            Scalar::int(T::DTYPE, exact_integer(value))
        } else {
            Scalar::float(T::DTYPE, value.to_f64())
        };
        Tensor::of_op(Op::Const(scalar), &[], device)?.broadcast_as(shape)
    }

    /// Zeros.
    ///
    /// # Errors
    /// When the shape is not possible, or the type is a block format.
    pub fn zeros(shape: impl IntoShape, dtype: DType, device: &Device) -> Result<Tensor> {
        Tensor::constant(dtype, 0.0, &shape.into_shape(), device)
    }

    /// Ones.
    ///
    /// # Errors
    /// When the shape is not possible, or the type is a block format.
    pub fn ones(shape: impl IntoShape, dtype: DType, device: &Device) -> Result<Tensor> {
        Tensor::constant(dtype, 1.0, &shape.into_shape(), device)
    }

    /// Zeros of this tensor's type and shape.
    ///
    /// # Errors
    /// Never for a tensor that exists.
    pub fn zeros_like(&self) -> Result<Tensor> {
        self.constant_like(0.0)
    }

    /// Ones of this tensor's type and shape.
    ///
    /// # Errors
    /// Never for a tensor that exists.
    pub fn ones_like(&self) -> Result<Tensor> {
        self.constant_like(1.0)
    }

    /// `start, start + 1, ..` below `end`.
    ///
    /// # Errors
    /// When that are too many, or the numbers become so large that adding 1 changes nothing.
    pub fn arange<T: WithDType>(start: T, end: T, device: &Device) -> Result<Tensor> {
        range(T::DTYPE, start, end, 1, 1.0, device)
    }

    /// `start, start + step, ..` below `end` (above it where the step is negative). Each number is the one
    /// before plus the step, rounded to the element type.
    ///
    /// # Errors
    /// When the step is 0, adding it changes nothing, or that are too many.
    pub fn arange_step<T: WithDType>(start: T, end: T, step: T, device: &Device) -> Result<Tensor> {
        range(T::DTYPE, start, end, exact_integer(step), step.to_f64(), device)
    }
}

/// An integer element's value; an f64 does not hold every i64.
fn exact_integer<T: WithDType>(value: T) -> i64 {
    match T::DTYPE {
        DType::I64 => i64::read(&to_bytes(&[value])),
        _ => value.to_f64() as i64,
    }
}

fn range<T: WithDType>(
    dtype: DType,
    start: T,
    end: T,
    int_step: i64,
    float_step: f64,
    device: &Device,
) -> Result<Tensor> {
    let (from, to) = (start.to_f64(), end.to_f64());
    let count = ((to - from) / float_step).ceil().max(0.0);
    let fail = || Error::InvalidArgument {
        op: "arange",
        why: format!("from {from} to {to} by {float_step} is no range of {dtype}"),
    };
    if float_step == 0.0 || !count.is_finite() || count > MAX_RANGE {
        return Err(fail());
    }
    let mut bytes = Vec::new();
    let mut len = 0usize;
    if dtype.is_int() {
        let (mut at, end) = (i128::from(exact_integer(start)), i128::from(exact_integer(end)));
        while if int_step > 0 { at < end } else { at > end } {
            write_integer(dtype, at as i64, &mut bytes);
            len += 1;
            at += i128::from(int_step);
        }
    } else {
        let mut at = from;
        while if float_step > 0.0 { at < to } else { at > to } {
            write_float(dtype, at, &mut bytes);
            len += 1;
            let next = tallow_ir::round::float(dtype, at + float_step);
            if next == at {
                return Err(fail());
            }
            at = next;
        }
    }
    Tensor::from_raw(dtype, [len].into_shape(), bytes, device)
}
