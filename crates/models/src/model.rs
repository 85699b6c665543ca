//! A model file, and a model that is ready to run: weights resident, two graphs compiled, a cache.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use tallow::{DType, Device, ExecStats, Executable, State, Weight};
use tallow_gguf::{GgufFile, TensorInfo, Tokenizer};
use tallow_ir::{DeviceCaps, Graph, GraphError, Op, dot, matrix};

use crate::cache::CacheTypes;
use crate::error::{Error, Result};
use crate::llama::{LOGITS, Llama, POS, ROPE_WEIGHT, Rows, SEQ, TOKENS};

/// The values of `general.architecture` that can be loaded.
pub const ARCHITECTURES: &[&str] = &["llama"];

/// The most tokens that prefill takes in one run, where the caller does not say.
pub const DEFAULT_CHUNK: usize = 512;

/// A model file that was read and checked, with nothing on a device yet.
#[derive(Debug)]
pub struct ModelFile {
    file: GgufFile,
    pub(crate) llama: Llama,
    tokenizer: Tokenizer,
}

/// What may be chosen when a model is loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadOptions {
    /// Positions of the key-value cache; the model's own context where not given.
    pub context: Option<usize>,
    /// The most prompt tokens in one run; 512 or the context where not given.
    pub chunk: Option<usize>,
    /// What weights are multiplied by.
    pub activations: Activations,
    /// How keys and values are kept.
    pub cache: CacheTypes,
}

/// The graph with activations rounded as asked: to 8 bits for integer products with few rows, to f16 for matrix hardware
/// with many.
fn round(
    graph: &Graph,
    activations: Activations,
    caps: &DeviceCaps,
) -> std::result::Result<Graph, GraphError> {
    let integers = match activations {
        Activations::Exact => return Ok(graph.clone()),
        Activations::Auto => caps.int_dot_accelerated,
        Activations::Rounded => true,
    };
    let graph = if integers { dot::quantize_activations(graph, caps)? } else { graph.clone() };
    matrix::round_operands(&graph, caps)
}

/// What weights are multiplied by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Activations {
    /// Rounded where the device multiplies that faster: to 8 bits in decode steps, to f16 (as the weights are then) in
    /// prefill on matrix hardware.
    #[default]
    Auto,
    /// As they are.
    Exact,
    /// Rounded, to 8 bits (an NMSE of the logits of about 1e-4) where the device can multiply those at all.
    Rounded,
}

impl LoadOptions {
    /// The most tokens in one run, of a cache of `context` positions.
    pub(crate) fn chunk_within(&self, context: usize) -> usize {
        self.chunk.unwrap_or(DEFAULT_CHUNK).clamp(1, context)
    }
}

/// What loading is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Weights are being copied to the device.
    Upload {
        /// Bytes that are there.
        done: u64,
        /// Bytes of all weights.
        total: u64,
    },
    /// A graph is being compiled.
    Compile {
        /// Its name.
        graph: &'static str,
    },
}

impl ModelFile {
    /// Reads a file's head, checks that it is a model of a known architecture with all its weights, and
    /// builds its tokenizer. Weight data is only mapped.
    ///
    /// # Errors
    /// When the file cannot be read, is damaged, or holds what this crate does not know; the message says
    /// which.
    pub fn open(path: impl AsRef<Path>) -> Result<ModelFile> {
        ModelFile::new(GgufFile::open(path)?)
    }

    /// As [`ModelFile::open`], of a file that is open already.
    ///
    /// # Errors
    /// As there.
    pub fn new(file: GgufFile) -> Result<ModelFile> {
        let found = file.metadata().get_str("general.architecture")?;
        if !ARCHITECTURES.contains(&found) {
            return Err(Error::UnsupportedArchitecture {
                found: found.into(),
                known: ARCHITECTURES.to_vec(),
            });
        }
        let llama = Llama::from_file(&file)?;
        let tokenizer = Tokenizer::from_metadata(file.metadata())?;
        Ok(ModelFile { file, llama, tokenizer })
    }

    /// The model's tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Hyperparameters and weight types.
    pub fn llama(&self) -> &Llama {
        &self.llama
    }

    /// The context that `options` give.
    ///
    /// # Errors
    /// When it is 0 or more than the model was trained for.
    pub fn context(&self, options: &LoadOptions) -> Result<usize> {
        let max = self.llama.config.context;
        match options.context {
            None => Ok(max),
            Some(asked) if (1..=max).contains(&asked) => Ok(asked),
            Some(asked) => Err(Error::Context { asked, max }),
        }
    }

    /// Checks, before any work, that a prompt is not empty, fits the context and is in the vocabulary.
    ///
    /// # Errors
    /// When it is not.
    pub fn check_prompt(&self, tokens: &[u32], options: &LoadOptions) -> Result<()> {
        check_tokens(tokens, 0, self.context(options)?, self.llama.vocabulary)
    }

    /// Copies the weights to the device and compiles the graphs.
    ///
    /// # Errors
    /// When the options do not fit the model, the weights do not fit the device, or compiling fails.
    pub fn load(
        self,
        device: &Device,
        options: &LoadOptions,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Model> {
        let context = self.context(options)?;
        let chunk = options.chunk_within(context);
        let llama = self.llama_with(options)?;
        let graph = |rows, name| {
            let step = llama.step(rows, context);
            let rounded = step.and_then(|step| match device.caps() {
                Some(caps) => round(&step, options.activations, caps),
                None => Ok(step),
            });
            rounded.map_err(|source| Error::Graph { graph: name, source })
        };
        let prefill = graph(Rows::UpTo(chunk), "prefill")?;
        let decode = graph(Rows::One, "decode")?;
        let weights = self.upload(device, &decode, progress)?;
        let states = cache(&llama, device, context)?;
        progress(Progress::Compile { graph: "prefill" });
        let prefill = device.compile(&prefill, &weights, &states)?;
        progress(Progress::Compile { graph: "decode" });
        let decode = device.compile(&decode, &weights, &states)?;
        Ok(Model {
            tokenizer: Arc::new(self.tokenizer),
            vocabulary: self.llama.vocabulary,
            layers: self.llama.config.layers,
            context,
            chunk,
            prefill,
            decode,
            position: 0,
        })
    }

    /// The architecture with what `options` choose for its graphs.
    ///
    /// # Errors
    /// When the cache's types do not fit the heads.
    pub(crate) fn llama_with(&self, options: &LoadOptions) -> Result<Llama> {
        options.cache.check(&self.llama.config)?;
        Ok(Llama { cache: options.cache, ..self.llama.clone() })
    }

    /// Makes every weight of `graph` resident; all graphs of a model have the same ones.
    pub(crate) fn upload(
        &self,
        device: &Device,
        graph: &Graph,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<HashMap<String, Weight>> {
        let names: Vec<&String> = graph
            .nodes()
            .filter_map(|(_, n)| if let Op::Weight { name, .. } = &n.op { Some(name) } else { None })
            .collect();
        let size = |name: &&String| self.file.tensor(name).map_or(0, |t| t.bytes as u64);
        let total = names.iter().map(size).sum();
        let (mut weights, mut done) = (HashMap::new(), 0);
        for name in names {
            progress(Progress::Upload { done, total });
            let weight = if name == ROPE_WEIGHT {
                let per_pair = &self.llama.rope.per_pair;
                let bytes: Vec<u8> = per_pair.iter().flat_map(|x| x.to_le_bytes()).collect();
                device.weight(DType::F32, &[per_pair.len()], &bytes)?
            } else {
                let info = self.file.require(name)?;
                let dtype = crate::weights::dtype(info.format()?);
                device.weight(dtype, &info.shape, self.file.tensor_data(info)?)?
            };
            done += size(&name);
            weights.insert(name.clone(), weight);
        }
        progress(Progress::Upload { done, total });
        Ok(weights)
    }
}

/// An empty cache for `context` positions.
pub(crate) fn cache(llama: &Llama, device: &Device, context: usize) -> Result<HashMap<String, State>> {
    let cache = llama.cache(context);
    let bytes = cache.iter().try_fold(0usize, |sum, (_, dtype, shape)| {
        let elements = shape.iter().try_fold(1usize, |product, n| product.checked_mul(*n))?;
        sum.checked_add(match dtype {
            DType::Block(format) => format.row_bytes(elements).ok()?,
            scalar => elements.checked_mul(scalar.size()?)?,
        })
    });
    // The context comes from the file where nobody asked for less, and the interpreter's memory is the
    // system's, which ends the process when it runs out. A Vulkan device says so by itself.
    if matches!(device, Device::Cpu) && !fits(bytes) {
        return Err(Error::CacheTooLarge { context });
    }
    let mut states = HashMap::new();
    for (name, dtype, shape) in cache {
        states.insert(name, device.state(dtype, &shape)?);
    }
    Ok(states)
}

/// A model on a device, with the text that its cache holds.
#[derive(Debug)]
pub struct Model {
    tokenizer: Arc<Tokenizer>,
    vocabulary: usize,
    layers: usize,
    context: usize,
    chunk: usize,
    prefill: Executable,
    decode: Executable,
    /// Tokens in the cache.
    position: usize,
}

impl Model {
    /// The model's tokenizer.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// Positions of the cache.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Number of tokens in the vocabulary.
    pub fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    /// Number of decoder layers.
    pub fn layers(&self) -> usize {
        self.layers
    }

    /// Tokens that the cache holds.
    pub fn position(&self) -> usize {
        self.position
    }

    /// Forgets the text.
    pub fn reset(&mut self) {
        // Rows beyond the position are never read, so the cache need not be cleared.
        self.position = 0;
    }

    /// Continues the text by `tokens` and gives the logits of the token after them.
    ///
    /// # Errors
    /// When there are none, they do not fit the context or the vocabulary, or the device fails.
    pub fn feed(&mut self, tokens: &[u32]) -> Result<Vec<f32>> {
        check_tokens(tokens, self.position, self.context, self.vocabulary)?;
        let mut logits = Vec::new();
        for part in tokens.chunks(self.chunk) {
            let bytes = to_bytes(part);
            let pos = (POS, self.position as u64);
            let inputs = [(TOKENS, bytes.as_slice())];
            let outputs = match part.len() {
                1 => self.decode.run(&[pos], &inputs)?,
                n => self.prefill.run(&[pos, (SEQ, n as u64)], &inputs)?,
            };
            self.position += part.len();
            let found = outputs.into_iter().find(|o| o.name == LOGITS);
            logits = found.ok_or(Error::NoLogits)?.bytes;
        }
        Ok(to_f32(&logits))
    }

    /// Figures of the decode step.
    pub fn decode_stats(&self) -> ExecStats {
        self.decode.stats()
    }

    /// Figures of the prefill step.
    pub fn prefill_stats(&self) -> ExecStats {
        self.prefill.stats()
    }

    /// The compiled decode step.
    pub fn decode(&self) -> &Executable {
        &self.decode
    }

    /// The compiled prefill step.
    pub fn prefill(&self) -> &Executable {
        &self.prefill
    }
}

/// Checks that tokens are there, fit the context behind `position`, and are in the vocabulary.
pub(crate) fn check_tokens(tokens: &[u32], position: usize, context: usize, vocabulary: usize) -> Result<()> {
    if tokens.is_empty() {
        return Err(Error::EmptyPrompt);
    }
    if position + tokens.len() > context {
        return Err(Error::PromptTooLong { tokens: position + tokens.len(), context });
    }
    match tokens.iter().find(|t| **t as usize >= vocabulary) {
        Some(&token) => Err(Error::UnknownToken { token, vocabulary }),
        None => Ok(()),
    }
}

/// The values of a small tensor of any plain float format.
pub(crate) fn floats(file: &GgufFile, info: &TensorInfo) -> Result<Vec<f32>> {
    let mut values = vec![0.0; info.elements()];
    let format = info.format()?;
    tallow_quant::dequantize(format, file.tensor_data(info)?, &mut values)
        .map_err(|source| tallow_gguf::GgufError::Quant { tensor: info.name.clone(), source })?;
    Ok(values)
}

/// Whether the system would give so many bytes at once. None are kept.
fn fits(bytes: Option<usize>) -> bool {
    bytes.is_some_and(|bytes| Vec::<u8>::new().try_reserve_exact(bytes).is_ok())
}

/// Token ids as a graph's input.
pub(crate) fn to_bytes(tokens: &[u32]) -> Vec<u8> {
    tokens.iter().flat_map(|t| t.to_le_bytes()).collect()
}

/// The floats of an output.
pub(crate) fn to_f32(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_system_gives_does_not_fit() {
        assert!(fits(Some(0)) && fits(Some(1 << 20)));
        assert!(!fits(None) && !fits(Some(1 << 60)) && !fits(Some(usize::MAX)));
    }
}
