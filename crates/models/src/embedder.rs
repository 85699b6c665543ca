//! Embeddings: a text becomes a vector, and texts of like meaning become vectors of like direction.
//!
//! ```no_run
//! use tallow::Device;
//! use tallow_models::{EmbedOptions, Embedder, ModelFile};
//!
//! let file = ModelFile::open("minilm.gguf")?;
//! let mut embedder = Embedder::load(file, &Device::Cpu, &EmbedOptions::default(), &mut |_| {})?;
//! let rows = embedder.embed(&["A man is eating food.", "The girl is carrying a baby."])?;
//! let cosine: f32 = rows[0].iter().zip(&rows[1]).map(|(a, b)| a * b).sum();
//! assert!(cosine < 0.5);
//! # Ok::<(), tallow_models::Error>(())
//! ```

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use tallow::{Device, Executable, Weight};
use tallow_gguf::{GgufFile, Tokenizer};

use crate::config::Pooling;
use crate::decoder::{Source, upload};
use crate::error::{EmbedError, Error, Result};
use crate::fit::Fit;
use crate::memory::Purpose;
use crate::model::ModelFile;
use crate::model_graph::{EMBEDDING, ModelGraph, SEQ, TOKENS};
pub use crate::options::EmbedOptions;
use crate::options::Progress;
use crate::step_graphs::{context_of, embed_step};
use crate::tokens::{check_tokens, f32s, to_bytes};

/// The most tokens of the plan for the shortest texts.
const SHORTEST: usize = 16;

/// A model on a device that embeds: tokens in, a vector out. Each text has its own number of rows, without padding.
///
/// Kernels and memory are chosen for the most rows that a plan may have. So there are plans for up to 16 tokens, 32, and
/// so on, compiled when a text first needs one.
#[derive(Debug)]
pub struct TokenEmbedder {
    device: Device,
    model: ModelGraph,
    options: EmbedOptions,
    pooling: Pooling,
    context: usize,
    weights: HashMap<String, Weight>,
    /// By the most tokens that each takes.
    plans: HashMap<usize, Executable>,
}

impl TokenEmbedder {
    /// Uploads the weights of a file, whose model is [`ModelGraph::from_file`] of that file.
    ///
    /// # Errors
    /// When the options do not fit the model, it cannot embed, or weights and the plan for the shortest texts do not fit the
    /// memory ([`Error::DoesNotFit`]).
    pub fn load(
        file: &GgufFile,
        model: &ModelGraph,
        device: &Device,
        options: &EmbedOptions,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<TokenEmbedder> {
        let context = context_of(model, options.context)?;
        let model = model.with_context(context, model.cache);
        let shortest = SHORTEST.min(context);
        let step = embed_step(&model, device.caps(), options, shortest)?;
        let host_layers = Fit::check(&model, device, &options.for_loading(shortest), Purpose::Embed)?;
        let weights = upload(Source { file, host_layers }, &model, device, &step, progress)?;
        device.release_staging();
        let pooling = options.pooling_of(&model)?;
        let (device, options, plans) = (device.clone(), *options, HashMap::new());
        Ok(TokenEmbedder { device, model, options, pooling, context, weights, plans })
    }

    /// The most tokens of a text.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Elements of an embedding.
    pub fn width(&self) -> usize {
        self.model.config.width
    }

    /// How rows become an embedding.
    pub fn pooling(&self) -> Pooling {
        self.pooling
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The embedding of a text of these tokens, of [`TokenEmbedder::width`] elements; without pooling, those of all tokens,
    /// one after the other.
    ///
    /// # Errors
    /// When there are none, they do not fit the context or the vocabulary, compiling a plan or the device fails, or an
    /// element is not finite.
    pub fn embed(&mut self, tokens: &[u32]) -> Result<Vec<f32>> {
        check_tokens(tokens, 0, self.context, self.model.vocabulary)?;
        let plan = self.plan(tokens.len())?;
        let outputs = plan.run(&[(SEQ, tokens.len() as u64)], &[(TOKENS, &to_bytes(tokens))])?;
        let output = outputs.into_iter().find(|output| output.name == EMBEDDING).ok_or(Error::NoLogits)?;
        let found: Vec<f32> = f32s(&output.bytes).collect();
        if found.iter().all(|x| x.is_finite()) { Ok(found) } else { Err(EmbedError::NotFinite.into()) }
    }

    /// The plan for a text of so many tokens. The interpreter has one: it does the work of the rows that there are.
    fn plan(&mut self, tokens: usize) -> Result<&Executable> {
        let limit = match self.device {
            Device::Cpu => self.context,
            _ => tokens.next_power_of_two().max(SHORTEST).min(self.context),
        };
        match self.plans.entry(limit) {
            Entry::Occupied(plan) => Ok(plan.into_mut()),
            Entry::Vacant(none) => {
                let step = embed_step(&self.model, self.device.caps(), &self.options, limit)?;
                Ok(none.insert(self.device.prepare(&step)?.bind(&self.weights, &HashMap::new())?))
            }
        }
    }
}

/// A model ready to embed texts.
#[derive(Debug)]
pub struct Embedder {
    tokenizer: Tokenizer,
    model: TokenEmbedder,
}

impl Embedder {
    /// Copies the weights to the device.
    ///
    /// # Errors
    /// As [`TokenEmbedder::load`].
    pub fn load(
        file: ModelFile,
        device: &Device,
        options: &EmbedOptions,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Embedder> {
        let model = TokenEmbedder::load(&file.file, &file.model, device, options, progress)?;
        Ok(Embedder { tokenizer: file.into_tokenizer(), model })
    }

    /// The model without its tokenizer.
    pub fn model(&self) -> &TokenEmbedder {
        &self.model
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// The embeddings of texts, in their order, as [`TokenEmbedder::embed`] gives them. Tokens that the model was trained
    /// with are added at both ends; the names of special tokens in a text stand for these tokens.
    ///
    /// # Errors
    /// Before anything is computed, when a text has no tokens, or too many and is not to be cut; else as
    /// [`TokenEmbedder::embed`].
    pub fn embed(&mut self, texts: &[&str]) -> Result<Vec<Vec<f32>>> {
        let Embedder { tokenizer, model } = self;
        let tokens = tokens_of(texts, tokenizer, model.context, model.options.truncate)?;
        tokens.iter().map(|tokens| model.embed(tokens)).collect()
    }
}

impl ModelFile {
    /// Checks, before any work, that texts have tokens and fit the context.
    ///
    /// # Errors
    /// When they do not, or the context is 0 or more than the model was trained for.
    pub fn check_texts(&self, texts: &[&str], options: &EmbedOptions) -> Result<()> {
        let context = context_of(&self.model, options.context)?;
        tokens_of(texts, self.tokenizer(), context, options.truncate).map(|_| ())
    }
}

/// The tokens of texts of up to `context` tokens; longer ones are cut if `truncate`.
fn tokens_of(texts: &[&str], tokenizer: &Tokenizer, context: usize, truncate: bool) -> Result<Vec<Vec<u32>>> {
    let of = |(at, content): (usize, &&str)| {
        let (text, mut tokens) = (at + 1, tokenizer.encode(content, true)?);
        let count = tokens.len();
        if count == 0 {
            return Err(EmbedError::Empty { text }.into());
        }
        if count > context {
            if !truncate {
                return Err(EmbedError::TooLong { text, tokens: count, context }.into());
            }
            let end = tokens.pop().filter(|_| tokenizer.adds_end());
            tokens.truncate(context - usize::from(end.is_some()));
            tokens.extend(end);
        }
        Ok(tokens)
    };
    texts.iter().enumerate().map(of).collect()
}
