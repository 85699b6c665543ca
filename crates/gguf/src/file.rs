//! A model file, mapped or in memory.

use std::{fmt, path::Path};

use indexmap::IndexMap;
use memmap2::Mmap;

use crate::header::{self, Header};
use crate::{GgufError, Metadata, TensorInfo, mmap};

/// A GGUF file whose head has been read and checked.
///
/// Tensor data is not copied: [`GgufFile::tensor_data`] is a slice of the mapping.
pub struct GgufFile {
    bytes: Bytes,
    header: Header,
}

enum Bytes {
    Mapped(Mmap),
    Owned(Vec<u8>),
}

impl Bytes {
    fn as_slice(&self) -> &[u8] {
        match self {
            Bytes::Mapped(map) => map,
            Bytes::Owned(vec) => vec,
        }
    }
}

impl GgufFile {
    /// Maps a file and reads its head. The file must not be changed while it is open: what is
    /// overwritten changes under the reader, and reading what was cut off ends the process.
    ///
    /// # Errors
    /// When the file cannot be read, or is no valid GGUF file; nothing outside its bounds is touched.
    pub fn open(path: impl AsRef<Path>) -> Result<GgufFile, GgufError> {
        let path = path.as_ref();
        let open = |source| GgufError::Open { path: path.to_owned(), source };
        // Mapping a directory fails with a message that does not say so.
        if path.is_dir() {
            return Err(open(std::io::Error::from(std::io::ErrorKind::IsADirectory)));
        }
        let map = mmap::map(path).map_err(open)?;
        let header = header::parse(&map)?;
        Ok(GgufFile { bytes: Bytes::Mapped(map), header })
    }

    /// Reads the head of a file that lies in memory.
    ///
    /// # Errors
    /// When the bytes are no valid GGUF file.
    pub fn parse(bytes: impl Into<Vec<u8>>) -> Result<GgufFile, GgufError> {
        let bytes = bytes.into();
        let header = header::parse(&bytes)?;
        Ok(GgufFile { bytes: Bytes::Owned(bytes), header })
    }

    /// Version of the format, 2 or 3.
    pub fn version(&self) -> u32 {
        self.header.version
    }

    /// Alignment of tensor data in bytes, a power of two.
    pub fn alignment(&self) -> u64 {
        self.header.alignment
    }

    /// The metadata.
    pub fn metadata(&self) -> &Metadata {
        &self.header.metadata
    }

    /// Size of the file in bytes.
    pub fn file_bytes(&self) -> usize {
        self.bytes.as_slice().len()
    }

    /// The tensors, in the order of the file's table.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = &TensorInfo> {
        self.table().values()
    }

    /// The tensor of a name, if there is one.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.table().get(name)
    }

    /// The tensor of a name.
    ///
    /// # Errors
    /// [`GgufError::MissingTensor`], naming it.
    pub fn require(&self, name: &str) -> Result<&TensorInfo, GgufError> {
        self.tensor(name).ok_or_else(|| GgufError::MissingTensor(name.to_owned()))
    }

    /// A tensor's data as the file holds it.
    ///
    /// # Errors
    /// When the format is not supported, or `info` is not of this file.
    pub fn tensor_data(&self, info: &TensorInfo) -> Result<&[u8], GgufError> {
        info.format()?;
        if self.tensor(&info.name) != Some(info) {
            return Err(GgufError::MissingTensor(info.name.clone()));
        }
        if info.bytes == 0 {
            return Ok(&[]);
        }
        // Checked against the file's length when the head was read.
        Ok(&self.bytes.as_slice()[info.offset as usize..][..info.bytes])
    }

    fn table(&self) -> &IndexMap<String, TensorInfo> {
        &self.header.tensors
    }
}

impl fmt::Debug for GgufFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GgufFile")
            .field("version", &self.version())
            .field("metadata_keys", &self.metadata().len())
            .field("tensors", &self.table().len())
            .field("bytes", &self.file_bytes())
            .finish()
    }
}
