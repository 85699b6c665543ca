//! Tensors of blocks: weights rounded to a few bits, in the formats of GGUF files, with the names of
//! `candle_core::quantized`.
//!
//! [`Tensor::quantize`] gives a tensor whose element type is a block format. It is known, it stays on its device once
//! a graph has read it, and what reads it is [`Tensor::dequantize`]: no kernel runs for that, the kernels that read
//! the result unpack the blocks.

use std::sync::Arc;

use tallow_ir::{DType, Op, TensorType};

/// Candle's name of [`tallow_ir::Format`].
pub use tallow_ir::Format as GgmlDType;

use crate::blocks::Blocks;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::module::Module;
use crate::shape::{D, IntoShape};
use crate::tensor::{Expr, Tensor};

impl Tensor {
    /// A constant that is uploaded now and stays on its device: elements row-major and little-endian, or blocks as they
    /// lie in a GGUF file. Graphs read it as a weight, the host keeps no copy.
    ///
    /// ```
    /// use tallow::{DType, Device, Tensor};
    /// let w = Tensor::resident(&2f32.to_le_bytes(), DType::F32, 1, &Device::Cpu)?;
    /// assert_eq!(w.add(&w)?.to_vec1::<f32>()?, [4.0]);
    /// assert_eq!(w.to_vec1::<f32>()?, [2.0]);
    /// # Ok::<(), tallow::Error>(())
    /// ```
    ///
    /// # Errors
    /// When the shape is symbolic, the number of bytes is not the type's, or the device's memory does not suffice.
    pub fn resident(bytes: &[u8], dtype: DType, shape: impl IntoShape, device: &Device) -> Result<Tensor> {
        let ty = TensorType { dtype, shape: shape.into_shape() };
        // The IR's own limits (rank, number of elements) hold for tensors that are only data too.
        tallow_ir::infer::infer(&Op::Weight { name: String::new(), ty: ty.clone() }, &[])?;
        let symbolic = || Error::SymbolicShape { shape: ty.shape.clone() };
        let weight = device.weight(dtype, &ty.shape.as_const().ok_or_else(symbolic)?, bytes)?;
        Tensor::node(ty, device, Expr::Blocks(Arc::new(Blocks::of_weight(weight))))
    }

    /// The elements rounded to a block format, row by row along the last axis, as `tallow_quant::quantize` does it. Values
    /// should be finite: what a block with others becomes is open.
    ///
    /// What a Vulkan device is still to compute it rounds itself, to the formats of [`Op::QUANTIZED`], in the kernel that
    /// computes it where that can: quotients next to a half may then round the other way. All else is computed and
    /// rounded on the CPU.
    ///
    /// ```
    /// use tallow::{Device, Format, Tensor};
    /// let w = Tensor::arange(-16f32, 16.0, &Device::Cpu)?;
    /// let q = w.quantize(Format::Q8_0)?;
    /// let worst = w.sub(&q.dequantize()?)?.abs()?.max_all()?.to_scalar::<f32>()?;
    /// assert!(worst <= 16.0 / 127.0 / 2.0 * 1.01); // half a step
    /// # Ok::<(), tallow::Error>(())
    /// ```
    ///
    /// # Errors
    /// When rows are no whole blocks, the elements are no floats, or computing fails.
    pub fn quantize(&self, format: GgmlDType) -> Result<Tensor> {
        self.floats("quantize")?;
        let dims = self.const_dims()?;
        let ty = TensorType::new(DType::Block(format), dims);
        let per = format.block_elements();
        if dims.last().is_none_or(|row| !row.is_multiple_of(per)) {
            let why = format!("rows of {} are no whole {} blocks of {per}", self.sym_shape(), format.name());
            return Err(Error::InvalidArgument { op: "quantize", why });
        }
        if Op::QUANTIZED.contains(&format) && !self.is_known() && self.device() != &Device::Cpu {
            return self.to_dtype(DType::F32)?.unary(Op::Quantize(format));
        }
        let values = self.to_dtype(DType::F32)?.to_flat_vec::<f32>()?;
        let bytes = tallow_quant::quantize(format, &values)
            .map_err(|e| Error::InvalidArgument { op: "quantize", why: e.to_string() })?;
        Tensor::node(ty, self.device(), Expr::Blocks(Arc::new(Blocks::new(Arc::new(bytes)))))
    }

    /// What the blocks mean, in f32; a tensor of numbers as it is.
    ///
    /// # Errors
    /// None that a tensor of this crate can cause.
    pub fn dequantize(&self) -> Result<Tensor> {
        match self.dtype() {
            DType::Block(_) => self.unary(Op::Dequantize(DType::F32)),
            DType::U8
            | DType::U32
            | DType::I16
            | DType::I32
            | DType::I64
            | DType::F8E4M3
            | DType::F16
            | DType::BF16
            | DType::F32
            | DType::F64 => Ok(self.clone()),
        }
    }
}

/// A tensor that holds blocks.
#[derive(Clone, Debug)]
pub struct QTensor {
    tensor: Tensor,
    format: GgmlDType,
}

impl QTensor {
    /// `src` rounded to a format, see [`Tensor::quantize`].
    ///
    /// # Errors
    /// As there.
    pub fn quantize(src: &Tensor, dtype: GgmlDType) -> Result<QTensor> {
        let tensor = src.quantize(dtype)?;
        // Rounded now, and not again by each expression that reads it.
        tensor.bytes("quantize")?;
        Ok(QTensor { tensor, format: dtype })
    }

    /// Blocks as they lie in a GGUF file.
    ///
    /// # Errors
    /// When rows are no whole blocks or `data` has not the bytes of the shape.
    pub fn from_blocks(
        data: Vec<u8>,
        shape: impl Into<Vec<usize>>,
        dtype: GgmlDType,
        device: &Device,
    ) -> Result<QTensor> {
        let dims = shape.into();
        let expected = tallow_reference::byte_len(DType::Block(dtype), &dims)
            .map_err(|e| Error::InvalidArgument { op: "from_blocks", why: e.to_string() })?;
        if data.len() != expected {
            let why = format!("{} bytes for {dims:?} in {dtype}, which takes {expected}", data.len());
            return Err(Error::InvalidArgument { op: "from_blocks", why });
        }
        let ty = TensorType::new(DType::Block(dtype), dims);
        let tensor = Tensor::node(ty, device, Expr::Blocks(Arc::new(Blocks::new(Arc::new(data)))))?;
        Ok(QTensor { tensor, format: dtype })
    }

    /// The tensor.
    pub fn tensor(&self) -> &Tensor {
        &self.tensor
    }

    /// What the blocks mean, in f32, on a device.
    ///
    /// # Errors
    /// When computing or copying fails.
    pub fn dequantize(&self, device: &Device) -> Result<Tensor> {
        self.tensor.to_device(device)?.dequantize()
    }

    /// The format.
    pub fn dtype(&self) -> GgmlDType {
        self.format
    }

    /// The shape, in elements.
    pub fn shape(&self) -> &crate::Shape {
        self.tensor.shape()
    }

    /// Number of axes.
    pub fn rank(&self) -> usize {
        self.tensor.rank()
    }

    /// The device.
    pub fn device(&self) -> Device {
        self.tensor.device().clone()
    }

    /// Bytes of all blocks.
    pub fn storage_size_in_bytes(&self) -> usize {
        let bytes = self.tensor.const_elem_count().ok().and_then(|n| self.format.row_bytes(n).ok());
        bytes.unwrap_or(0)
    }

    /// The blocks, as they lie in a GGUF file.
    ///
    /// # Errors
    /// None; a `Result` because Candle's is one.
    pub fn data(&self) -> Result<Vec<u8>> {
        self.tensor.bytes("data").map(|bytes| bytes.to_vec())
    }
}

/// A linear layer without bias whose weights, `[out, in]`, are blocks.
#[derive(Clone, Debug)]
pub struct QMatMul {
    weight: Arc<QTensor>,
}

impl QMatMul {
    /// A layer of these weights.
    ///
    /// # Errors
    /// When they are no matrix.
    pub fn from_arc(weight: Arc<QTensor>) -> Result<QMatMul> {
        weight.tensor.const_dims_of::<2>("dims2")?;
        Ok(QMatMul { weight })
    }

    /// A layer of these weights.
    ///
    /// # Errors
    /// When they are no matrix.
    pub fn from_qtensor(weight: QTensor) -> Result<QMatMul> {
        QMatMul::from_arc(Arc::new(weight))
    }
}

impl Module for QMatMul {
    /// `[.., in]` to `[.., out]`: `x W^T`, with the weights unpacked in the kernel that multiplies.
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        xs.floats("qmatmul")?;
        let [out, inner] = self.weight.tensor.const_dims_of::<2>("dims2")?;
        let mut dims = xs.sym_dims().to_vec();
        if xs.const_dim(D::Minus1)? != inner {
            let (lhs, rhs) = (xs.sym_shape().clone(), self.weight.tensor.sym_shape().clone());
            return Err(Error::ShapeMismatchBinaryOp { op: "qmatmul", lhs, rhs });
        }
        let last = dims.len() - 1;
        let rows = dims[..last].iter().fold(tallow_ir::Dim::one(), |n, d| &n * d);
        let weight = self.weight.tensor.unary(Op::Dequantize(xs.dtype()))?;
        dims[last] = out.into();
        xs.reshape([rows, inner.into()])?.matmul(&weight.t()?)?.reshape(dims)
    }
}
