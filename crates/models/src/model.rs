//! A model file, and a model that is ready to run: weights resident, two graphs compiled, a cache.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use tallow::caps::DeviceCaps;
use tallow::{Device, ExecStats, Executable, KernelCheck, VerifiedKernels, VerifyOptions};
use tallow_gguf::{GgufFile, Tokenizer, TokenizerOptions};

use crate::architecture::Architecture;
use crate::config::Config;
use crate::decoder::{Decoder, VerifiedStep, VerifySteps, WrongKernel};
use crate::error::{Error, Result};
use crate::fit::Fit;
use crate::lora::LoraAdapter;
use crate::model_graph::{ModelGraph, problems_of_weights};
use crate::options::{LoadOptions, Progress};
use crate::step_graphs::context;
use crate::tokens::check_tokens;

/// The values of `general.architecture` that can be loaded.
pub const ARCHITECTURES: &[&str] = Architecture::NAMES;

/// A model file that was read and checked, with nothing on a device yet.
#[derive(Debug)]
pub struct ModelFile {
    pub(crate) file: GgufFile,
    pub(crate) model: ModelGraph,
    tokenizer: Tokenizer,
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
        let model = ModelGraph::from_file(&file)?;
        let tokenizer = Tokenizer::with_options(file.metadata(), options)?;
        Ok(ModelFile { file, model, tokenizer })
    }

    /// Adds a LoRA adapter, whose products count `scale` times beside those of the weights. Several add up.
    ///
    /// # Errors
    /// When the adapter is for another architecture or other shapes, or `scale` is no finite number.
    pub fn add_lora(&mut self, adapter: LoraAdapter, scale: f32) -> Result<()> {
        adapter.check(&self.file)?;
        self.model.types.add_lora(adapter, scale)
    }

    /// The model's tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// The tokenizer alone.
    pub(crate) fn into_tokenizer(self) -> Tokenizer {
        self.tokenizer
    }

    /// Hyperparameters and weight types.
    pub fn model_graph(&self) -> &ModelGraph {
        &self.model
    }

    /// The context that `options` give.
    ///
    /// # Errors
    /// When it is 0 or more than the model was trained for.
    pub fn context(&self, options: &LoadOptions) -> Result<usize> {
        context(&self.model, options)
    }

    /// Checks, before any work, that a prompt is not empty, fits the context and is in the vocabulary.
    ///
    /// # Errors
    /// When it is not.
    pub fn check_prompt(&self, tokens: &[u32], options: &LoadOptions) -> Result<()> {
        check_tokens(tokens, 0, self.context(options)?, self.model.vocabulary)
    }

    /// The memory that the model takes with these options on a device with `caps`, or else on the interpreter, beside the
    /// `free` bytes that there are.
    ///
    /// # Errors
    /// When the options do not fit the model.
    pub fn fit(&self, caps: Option<&DeviceCaps>, options: &LoadOptions, free: Option<u64>) -> Result<Fit> {
        Fit::of(&self.model, caps, options, free)
    }

    /// Copies the weights to the device and compiles the graphs.
    ///
    /// # Errors
    /// As [`Decoder::load`].
    pub fn load(
        self,
        device: &Device,
        options: &LoadOptions,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Model> {
        let decoder = Decoder::load(&self.file, &self.model, device, options, progress)?;
        Ok(Model { tokenizer: Arc::new(self.tokenizer), decoder })
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
    /// to be computed. Returns how many tokens of `prompt` the cache then holds: of a recurrent model none, unless `prompt`
    /// continues the text.
    pub fn keep_prefix(&mut self, prompt: &[u32]) -> usize {
        let cached = self.decoder.tokens();
        let same = cached.iter().zip(prompt).take_while(|(a, b)| a == b).count();
        let reused = self.decoder.reusable(same.min(prompt.len().saturating_sub(1)));
        self.decoder.rewind(reused).expect("invariant: the cache holds at least the common prefix");
        reused
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

    /// Compares the kernels of its steps with the interpreter, see [`Decoder::verify`]. Forgets the text.
    ///
    /// # Errors
    /// As there.
    pub fn verify(
        &mut self,
        steps: &VerifySteps,
        visit: &mut dyn FnMut(VerifiedStep, KernelCheck) -> ControlFlow<()>,
    ) -> Result<()> {
        self.decoder.verify(steps, visit)
    }

    /// Compares the kernels that are new to a driver, see [`Decoder::verify_new`]. Forgets the text.
    ///
    /// # Errors
    /// As there.
    pub fn verify_new(
        &mut self,
        verified: &mut VerifiedKernels,
        options: &VerifyOptions,
        visit: &mut dyn FnMut(VerifiedStep, &KernelCheck),
    ) -> Result<Option<WrongKernel>> {
        self.decoder.verify_new(verified, options, visit)
    }

    /// How many kernels [`Model::verify_new`] would compare.
    pub fn new_kernels(&self, verified: &VerifiedKernels) -> usize {
        self.decoder.new_kernels(verified)
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

/// Everything in a file's head that keeps it from being loaded as a model, but for its tokenizer.
///
/// That is a hyperparameter that is missing or not supported; if there is none, each tensor that is missing, of another
/// shape or of an unknown format. The list ends after `most` problems, as a file can claim any number of layers.
pub fn problems(file: &GgufFile, most: usize) -> Vec<Error> {
    if let Err(error) = file.metadata().get_str("general.architecture") {
        return vec![error.into()];
    }
    let config = match Config::from_metadata(file.metadata()) {
        Ok(config) => config,
        Err(error) => return vec![error],
    };
    let found = problems_of_weights(&config, file, most);
    if found.is_empty() { ModelGraph::from_file(file).err().into_iter().collect() } else { found }
}
