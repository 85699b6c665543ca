//! Resident tensors, which stay on the device between runs: weights, which never change, and states, which graphs
//! update.
//!
//! The device stores a file's blocks as planes ([`tallow_quant::plane_offsets`]). A kernel repacks them after an
//! upload; the host does so when they are read back.

use std::borrow::Cow;
use std::sync::Arc;

use tallow_ir::{DType, TensorType};
use tallow_quant::QuantError;

use crate::error::{Error, ExecError};
use crate::value::DeviceValue;
use crate::vulkan::{Buffer, Context, MemoryUse};

/// A constant tensor on the device, in the layout that kernels read.
#[derive(Clone, Debug)]
pub struct DeviceWeight {
    pub(crate) ty: TensorType,
    pub(crate) value: DeviceValue,
    /// What it is a copy of, which stays as it is while the copy is in use.
    pub(crate) original: Option<Arc<DeviceWeight>>,
}

/// A mutable tensor on the device that persists across runs.
#[derive(Clone, Debug)]
pub struct DeviceState {
    pub(crate) ty: TensorType,
    pub(crate) buffer: Arc<Buffer>,
}

impl DeviceWeight {
    /// Uploads `bytes`: row-major elements, or the blocks of a GGUF file, which the device repacks to planes.
    /// `progress` receives the bytes done and the total.
    ///
    /// # Errors
    /// When the byte count does not match the type, or device memory runs out.
    pub fn upload(
        context: &Arc<Context>,
        name: &str,
        ty: &TensorType,
        bytes: &[u8],
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<DeviceWeight, ExecError> {
        DeviceWeight::upload_to(context, MemoryUse::Device, name, ty, bytes, progress)
    }

    /// As [`DeviceWeight::upload`], to this kind of memory: [`MemoryUse::Host`] takes none of the device's.
    ///
    /// # Errors
    /// As there.
    pub fn upload_to(
        context: &Arc<Context>,
        memory: MemoryUse,
        name: &str,
        ty: &TensorType,
        bytes: &[u8],
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<DeviceWeight, ExecError> {
        let fail = |why: String| ExecError::Leaf { what: "weight", name: name.into(), why };
        check_bytes(ty, bytes).map_err(fail)?;
        let buffer = context.buffer(name, buffer_bytes(ty), memory)?;
        write(context, ty, &buffer, bytes, progress)?;
        Ok(DeviceWeight::of_value(ty, DeviceValue::Buffer(buffer)))
    }

    /// Wraps a value that was computed on the device, in its layout.
    pub fn of_value(ty: &TensorType, value: DeviceValue) -> DeviceWeight {
        DeviceWeight { ty: ty.clone(), value, original: None }
    }

    /// The device memory.
    pub fn value(&self) -> &DeviceValue {
        &self.value
    }

    /// Bytes on the device.
    pub fn bytes(&self) -> u64 {
        buffer_bytes(&self.ty)
    }

    /// The uploaded bytes: row-major little-endian elements, or blocks in GGUF layout.
    ///
    /// # Errors
    /// When the device fails.
    pub fn read(&self, context: &Context) -> Result<Vec<u8>, ExecError> {
        read("weight", context, &self.ty, &self.value)
    }
}

impl DeviceState {
    /// A tensor of zeros.
    ///
    /// # Errors
    /// When memory runs out.
    pub fn zeroed(context: &Arc<Context>, name: &str, ty: &TensorType) -> Result<DeviceState, ExecError> {
        let buffer = context.buffer(name, buffer_bytes(ty), MemoryUse::Device)?;
        context.fill(&buffer, 0, buffer.size(), 0)?;
        Ok(DeviceState { ty: ty.clone(), buffer })
    }

    /// The elements, row-major and little-endian; blocks in GGUF layout.
    ///
    /// # Errors
    /// When the device fails.
    pub fn read(&self, context: &Context) -> Result<Vec<u8>, ExecError> {
        read("state", context, &self.ty, &DeviceValue::Buffer(self.buffer.clone()))
    }

    /// Overwrites the elements.
    ///
    /// # Errors
    /// When the byte count does not match the type, or the device fails.
    pub fn write(&self, context: &Context, bytes: &[u8]) -> Result<(), ExecError> {
        let fail = |why: String| ExecError::Leaf { what: "state", name: self.buffer.name().into(), why };
        check_bytes(&self.ty, bytes).map_err(fail)?;
        Ok(write(context, &self.ty, &self.buffer, bytes, &mut |_, _| {})?)
    }
}

/// Bytes of a tensor, rounded up to 16 bytes for vector loads.
pub(crate) fn buffer_bytes(ty: &TensorType) -> u64 {
    ty.max_bytes().max(1).next_multiple_of(16)
}

/// Checks that the number of bytes matches the type in a file.
fn check_bytes(ty: &TensorType, bytes: &[u8]) -> Result<(), String> {
    let expected = match ty.dtype {
        DType::Block(format) => {
            format.row_bytes(ty.shape.max_numel() as usize).map_err(|e| e.to_string())? as u64
        }
        _ => ty.max_bytes(),
    };
    match bytes.len() as u64 {
        got if got == expected => Ok(()),
        got => Err(format!("{got} bytes for {ty}")),
    }
}

/// Uploads a file's bytes, already checked, to a tensor's buffer.
pub(crate) fn write(
    context: &Context,
    ty: &TensorType,
    buffer: &Arc<Buffer>,
    bytes: &[u8],
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(), Error> {
    match ty.dtype {
        DType::Block(format) => context.upload_blocks(buffer, format, bytes, progress),
        _ => context.upload_with_progress(buffer, 0, bytes, progress),
    }
}

/// Reads back what [`write`] uploads.
fn read(
    what: &'static str,
    context: &Context,
    ty: &TensorType,
    value: &DeviceValue,
) -> Result<Vec<u8>, ExecError> {
    let mut bytes = vec![0; ty.max_bytes() as usize];
    value.read(context, &mut bytes)?;
    let fail =
        |e: QuantError| ExecError::Leaf { what, name: value.buffer().name().into(), why: e.to_string() };
    match as_in_file(ty, &bytes).map_err(fail)? {
        Cow::Owned(rows) => Ok(rows),
        Cow::Borrowed(_) => Ok(bytes),
    }
}

/// Converts all elements of a tensor from the device's layout to that of a file.
pub(crate) fn as_in_file<'a>(ty: &TensorType, bytes: &'a [u8]) -> Result<Cow<'a, [u8]>, QuantError> {
    match ty.dtype {
        DType::Block(format) => {
            tallow_quant::unpack(format, bytes, ty.shape.max_numel() as usize).map(Cow::Owned)
        }
        _ => Ok(Cow::Borrowed(bytes)),
    }
}
