//! What can be wrong with a model file or with what is asked of it.

use std::path::PathBuf;

/// An error of reading or writing GGUF files, or of their tokenizers.
#[derive(Debug, thiserror::Error)]
pub enum GgufError {
    /// The file could not be opened or mapped.
    #[error("cannot read {}", .path.display())]
    Open {
        /// The file asked for.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// Writing failed.
    #[error("cannot write the model")]
    Write(#[from] std::io::Error),
    /// The file does not start with `GGUF`.
    #[error("not a GGUF file: it starts with {0:02x?}")]
    NotGguf(Vec<u8>),
    /// The version's bytes are swapped.
    #[error("GGUF version {0} in big-endian order; only little-endian files are supported")]
    BigEndian(u32),
    /// A version that this crate does not know.
    #[error("GGUF version {0} is not supported; versions 2 and 3 are")]
    Version(u32),
    /// The file ends, or a count in it claims more than the file holds.
    #[error("{what}: needs {needed} bytes at byte {offset}, but only {left} are left (truncated file?)")]
    Truncated {
        /// What was being read.
        what: String,
        /// Where it starts.
        offset: usize,
        /// Bytes that it takes at least.
        needed: u64,
        /// Bytes that the file still has there.
        left: usize,
    },
    /// Bytes that make no sense where they stand.
    #[error("{what}: {problem}")]
    Malformed {
        /// The key, tensor or field.
        what: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A metadata key that is needed is not there.
    #[error("metadata has no key {0}")]
    MissingKey(String),
    /// A metadata value has another type than the one asked for, or does not fit it.
    #[error("metadata key {key}: expected {expected}, found {found}")]
    WrongType {
        /// The key.
        key: String,
        /// The type asked for.
        expected: &'static str,
        /// What the file has.
        found: String,
    },
    /// The file has no tensor of this name.
    #[error("the file has no tensor {0}")]
    MissingTensor(String),
    /// The tensor's type is not one that this program can read.
    #[error("tensor {tensor}: type {ggml_id} ({}) is not supported", .name.unwrap_or("unknown"))]
    UnsupportedFormat {
        /// The tensor.
        tensor: String,
        /// The type's number in the file.
        ggml_id: u32,
        /// The type's name, where ggml has one.
        name: Option<&'static str>,
    },
    /// A tensor's shape does not fit its format.
    #[error("tensor {tensor}")]
    Quant {
        /// The tensor.
        tensor: String,
        /// What is wrong.
        source: tallow_quant::QuantError,
    },
    /// The tokenizer's kind is not one that this program has.
    #[error("tokenizer {key} = {value:?} is not supported; {hint}")]
    UnsupportedTokenizer {
        /// The metadata key that names the kind.
        key: &'static str,
        /// The kind.
        value: String,
        /// The kinds that are, or what to do about it.
        hint: String,
    },
    /// The tokenizer's parts do not fit together, or a text cannot be encoded.
    #[error("tokenizer: {0}")]
    Tokenizer(String),
    /// The writer was used against what it was created for.
    #[error("writing tensor {tensor}: {problem}")]
    Writer {
        /// The tensor.
        tensor: String,
        /// What is wrong.
        problem: String,
    },
    /// A file of a model in several files does not fit the others.
    #[error("shard {}: {problem}", .path.display())]
    Shard {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// A file of a model in several files is no valid GGUF file.
    #[error("shard {}", .path.display())]
    WithinShard {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: Box<GgufError>,
    },
}
