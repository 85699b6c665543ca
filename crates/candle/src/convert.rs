//! Tensors from one side to the other.

use candle_core::Storage;
use tallow::{DType, Device};

use crate::dtype::dtype;
use crate::error::{fail, wrap};
use crate::storage;

/// Calls `f` with a tensor's host storage.
pub(crate) fn with_storage<T>(
    tensor: &candle_core::Tensor,
    f: impl FnOnce(&candle_core::CpuStorage, &candle_core::Layout) -> candle_core::Result<T>,
) -> candle_core::Result<T> {
    let (guard, layout) = tensor.storage_and_layout();
    match &*guard {
        Storage::Cpu(storage) => f(storage, layout),
        Storage::Cuda(_) | Storage::Metal(_) => {
            fail(format!("the tensor is on {:?}; only Candle's CPU is read", tensor.device().location()))
        }
    }
}

/// A Tallow tensor of the elements of a Candle tensor, whatever its strides. The elements are copied once, since Candle
/// may change its own in place; they go to the device when a graph reads them.
///
/// For weights see [`to_resident`], which keeps no copy on the host.
///
/// # Errors
/// When the tensor is not on Candle's CPU or its elements have a type that Tallow has not.
pub fn to_tallow(tensor: &candle_core::Tensor, device: &Device) -> candle_core::Result<tallow::Tensor> {
    let bytes = with_storage(tensor, |values, layout| Ok(storage::bytes(values, layout)?.into_owned()))?;
    tallow::Tensor::from_raw_vec(bytes, dtype(tensor.dtype())?, tensor.dims(), device).map_err(wrap)
}

/// A constant on `device` of the elements of a Candle tensor: uploaded now, straight from where Candle holds them if
/// they are contiguous, and resident from then on. All graphs that capture it share it.
///
/// # Errors
/// As [`to_tallow`], and when the device's memory does not suffice.
pub fn to_resident(tensor: &candle_core::Tensor, device: &Device) -> candle_core::Result<tallow::Tensor> {
    let ty = dtype(tensor.dtype())?;
    with_storage(tensor, |values, layout| {
        let bytes = storage::bytes(values, layout)?;
        tallow::Tensor::resident(&bytes, ty, tensor.dims(), device).map_err(wrap)
    })
}

/// A Candle tensor on its CPU of the elements of a Tallow tensor, which is computed if need be.
///
/// # Errors
/// When computing fails, the shape is symbolic, or the elements are blocks (dequantize them first).
pub fn to_candle(tensor: &tallow::Tensor) -> candle_core::Result<candle_core::Tensor> {
    if let DType::Block(format) = tensor.dtype() {
        return fail(format!("a Candle tensor holds no {format} blocks; dequantize the tensor first"));
    }
    // An error where the shape is symbolic, so that all extents are numbers below.
    let bytes = tensor.raw_bytes().map_err(wrap)?;
    storage::tensor(storage::from_bytes(tensor.dtype(), &bytes)?, tensor.dims())
}
