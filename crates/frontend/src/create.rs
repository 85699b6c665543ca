//! Making tensors.

use tallow_ir::{DType, Shape, TensorType};

use crate::device::Device;
use crate::element::{NdArray, WithDType, to_bytes};
use crate::error::{Error, Result};
use crate::resident::check_bytes;
use crate::shape::IntoShape;
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

    /// A tensor of elements in row-major order.
    ///
    /// # Errors
    /// When the shape has another number of elements, or is symbolic.
    pub fn from_vec<T: WithDType>(
        elements: Vec<T>,
        shape: impl IntoShape,
        device: &Device,
    ) -> Result<Tensor> {
        Tensor::from_slice(&elements, shape, device)
    }

    /// A tensor of elements in row-major order.
    ///
    /// # Errors
    /// When the shape has another number of elements, or is symbolic.
    pub fn from_slice<T: WithDType>(
        elements: &[T],
        shape: impl IntoShape,
        device: &Device,
    ) -> Result<Tensor> {
        let shape = shape.into_shape();
        let extents = shape.as_const().ok_or_else(|| Error::SymbolicShape { shape: shape.clone() })?;
        let expected = extents.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
        if expected != Some(elements.len()) {
            let why = format!("{} elements do not fill shape {shape}", elements.len());
            return Err(Error::InvalidArgument { op: "from_slice", why });
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
        Ok(Tensor::node(ty, device, Expr::Data(std::sync::Arc::new(bytes))))
    }

    /// A tensor of one value.
    ///
    /// # Errors
    /// When the shape is not possible.
    pub fn full<T: WithDType>(value: T, shape: impl IntoShape, device: &Device) -> Result<Tensor> {
        if T::DTYPE != DType::I64 {
            return Tensor::constant(T::DTYPE, value.to_f64(), &shape.into_shape(), device);
        }
        // An f64 does not hold every i64.
        Tensor::from_slice(&[value], (), device)?.broadcast_as(shape)
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
    /// When that are too many.
    pub fn arange<T: WithDType>(start: T, end: T, device: &Device) -> Result<Tensor> {
        range(T::DTYPE, start.to_f64(), end.to_f64(), 1.0, device)
    }

    /// `start, start + step, ..` below `end` (above it where the step is negative).
    ///
    /// # Errors
    /// When the step is 0, or that are too many.
    pub fn arange_step<T: WithDType>(start: T, end: T, step: T, device: &Device) -> Result<Tensor> {
        range(T::DTYPE, start.to_f64(), end.to_f64(), step.to_f64(), device)
    }
}

fn range(dtype: DType, start: f64, end: f64, step: f64, device: &Device) -> Result<Tensor> {
    let count = ((end - start) / step).ceil().max(0.0);
    if step == 0.0 || !count.is_finite() || count > MAX_RANGE {
        let why = format!("from {start} to {end} by {step} is no range");
        return Err(Error::InvalidArgument { op: "arange", why });
    }
    let values: Vec<f64> = (0..count as u64).map(|i| start + step * i as f64).collect();
    let extents = [values.len()];
    let array = tallow_reference::Array::from_f64s(dtype, &extents, &values)
        .map_err(|e| Error::Interpreter(e.to_string()))?;
    Tensor::from_raw(dtype, extents.into_shape(), array.to_bytes(), device)
}
