//! A model file, and a model that is ready to run: weights resident, two graphs compiled, a cache.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use tallow::{Device, ExecStats, Executable, Weight};
use tallow_gguf::{GgufFile, TensorInfo, Tokenizer, TokenizerOptions};
use tallow_ir::Graph;

use crate::cache::CacheTypes;
use crate::config::Architecture;
use crate::decoder::{Decoder, context, upload};
use crate::error::{Error, Result};
use crate::llama::Llama;

/// The values of `general.architecture` that can be loaded.
pub const ARCHITECTURES: &[&str] =
    &[Architecture::Llama.name(), Architecture::Qwen2.name(), Architecture::Qwen3.name()];

/// The most tokens that prefill takes in one run, where the caller does not say.
pub const DEFAULT_CHUNK: usize = 512;

/// A model file that was read and checked, with nothing on a device yet.
#[derive(Debug)]
pub struct ModelFile {
    pub(crate) file: GgufFile,
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
    /// What decode steps give that are compiled when the model is loaded; others are compiled when they are first asked
    /// for.
    pub decode: Decode,
}

/// What a decode step gives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Decode {
    /// Logits, for [`Model::feed`].
    #[default]
    Logits,
    /// The token with the largest logit, chosen on the device, for [`Model::feed_greedy`]. The logits stay there.
    Token,
}

/// What weights are multiplied by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Activations {
    /// Rounded where the device multiplies that faster: to 8 bits in decode steps, to f16 (as the weights are then) in
    /// prefill with cooperative matrices.
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

    /// As [`ModelFile::open`], with options for the tokenizer.
    ///
    /// # Errors
    /// As there.
    pub fn open_with(path: impl AsRef<Path>, options: &TokenizerOptions) -> Result<ModelFile> {
        ModelFile::with_options(GgufFile::open(path)?, options)
    }

    /// As [`ModelFile::open`], of a file that is open already.
    ///
    /// # Errors
    /// As there.
    pub fn new(file: GgufFile) -> Result<ModelFile> {
        ModelFile::with_options(file, &TokenizerOptions::default())
    }

    fn with_options(file: GgufFile, options: &TokenizerOptions) -> Result<ModelFile> {
        file.metadata().get_str("general.architecture")?;
        let llama = Llama::from_file(&file)?;
        let tokenizer = Tokenizer::with_options(file.metadata(), options)?;
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
        context(&self.llama, options)
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
        let decoder = Decoder::load(&self.file, &self.llama, device, options, progress)?;
        Ok(Model { tokenizer: Arc::new(self.tokenizer), decoder })
    }

    /// Makes every weight of `graph` resident; all graphs of a model have the same ones.
    pub(crate) fn upload(
        &self,
        device: &Device,
        graph: &Graph,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<HashMap<String, Weight>> {
        upload(&self.file, &self.llama, device, graph, progress)
    }
}

/// A model on a device, with the text that its cache holds.
#[derive(Debug)]
pub struct Model {
    tokenizer: Arc<Tokenizer>,
    decoder: Decoder,
}

impl Model {
    /// The model's tokenizer.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// Positions of the cache.
    pub fn context(&self) -> usize {
        self.decoder.context()
    }

    /// Number of tokens in the vocabulary.
    pub fn vocabulary(&self) -> usize {
        self.decoder.vocabulary()
    }

    /// Number of decoder layers.
    pub fn layers(&self) -> usize {
        self.decoder.layers()
    }

    /// The most tokens of a prompt that are computed in one run.
    pub fn chunk(&self) -> usize {
        self.decoder.chunk()
    }

    /// Number of tokens in the cache.
    pub fn position(&self) -> usize {
        self.decoder.position()
    }

    /// Forgets the text from where it differs from `prompt`, or before the last token of `prompt`, whose logits are still
    /// to be computed. Returns how many tokens of `prompt` the cache then holds.
    pub fn keep_prefix(&mut self, prompt: &[u32]) -> usize {
        let cached = self.decoder.tokens();
        let same = cached.iter().zip(prompt).take_while(|(a, b)| a == b).count();
        let kept = same.min(prompt.len().saturating_sub(1));
        self.decoder.rewind(kept).expect("invariant: the cache holds at least the common prefix");
        kept
    }

    /// Forgets the text.
    pub fn reset(&mut self) {
        self.decoder.reset();
    }

    /// Continues the text by `tokens` and gives the logits of the token after them.
    ///
    /// # Errors
    /// When there are none, they do not fit the context or the vocabulary, or the device fails.
    pub fn feed(&mut self, tokens: &[u32]) -> Result<Vec<f32>> {
        self.decoder.feed(tokens)
    }

    /// [`Model::feed`] that replaces `logits`, see [`Decoder::feed_into`].
    ///
    /// # Errors
    /// As there.
    pub fn feed_into(&mut self, tokens: &[u32], logits: &mut Vec<f32>) -> Result<()> {
        self.decoder.feed_into(tokens, logits)
    }

    /// Continues the text by `token` and gives the token with the largest logit after it, the first of equals. The
    /// device chooses: one submission, and no logits are read.
    ///
    /// # Errors
    /// When the context is full, the token is not in the vocabulary, a logit is NaN, or the device fails.
    pub fn feed_greedy(&mut self, token: u32) -> Result<u32> {
        self.decoder.feed_greedy(token)
    }

    /// Continues the text by `token` and the best tokens after it, see [`Decoder::follow_greedy`].
    ///
    /// # Errors
    /// As [`Model::feed_greedy`].
    pub fn follow_greedy(
        &mut self,
        token: u32,
        count: usize,
        on_token: &mut dyn FnMut(u32) -> ControlFlow<()>,
    ) -> Result<usize> {
        self.decoder.follow_greedy(token, count, on_token)
    }

    /// Figures of the decode step that was compiled with the model.
    pub fn decode_stats(&self) -> ExecStats {
        self.decoder.decode().stats()
    }

    /// Figures of the prefill step.
    pub fn prefill_stats(&self) -> ExecStats {
        self.decoder.prefill().stats()
    }

    /// The decode step that was compiled with the model.
    pub fn decode(&self) -> &Executable {
        self.decoder.decode()
    }

    /// The compiled prefill step.
    pub fn prefill(&self) -> &Executable {
        self.decoder.prefill()
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

/// Token ids as a graph's input.
pub(crate) fn to_bytes(tokens: &[u32]) -> Vec<u8> {
    tokens.iter().flat_map(|t| t.to_le_bytes()).collect()
}

/// The floats of an output.
pub(crate) fn f32s(bytes: &[u8]) -> impl Iterator<Item = f32> {
    bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b))
}
