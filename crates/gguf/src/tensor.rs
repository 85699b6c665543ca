//! One entry of a file's tensor table.

use tallow_quant::Format;

use crate::GgufError;

/// What the file says of one tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Name, such as `blk.0.attn_q.weight`.
    pub name: String,
    /// The type's number in the file (`enum ggml_type`); see [`TensorInfo::format`].
    pub ggml_id: u32,
    /// Extents, outermost first: the reverse of the file's and of ggml's `ne`. Rows are contiguous.
    pub shape: Vec<usize>,
    /// Which file holds the data, where the model has several: an index into [`crate::GgufFile::shards`].
    pub shard: usize,
    /// Where the data starts, in bytes from the start of that file.
    pub offset: u64,
    /// Size of the data in bytes; 0 where the type is not one that this program knows.
    pub bytes: usize,
}

impl TensorInfo {
    /// The format of the data.
    ///
    /// # Errors
    /// [`GgufError::UnsupportedFormat`] where the type is not one that this program knows.
    pub fn format(&self) -> Result<Format, GgufError> {
        Format::from_ggml_id(self.ggml_id).ok_or_else(|| GgufError::UnsupportedFormat {
            tensor: self.name.clone(),
            ggml_id: self.ggml_id,
            name: ggml_type_name(self.ggml_id),
        })
    }

    /// Name of the type, such as `q4_k`, also of those that this program cannot read.
    pub fn type_name(&self) -> &'static str {
        ggml_type_name(self.ggml_id).unwrap_or("unknown")
    }

    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }
}

/// The names that ggml gives its types (`enum ggml_type` in `ggml.h`), read by this program or not.
pub fn ggml_type_name(id: u32) -> Option<&'static str> {
    if let Some(format) = Format::from_ggml_id(id) {
        return Some(format.name());
    }
    Some(match id {
        41 => "q1_0",
        _ => return None,
    })
}
