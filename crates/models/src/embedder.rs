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
use crate::model_graph::{EMBEDDING, ModelGraph, SEQ, TEXTS, TOKENS};
pub use crate::options::EmbedOptions;
use crate::options::Progress;
use crate::packing::{Inputs, runs};
use crate::step_graphs::{Texts, context_of, embed_step};
use crate::tokens::{check_tokens, f32s, to_bytes};

/// The most tokens of the plan for the shortest texts.
const SHORTEST: usize = 16;

/// A model on a device that embeds: tokens in, a vector out. Each text has its own number of rows, without padding. Several
/// texts share a run, in which their rows follow each other.
///
/// Kernels and memory are chosen for the most rows that a plan may have. So there are plans for up to 16 tokens, 32, and
/// so on, of one text and of several, compiled when texts first need one.
#[derive(Debug)]
pub struct TokenEmbedder {
    device: Device,
    model: ModelGraph,
    options: EmbedOptions,
    pooling: Pooling,
    context: usize,
    weights: HashMap<String, Weight>,
    plans: HashMap<Texts, Executable>,
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
        let step = embed_step(&model, device.caps(), options, Texts::One(shortest))?;
        let host_layers =
            Fit::check(&model, device, &options.for_loading(shortest), Purpose::Embed(*options))?;
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
        let plan = self.plan(Texts::One(self.limit(tokens.len(), self.context)))?;
        run(plan, &[(SEQ, tokens.len() as u64)], &[(TOKENS, &to_bytes(tokens))])
    }

    /// The embedding of each text, as [`TokenEmbedder::embed`] gives it. Texts run together as [`EmbedOptions::rows`] says;
    /// their embeddings do not depend on each other, but for rounding: a plan of many rows may round what weights are
    /// multiplied by, where one of few rows does not ([`Activations::Auto`](crate::Activations::Auto)).
    ///
    /// # Errors
    /// As [`TokenEmbedder::embed`]; before anything is computed, when the tokens of a text do not fit.
    pub fn embed_all(&mut self, texts: &[Vec<u32>]) -> Result<Vec<Vec<f32>>> {
        for tokens in texts {
            check_tokens(tokens, 0, self.context, self.model.vocabulary)?;
        }
        let rows = self.options.rows_of(&self.model, self.device.caps());
        let lengths: Vec<usize> = texts.iter().map(Vec::len).collect();
        let mut found = vec![Vec::new(); texts.len()];
        for members in runs(&lengths, rows) {
            let run: Vec<&[u32]> = members.iter().map(|text| &texts[*text][..]).collect();
            for (text, embedding) in members.into_iter().zip(self.embed_run(&run, rows)?) {
                found[text] = embedding;
            }
        }
        Ok(found)
    }

    /// The embeddings of the texts of a run. Where memory does not suffice for a plan of several texts, they run alone, as do
    /// later ones.
    fn embed_run(&mut self, texts: &[&[u32]], rows: usize) -> Result<Vec<Vec<f32>>> {
        if texts.len() > 1 && self.options.rows != Some(1) {
            match self.embed_packed(texts, rows) {
                Err(Error::Tensor(tallow::Error::OutOfMemory { .. })) => self.options.rows = Some(1),
                found => return found,
            }
        }
        texts.iter().map(|tokens| self.embed(tokens)).collect()
    }

    /// The embeddings of several texts, of `rows` tokens at most.
    fn embed_packed(&mut self, texts: &[&[u32]], rows: usize) -> Result<Vec<Vec<f32>>> {
        let inputs = Inputs::new(texts);
        let bytes = inputs.bytes(self.pooling);
        let bytes: Vec<(&str, &[u8])> = bytes.iter().map(|(name, bytes)| (*name, &bytes[..])).collect();
        let plan = self.plan(Texts::Several(self.limit(inputs.rows(), rows)))?;
        let symbols = [(SEQ, inputs.rows() as u64), (TEXTS, texts.len() as u64)];
        let all = run(plan, &symbols, &bytes)?;
        let (mut rest, width) = (&all[..], self.width());
        let of = |text: &&[u32]| {
            let rows = if self.pooling == Pooling::None { text.len() } else { 1 };
            let (embedding, others) = rest.split_at_checked(rows * width).ok_or(Error::NoLogits)?;
            rest = others;
            Ok(embedding.to_vec())
        };
        texts.iter().map(of).collect()
    }

    /// The most tokens, at most `longest`, of the plan for so many. The interpreter has one plan: it does the work of the
    /// rows that there are.
    fn limit(&self, tokens: usize, longest: usize) -> usize {
        match self.device.caps() {
            None => longest,
            Some(_) => tokens.next_power_of_two().max(SHORTEST).min(longest),
        }
    }

    fn plan(&mut self, texts: Texts) -> Result<&Executable> {
        match self.plans.entry(texts) {
            Entry::Occupied(plan) => Ok(plan.into_mut()),
            Entry::Vacant(none) => {
                let caps = self.device.caps();
                let step = embed_step(&self.model, caps, &self.options, texts)?;
                Ok(none.insert(self.device.prepare(&step)?.bind(&self.weights, &HashMap::new())?))
            }
        }
    }
}

/// The embeddings that a run gives.
fn run(plan: &Executable, symbols: &[(&str, u64)], inputs: &[(&str, &[u8])]) -> Result<Vec<f32>> {
    let outputs = plan.run(symbols, inputs)?;
    let output = outputs.into_iter().find(|output| output.name == EMBEDDING).ok_or(Error::NoLogits)?;
    let found: Vec<f32> = f32s(&output.bytes).collect();
    if found.iter().all(|x| x.is_finite()) { Ok(found) } else { Err(EmbedError::NotFinite.into()) }
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

    /// The embeddings of texts, in their order, as [`TokenEmbedder::embed_all`] gives them. Tokens that the model was trained
    /// with are added at both ends; the names of special tokens in a text stand for these tokens.
    ///
    /// # Errors
    /// Before anything is computed, when a text has no tokens, or too many and is not to be cut; else as
    /// [`TokenEmbedder::embed`].
    pub fn embed(&mut self, texts: &[&str]) -> Result<Vec<Vec<f32>>> {
        let Embedder { tokenizer, model } = self;
        let tokens = tokens_of(texts, tokenizer, model.context, model.options.truncate)?;
        model.embed_all(&tokens)
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
