//! Safetensors files whose tensors are read one by one.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use safetensors::tensor::{Metadata, TensorInfo};

use super::tensor_of;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// Files of which only the headers are in memory. A tensor is read when it is asked for.
#[derive(Debug)]
pub struct SafetensorsFiles {
    files: Vec<OpenFile>,
    /// The number of the file that has the tensor.
    tensors: HashMap<String, (usize, TensorInfo)>,
}

#[derive(Debug)]
struct OpenFile {
    path: PathBuf,
    file: Mutex<File>,
    /// Where the tensors begin, in bytes.
    start: u64,
}

/// Bytes of the header's length.
const LENGTH: u64 = 8;

impl SafetensorsFiles {
    /// A file.
    ///
    /// # Errors
    /// When it cannot be read or is not of this format.
    pub fn new(path: impl AsRef<Path>) -> Result<SafetensorsFiles> {
        SafetensorsFiles::multi(&[path])
    }

    /// Several files as one. Of a name in several of them, the last file's counts.
    ///
    /// # Errors
    /// When a file cannot be read or is not of this format.
    pub fn multi<P: AsRef<Path>>(paths: &[P]) -> Result<SafetensorsFiles> {
        let mut all = SafetensorsFiles { files: vec![], tensors: HashMap::new() };
        for path in paths {
            let path = path.as_ref();
            let (file, header) = open(path)?;
            let number = all.files.len();
            let tensors = header.tensors().into_iter();
            all.tensors.extend(tensors.map(|(name, info)| (name, (number, info.clone()))));
            all.files.push(file);
        }
        Ok(all)
    }

    /// The names of the tensors, in their order.
    pub fn names(&self) -> Vec<&String> {
        let mut names: Vec<&String> = self.tensors.keys().collect();
        names.sort();
        names
    }

    /// Whether there is a tensor of this name.
    pub fn contains(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// The tensor of this name.
    ///
    /// # Errors
    /// When there is none, reading fails, or its elements are of a type that tensors have not.
    pub fn load(&self, name: &str, device: &Device) -> Result<Tensor> {
        let (number, info) =
            self.tensors.get(name).ok_or_else(|| Error::CannotFindTensor { path: name.into() })?;
        let OpenFile { path, file, start } = &self.files[*number];
        let (from, to) = info.data_offsets;
        let mut bytes = vec![0; to - from];
        let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
        file.seek(SeekFrom::Start(start + from as u64))
            .and_then(|_| file.read_exact(&mut bytes))
            .map_err(|e| Error::io(path, &e).context(format!("reading {name}")))?;
        tensor_of(info.dtype, &info.shape, &bytes, device).map_err(|e| e.context(format!("reading {name}")))
    }
}

/// Opens a file and reads its header, whose tensors lie within the file.
fn open(path: &Path) -> Result<(OpenFile, Metadata)> {
    let failed = |e: std::io::Error| Error::io(path, &e);
    let wrong = |why: String| Error::SafeTensor(format!("{}: {why}", path.display()));
    let mut file = File::open(path).map_err(failed)?;
    let size = file.metadata().map_err(failed)?.len();
    let mut length = [0; LENGTH as usize];
    file.read_exact(&mut length).map_err(|_| wrong("no header".into()))?;
    let length = u64::from_le_bytes(length);
    let Some(space) = size.checked_sub(LENGTH).and_then(|rest| rest.checked_sub(length)) else {
        return Err(wrong(format!("a header of {length} bytes in a file of {size}")));
    };
    let mut header = vec![];
    (&mut file).take(length).read_to_end(&mut header).map_err(failed)?;
    let header: Metadata = serde_json::from_slice(&header).map_err(|e| wrong(e.to_string()))?;
    for (name, info) in header.tensors() {
        let (from, to) = info.data_offsets;
        let bits = info.shape.iter().try_fold(info.dtype.bitsize(), |n, extent| n.checked_mul(*extent));
        let fits = from <= to && to as u64 <= space && bits == (to - from).checked_mul(8);
        if !fits {
            let shape = &info.shape;
            return Err(wrong(format!(
                "tensor {name} of shape {shape:?} is not at {from} to {to} of {space}"
            )));
        }
    }
    Ok((OpenFile { path: path.into(), file: Mutex::new(file), start: LENGTH + length }, header))
}
