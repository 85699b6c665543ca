//! GGUF model files: reading, writing, and the tokenizer in their metadata.
//!
//! [`GgufFile::open`] maps a file, or all shards of a model, and checks every count, length and offset before use;
//! [`GgufFile::metadata`] answers typed questions, [`GgufFile::tensor_data`] gives a tensor's bytes
//! without copying them. [`GgufWriter`] writes files. [`Tokenizer::from_metadata`] builds the tokenizer.
//!
//! ```no_run
//! let file = tallow_gguf::GgufFile::open("model.gguf")?;
//! println!("{}", file.metadata().get_str("general.architecture")?);
//! for tensor in file.tensors() {
//!     println!("{} {:?} {}", tensor.name, tensor.shape, tensor.type_name());
//! }
//! # Ok::<(), tallow_gguf::GgufError>(())
//! ```
//!
//! What it never does: dequantize (`tallow-quant`), or know architectures (`tallow-models`).

mod cursor;
mod error;
mod file;
mod header;
mod mmap;
mod shards;
mod tensor;
mod tokenizer;
mod value;
mod write;

pub use error::GgufError;
pub use file::GgufFile;
pub use shards::{SPLIT_KEYS, Shard};
pub use tallow_quant::Format;
pub use tensor::{TensorInfo, ggml_type_name};
pub use tokenizer::{DecodeStream, Recognize, Tokenizer, TokenizerOptions};
pub use value::{Array, Metadata, Value, optional};
pub use write::{GgufWriter, TensorSpec};
