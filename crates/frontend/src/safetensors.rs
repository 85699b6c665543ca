//! Reading and writing `.safetensors` files.

mod files;

use std::collections::HashMap;
use std::fmt::Display;
use std::path::Path;

use safetensors::tensor::{Dtype, SafeTensorError, TensorView};
use tallow_ir::DType;

use crate::device::Device;
use crate::error::{Error, Result};
use crate::tensor::Tensor;

pub use files::SafetensorsFiles;

/// All tensors of a file by name.
///
/// # Errors
/// When the file cannot be read or is not of this format, or holds elements of a type that tensors have not.
pub fn load(file: impl AsRef<Path>, device: &Device) -> Result<HashMap<String, Tensor>> {
    load_buffer(&read(file.as_ref())?, device)
}

/// All tensors of a file's bytes by name.
///
/// # Errors
/// When the bytes are not of this format, or hold elements of a type that tensors have not.
pub fn load_buffer(bytes: &[u8], device: &Device) -> Result<HashMap<String, Tensor>> {
    let file = safetensors::SafeTensors::deserialize(bytes).map_err(wrong)?;
    let tensor = |(name, view): (String, TensorView<'_>)| Ok((name, tensor(&view, device)?));
    file.tensors().into_iter().map(tensor).collect()
}

/// Writes tensors, computed if need be, all in one plan.
///
/// # Errors
/// When computing fails, the tensors are on several devices, or the file cannot be written.
pub fn save<K: AsRef<str> + Ord + Display>(
    tensors: &HashMap<K, Tensor>,
    file: impl AsRef<Path>,
) -> Result<()> {
    let values: Vec<&Tensor> = tensors.values().collect();
    crate::eval::eval_for("save", &values)?;
    let mut bytes = Vec::with_capacity(tensors.len());
    for (name, tensor) in tensors {
        bytes.push((name.as_ref(), tensor, tensor.bytes("save")?));
    }
    let mut views = Vec::with_capacity(bytes.len());
    for (name, tensor, bytes) in &bytes {
        let dtype = dtype_of(tensor.dtype())?;
        views.push((*name, TensorView::new(dtype, tensor.const_dims()?.to_vec(), bytes).map_err(wrong)?));
    }
    let text = safetensors::serialize(views, None).map_err(wrong)?;
    std::fs::write(file.as_ref(), text).map_err(|e| Error::io(file.as_ref(), &e))
}

/// A file's bytes, from which tensors are taken one by one.
#[derive(Debug)]
pub struct BufferedSafetensors {
    bytes: Vec<u8>,
}

impl BufferedSafetensors {
    /// A file of these bytes.
    ///
    /// # Errors
    /// When they are not of this format.
    pub fn new(bytes: Vec<u8>) -> Result<BufferedSafetensors> {
        safetensors::SafeTensors::deserialize(&bytes).map_err(wrong)?;
        Ok(BufferedSafetensors { bytes })
    }

    /// The names of the tensors.
    ///
    /// # Errors
    /// Never: the bytes were checked.
    pub fn names(&self) -> Result<Vec<String>> {
        let file = safetensors::SafeTensors::deserialize(&self.bytes).map_err(wrong)?;
        Ok(file.names().into_iter().map(String::from).collect())
    }

    /// Whether there is a tensor of this name.
    pub fn contains(&self, name: &str) -> bool {
        safetensors::SafeTensors::deserialize(&self.bytes).is_ok_and(|file| file.tensor(name).is_ok())
    }

    /// The tensor of this name.
    ///
    /// # Errors
    /// When there is none, or its elements are of a type that tensors have not.
    pub fn load(&self, name: &str, device: &Device) -> Result<Tensor> {
        let file = safetensors::SafeTensors::deserialize(&self.bytes).map_err(wrong)?;
        let view = file.tensor(name).map_err(|error| match error {
            SafeTensorError::TensorNotFound(_) => Error::CannotFindTensor { path: name.into() },
            other => wrong(other),
        })?;
        tensor(&view, device)
    }
}

impl Tensor {
    /// Writes this tensor alone under a name, computed if need be.
    ///
    /// # Errors
    /// When computing fails or the file cannot be written.
    pub fn save_safetensors(&self, name: &str, file: impl AsRef<Path>) -> Result<()> {
        save(&HashMap::from([(name, self.clone())]), file)
    }
}

pub(crate) fn read(file: &Path) -> Result<Vec<u8>> {
    std::fs::read(file).map_err(|e| Error::io(file, &e))
}

fn wrong(error: SafeTensorError) -> Error {
    Error::SafeTensor(error.to_string())
}

/// A tensor of a part of a file; u16 becomes u32, truths become u8.
fn tensor(view: &TensorView<'_>, device: &Device) -> Result<Tensor> {
    tensor_of(view.dtype(), view.shape(), view.data(), device)
}

fn tensor_of(dtype: Dtype, shape: &[usize], bytes: &[u8], device: &Device) -> Result<Tensor> {
    let dtype = match dtype {
        Dtype::U8 | Dtype::BOOL => DType::U8,
        Dtype::U32 => DType::U32,
        Dtype::I16 => DType::I16,
        Dtype::I32 => DType::I32,
        Dtype::F8_E4M3 => DType::F8E4M3,
        Dtype::I64 => DType::I64,
        Dtype::F16 => DType::F16,
        Dtype::BF16 => DType::BF16,
        Dtype::F32 => DType::F32,
        Dtype::F64 => DType::F64,
        Dtype::U16 => {
            let wide = |pair: &[u8; 2]| u32::from(u16::from_le_bytes(*pair));
            let elements: Vec<u32> = bytes.as_chunks::<2>().0.iter().map(wide).collect();
            return Tensor::from_vec(elements, shape, device);
        }
        // The list of types is the format's, which grows.
        other => return Err(Error::SafeTensor(format!("elements of type {other:?} are not supported"))),
    };
    Tensor::from_raw_bytes(bytes, dtype, shape, device)
}

fn dtype_of(dtype: DType) -> Result<Dtype> {
    match dtype {
        DType::U8 => Ok(Dtype::U8),
        DType::U32 => Ok(Dtype::U32),
        DType::I16 => Ok(Dtype::I16),
        DType::I32 => Ok(Dtype::I32),
        DType::F8E4M3 => Ok(Dtype::F8_E4M3),
        DType::I64 => Ok(Dtype::I64),
        DType::F16 => Ok(Dtype::F16),
        DType::BF16 => Ok(Dtype::BF16),
        DType::F32 => Ok(Dtype::F32),
        DType::F64 => Ok(Dtype::F64),
        DType::Block(_) => Err(Error::SafeTensor(format!("elements of type {dtype} are not supported"))),
    }
}
