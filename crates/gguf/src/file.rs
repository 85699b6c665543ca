//! A model file, or several that make up one model, mapped or in memory.

use std::{fmt, path::Path};

use indexmap::IndexMap;
use memmap2::Mmap;

use crate::header::{self, Header};
use crate::shards::{self, Opened, Shard};
use crate::{GgufError, Metadata, TensorInfo, TensorSpec};

/// A GGUF file whose head has been read and checked, or a model in several files (shards) as one.
///
/// Tensor data is not copied: [`GgufFile::tensor_data`] is a slice of the mapping.
pub struct GgufFile {
    bytes: Bytes,
    header: Header,
}

enum Bytes {
    /// One file, or all shards in order.
    Mapped(Vec<(Shard, Mmap)>),
    Owned(Vec<u8>),
    /// By tensor, in place of a file.
    Parts(IndexMap<String, Vec<u8>>),
}

impl GgufFile {
    /// Maps a file and reads its head. The file must not be changed while it is open: what is
    /// overwritten changes under the reader, and reading what was cut off ends the process.
    ///
    /// Where the file's `split.count` is more than 1 it is one shard of a model, the first or another, called
    /// `NAME-00001-of-00003.gguf` or the like. All shards are then opened, and found by name in the same directory.
    ///
    /// # Errors
    /// When a file cannot be read, or is no valid GGUF file (nothing outside its bounds is touched); when a shard is missing
    /// or does not fit the others, naming it.
    pub fn open(path: impl AsRef<Path>) -> Result<GgufFile, GgufError> {
        let (files, header) = shards::complete(Opened::new(path.as_ref())?)?;
        Ok(GgufFile { bytes: Bytes::Mapped(files), header })
    }

    /// Reads the head of a file that lies in memory. Of a model in several files this is the one file, without the others.
    ///
    /// # Errors
    /// When the bytes are no valid GGUF file.
    pub fn parse(bytes: impl Into<Vec<u8>>) -> Result<GgufFile, GgufError> {
        let bytes = bytes.into();
        let header = header::parse(&bytes)?;
        Ok(GgufFile { bytes: Bytes::Owned(bytes), header })
    }

    /// A file of parts that were read elsewhere: metadata, and each tensor with its data.
    ///
    /// # Errors
    /// When two tensors have one name, or data is not as long as its shape and format ask.
    pub fn from_parts(
        metadata: Metadata,
        parts: impl IntoIterator<Item = (TensorSpec, Vec<u8>)>,
    ) -> Result<GgufFile, GgufError> {
        let (mut bytes, mut tensors, mut offset) = (IndexMap::new(), IndexMap::new(), 0);
        for (TensorSpec { name, shape, format }, data) in parts {
            let refuse = |problem: String| GgufError::Malformed { what: format!("tensor {name}"), problem };
            let is_multiple_of_block =
                shape.last().is_none_or(|row| row.is_multiple_of(format.block_elements()));
            let elements =
                shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d)).filter(|_| is_multiple_of_block);
            let expected = elements.and_then(|n| format.row_bytes(n).ok());
            if expected != Some(data.len()) {
                return Err(refuse(format!("{} bytes for {shape:?} in {format}", data.len())));
            }
            let info = TensorInfo {
                name: name.clone(),
                ggml_id: format.spec().ggml_id,
                shape,
                shard: 0,
                offset,
                bytes: data.len(),
            };
            offset += data.len() as u64;
            bytes.insert(name.clone(), data);
            if tensors.insert(name.clone(), info).is_some() {
                return Err(refuse("is there twice".to_owned()));
            }
        }
        let header = Header { version: 3, metadata, tensors, alignment: 1 };
        Ok(GgufFile { bytes: Bytes::Parts(bytes), header })
    }

    /// Version of the format, 2 or 3; the first shard's, where there are several.
    pub fn version(&self) -> u32 {
        self.header.version
    }

    /// Alignment of tensor data in bytes, a power of two; the first shard's, where there are several.
    pub fn alignment(&self) -> u64 {
        self.header.alignment
    }

    /// The metadata; the first shard's, where there are several ([`crate::SPLIT_KEYS`] among them).
    pub fn metadata(&self) -> &Metadata {
        &self.header.metadata
    }

    /// The files that were opened: one, or all shards in order; none where the model was in memory.
    pub fn shards(&self) -> impl ExactSizeIterator<Item = &Shard> {
        let files: &[(Shard, Mmap)] = match &self.bytes {
            Bytes::Mapped(files) => files,
            Bytes::Owned(_) | Bytes::Parts(_) => &[],
        };
        files.iter().map(|(shard, _)| shard)
    }

    /// Size of the file in bytes, of all shards together; of its data, where it was made of parts.
    pub fn file_bytes(&self) -> usize {
        match &self.bytes {
            Bytes::Mapped(files) => files.iter().map(|(shard, _)| shard.bytes).sum(),
            Bytes::Owned(bytes) => bytes.len(),
            Bytes::Parts(parts) => parts.values().map(Vec::len).sum(),
        }
    }

    /// The bytes of the file, or of all shards in order; of a file that was made of parts, the data of its tensors.
    pub fn bytes(&self) -> Vec<&[u8]> {
        match &self.bytes {
            Bytes::Mapped(files) => files.iter().map(|(_, map)| &map[..]).collect(),
            Bytes::Owned(bytes) => vec![bytes],
            Bytes::Parts(parts) => parts.values().map(Vec::as_slice).collect(),
        }
    }

    /// The tensors, in the order of the file's table, one shard after the other.
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
        let range = info.offset as usize..info.offset as usize + info.bytes;
        match &self.bytes {
            Bytes::Mapped(files) => Ok(&files[info.shard].1[range]),
            Bytes::Owned(bytes) => Ok(&bytes[range]),
            Bytes::Parts(parts) => parts
                .get(&info.name)
                .map(Vec::as_slice)
                .ok_or_else(|| GgufError::MissingTensor(info.name.clone())),
        }
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
            .field("shards", &self.shards().len())
            .field("bytes", &self.file_bytes())
            .finish()
    }
}
