//! Models with the names and signatures of `candle_transformers::models`: change the `use` line, and the whole model
//! runs on the device.
//!
//! Weights and the key-value cache are resident, a step is one recorded command buffer, and only tokens go in and
//! logits come out. What differs from Candle's models:
//!
//! - The `device` argument says where Candle's tensors are and must be its CPU; the model runs on [`crate::device`].
//! - One text at a time: tokens are `[1, n]`.
//! - The cache is for as many positions as the model was made for, 4096 at most as in Candle, and holds f16.
//!   [`Options`] choose others.
//! - `index_pos` below the number of tokens fed goes back to there: what followed is forgotten and overwritten. One
//!   beyond it is an error. (Candle appends in both cases, at the positions that `index_pos` says.)
//! - Products multiply weights by activations as they are, where Candle's CPU rounds them to 8 bits;
//!   `Options::activations` has the choice of rounding, which is faster on GPUs with integer dot products.

use std::io::{Read, Seek, SeekFrom};

use candle_core::quantized::gguf_file;
use candle_core::{Result, Tensor};
use tallow::{DType, Device, Format};
use tallow_gguf::{GgufFile, Metadata, TensorSpec, Value};
use tallow_models::Architecture;
use tallow_models::model_graph::ModelGraph;
use tallow_models::{Activations, Decoder, LoadOptions};

use crate::dtype::weight_dtype;
use crate::error::{fail, wrap};

/// Positions that Candle's models reach.
const MAX_SEQ_LEN: usize = 4096;

/// How a model is loaded.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where it runs; [`crate::device`] where not given.
    pub device: Option<Device>,
    /// Positions of the cache; those that the model was made for, 4096 at most, where not given.
    pub context: Option<usize>,
    /// The most tokens of a prompt that one run takes; 512 or the context where not given.
    pub chunk: Option<usize>,
    /// What quantized weights are multiplied by.
    pub activations: Activations,
}

impl Default for Options {
    fn default() -> Options {
        Options { device: None, context: None, chunk: None, activations: Activations::Exact }
    }
}

/// A model of any of the architectures.
struct ResidentModel {
    architecture: Architecture,
    decoder: Decoder,
    device: Device,
}

impl std::fmt::Debug for ResidentModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let layers = self.decoder.layers();
        write!(f, "ModelWeights({}, {layers} layers, on {})", self.architecture.name(), self.device)
    }
}

impl ResidentModel {
    fn load<R: Read + Seek>(
        content: gguf_file::Content,
        reader: &mut R,
        device: &candle_core::Device,
        options: &Options,
        expected: Architecture,
    ) -> Result<ResidentModel> {
        if !device.is_cpu() {
            return fail("Candle's device must be its CPU, where tokens come from and logits go to");
        }
        let file = gguf(&content, reader)?;
        let model = ModelGraph::from_file(&file).map_err(wrap)?;
        let architecture = model.config.architecture;
        if architecture != expected {
            let (found, expected) = (architecture.name(), expected.name());
            return fail(format!("the file holds a {found} model, not one of {expected}"));
        }
        let device = options.device.clone().unwrap_or_else(crate::device);
        let context = options.context.or(Some(model.config.context.min(MAX_SEQ_LEN)));
        let Options { chunk, activations, .. } = *options;
        let options = LoadOptions { context, chunk, activations, ..LoadOptions::default() };
        let decoder = Decoder::load(&file, &model, &device, &options, &mut |_| {}).map_err(wrap)?;
        Ok(ResidentModel { architecture, decoder, device })
    }

    fn forward(&mut self, x: &Tensor, index_pos: usize) -> Result<Tensor> {
        let (texts, _) = x.dims2()?;
        if texts != 1 {
            return fail(format!("{texts} texts at once; the cache is for one"));
        }
        // As Candle's embedding, any integers.
        let tokens = match x.dtype() {
            candle_core::DType::U32 => x.clone(),
            candle_core::DType::U8 | candle_core::DType::I64 => x.to_dtype(candle_core::DType::U32)?,
            other => return Err(candle_core::Error::UnsupportedDTypeForOp(other, "forward")),
        };
        let tokens = tokens.flatten_all()?.to_vec1::<u32>()?;
        self.decoder.rewind(index_pos).map_err(wrap)?;
        let logits = self.decoder.feed(&tokens).map_err(wrap)?;
        let count = logits.len();
        Tensor::from_vec(logits, (1, count), &candle_core::Device::Cpu)
    }
}

/// A GGUF file as Tallow reads it, of what Candle has read of it and the tensors' data.
fn gguf<R: Read + Seek>(content: &gguf_file::Content, reader: &mut R) -> Result<GgufFile> {
    let mut metadata = Metadata::new();
    for (key, value) in &content.metadata {
        // Lists belong to tokenizers, which the caller has.
        if let Some(value) = scalar(value) {
            metadata.insert(key.as_str(), value);
        }
    }
    let mut parts = Vec::new();
    for (name, info) in &content.tensor_infos {
        let format = match weight_dtype(info.ggml_dtype) {
            DType::Block(format) => format,
            DType::F32 => Format::F32,
            DType::F16 => Format::F16,
            DType::BF16 => Format::BF16,
            other @ (DType::U8
            | DType::U32
            | DType::I16
            | DType::I32
            | DType::I64
            | DType::F8E4M3
            | DType::F64) => return fail(format!("tensor {name} is of {other}")),
        };
        let shape = info.shape.dims().to_vec();
        let elements = shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
        let Some(bytes) = elements.and_then(|n| format.row_bytes(n).ok()) else {
            return fail(format!("tensor {name} of {shape:?} in {format} has no whole blocks"));
        };
        let Some(start) = content.tensor_data_offset.checked_add(info.offset) else {
            return fail(format!("tensor {name} lies beyond any file"));
        };
        reader.seek(SeekFrom::Start(start))?;
        // Read up to what is there, not allocated by what the file says.
        let mut data = Vec::new();
        reader.take(bytes as u64).read_to_end(&mut data)?;
        parts.push((TensorSpec { name: name.clone(), shape, format }, data));
    }
    GgufFile::from_parts(metadata, parts).map_err(wrap)
}

/// A metadata value that is no list.
fn scalar(value: &gguf_file::Value) -> Option<Value> {
    use gguf_file::Value as Candle;
    Some(match value {
        Candle::U8(v) => Value::U8(*v),
        Candle::I8(v) => Value::I8(*v),
        Candle::U16(v) => Value::U16(*v),
        Candle::I16(v) => Value::I16(*v),
        Candle::U32(v) => Value::U32(*v),
        Candle::I32(v) => Value::I32(*v),
        Candle::U64(v) => Value::U64(*v),
        Candle::I64(v) => Value::I64(*v),
        Candle::F32(v) => Value::F32(*v),
        Candle::F64(v) => Value::F64(*v),
        Candle::Bool(v) => Value::Bool(*v),
        Candle::String(v) => Value::String(v.clone()),
        Candle::Array(_) => return None,
    })
}

macro_rules! model {
    ($module:ident, $architecture:ident, $about:literal) => {
        #[doc = $about]
        pub mod $module {
            use std::io::{Read, Seek};

            use candle_core::quantized::gguf_file;
            use candle_core::{Device, Result, Tensor};
            use tallow_models::Architecture;

            use super::{Options, ResidentModel};

            /// A model on a device, with the text that its cache holds.
            #[derive(Debug)]
            pub struct ModelWeights(ResidentModel);

            impl ModelWeights {
                /// The model of a GGUF file; signature and names are Candle's.
                ///
                /// # Errors
                /// When the file is not one of this architecture, asks for what is not supported, or does not fit the
                /// device's memory.
                pub fn from_gguf<R: Seek + Read>(
                    ct: gguf_file::Content,
                    reader: &mut R,
                    device: &Device,
                ) -> Result<Self> {
                    Self::from_gguf_with(ct, reader, device, &Options::default())
                }

                /// [`ModelWeights::from_gguf`] with options.
                ///
                /// # Errors
                /// As there, and when the context is more than the model was made for.
                pub fn from_gguf_with<R: Seek + Read>(
                    ct: gguf_file::Content,
                    reader: &mut R,
                    device: &Device,
                    options: &Options,
                ) -> Result<Self> {
                    ResidentModel::load(ct, reader, device, options, Architecture::$architecture)
                        .map(ModelWeights)
                }

                /// The logits, `[1, vocabulary]`, of the token after `x`, `[1, n]`, whose first token is at position
                /// `index_pos`; 0 starts a new text.
                ///
                /// # Errors
                /// When the tokens are none, of several texts, or beyond the vocabulary or the context, when
                /// `index_pos` is beyond what was fed, or the device fails.
                pub fn forward(&mut self, x: &Tensor, index_pos: usize) -> Result<Tensor> {
                    self.0.forward(x, index_pos)
                }

                /// Forgets the text.
                pub fn clear_kv_cache(&mut self) {
                    self.0.decoder.reset();
                }

                /// Positions of the cache.
                pub fn context(&self) -> usize {
                    self.0.decoder.context()
                }
            }
        }
    };
}

model!(quantized_llama, Llama, "`candle_transformers::models::quantized_llama` on the device.");
model!(quantized_qwen2, Qwen2, "`candle_transformers::models::quantized_qwen2` on the device.");
model!(quantized_qwen3, Qwen3, "`candle_transformers::models::quantized_qwen3` on the device.");
