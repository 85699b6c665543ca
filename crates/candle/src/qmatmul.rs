//! The product with quantized weights, resident on the device.

use std::sync::Arc;

use candle_core::Result;
use candle_core::quantized::QTensor;
use tallow::{DType, Device};

use crate::dtype::weight_dtype;
use crate::error::wrap;
use crate::rows::{Op, RowOp, check_ids, op};

type Tensor = candle_core::Tensor;

/// `x w^T` on the device: a product in f32, or f64 where `x` is, rounded to its type.
pub(crate) fn times_transposed(x: &tallow::Tensor, w: &tallow::Tensor) -> tallow::Result<tallow::Tensor> {
    if !x.dtype().is_float() {
        return Err(tallow::Error::msg(format!("qmatmul takes floats, got {}", x.dtype())));
    }
    let inner = if x.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
    let w = w.dequantize()?.to_dtype(inner)?;
    x.to_dtype(inner)?.matmul(&w.t()?)?.to_dtype(x.dtype())
}

/// The weights of a quantized tensor on the device, repacked there to the layout that kernels read.
pub(crate) fn resident_weight(weight: &QTensor, device: &Device) -> Result<tallow::Tensor> {
    let (dtype, bytes) = (weight_dtype(weight.dtype()), weight.data()?);
    tallow::Tensor::resident(&bytes, dtype, weight.shape().dims().to_vec(), device).map_err(wrap)
}

/// The product with quantized weights: `candle_core::quantized::QMatMul`.
///
/// Unlike Candle's, which rounds its input to 8 bits, it multiplies by the input as it is.
#[derive(Clone)]
pub struct QMatMul {
    product: Op,
    rows: Op,
    entries: usize,
    dims: Vec<usize>,
}

impl QMatMul {
    /// A layer of these weights, `[out, in]`, on [`crate::device`].
    ///
    /// # Errors
    /// When they are no matrix, or the device's memory does not suffice.
    pub fn from_arc(weight: Arc<QTensor>) -> Result<QMatMul> {
        QMatMul::on(&weight, &crate::device())
    }

    /// A layer of these weights, `[out, in]`, on [`crate::device`].
    ///
    /// # Errors
    /// As [`QMatMul::from_arc`].
    pub fn from_qtensor(weight: QTensor) -> Result<QMatMul> {
        QMatMul::on(&weight, &crate::device())
    }

    /// A layer of these weights, `[out, in]`, on a device.
    ///
    /// # Errors
    /// As [`QMatMul::from_arc`].
    pub fn on(weight: &QTensor, device: &Device) -> Result<QMatMul> {
        let (entries, _) = weight.shape().dims2()?;
        let matrix = resident_weight(weight, device)?;
        let table = matrix.clone();
        let product = RowOp::new("qmatmul", 1, device, move |x| times_transposed(x, &matrix));
        let rows = RowOp::new("qembedding", 0, device, move |ids| {
            table.dequantize()?.to_dtype(DType::F32)?.embedding(ids)
        });
        let dims = weight.shape().dims().to_vec();
        Ok(QMatMul { product: op(product), rows: op(rows), entries, dims })
    }

    /// Rows of the weights by number, in f32: numbers of any shape to that shape with a new last axis.
    ///
    /// # Errors
    /// When a number is no row, or computing fails.
    pub fn embedding(&self, ids: &Tensor) -> Result<Tensor> {
        check_ids(ids, self.entries)?;
        ids.apply_op1_arc(self.rows.clone())
    }
}

impl candle_core::Module for QMatMul {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        xs.apply_op1_arc(self.product.clone())
    }
}

impl std::fmt::Debug for QMatMul {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "QMatMul({:?})", self.dims)
    }
}
