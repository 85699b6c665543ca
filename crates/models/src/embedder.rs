//! Embeddings: a text becomes a vector, and texts of like meaning become vectors of like direction.

use std::collections::HashMap;

use tallow::{Device, ExecStats, Executable, Weight};
use tallow_gguf::{GgufFile, Tokenizer};
use tallow_ir::{DeviceCaps, Graph, Op};

use crate::config::Pooling;
use crate::decoder::{context_of, graph, upload};
use crate::error::{EmbedError, Error, Result};
use crate::model::ModelFile;
use crate::model_graph::{EMBEDDING, ModelGraph, SEQ, TOKENS};
use crate::options::{Activations, Progress};
use crate::prefill::Prefill;
use crate::tokens::{check_tokens, f32s, to_bytes};

/// What may be chosen when a model is loaded that embeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EmbedOptions {
    /// The most tokens of a text; the model's own context where not given.
    pub context: Option<usize>,
    /// How rows become an embedding; as the file says where not given. Where that says nothing, it is the mean for
    /// encoders, and the last row for other models, whose last token alone sees all of the text.
    pub pooling: Option<Pooling>,
    /// Whether embeddings are divided by their Euclidean length, so that their products are cosines.
    pub normalize: bool,
    /// Whether longer texts are cut, before the token that ends them; otherwise they are errors.
    pub truncate: bool,
    /// What weights are multiplied by.
    pub activations: Activations,
}

impl Default for EmbedOptions {
    fn default() -> EmbedOptions {
        EmbedOptions {
            context: None,
            pooling: None,
            normalize: true,
            truncate: false,
            activations: Activations::Auto,
        }
    }
}

impl EmbedOptions {
    /// The pooling of a model.
    pub fn pooling_of(&self, model: &ModelGraph) -> Pooling {
        let usual = if model.config.architecture.is_encoder() { Pooling::Mean } else { Pooling::Last };
        self.pooling.or(model.config.pooling).unwrap_or(usual)
    }
}

/// A model on a device that embeds: tokens in, a vector out. Each text has its own number of rows, without padding.
#[derive(Debug)]
pub struct TokenEmbedder {
    device: Device,
    model: ModelGraph,
    options: EmbedOptions,
    context: usize,
    weights: HashMap<String, Weight>,
    plans: Prefill,
}

impl TokenEmbedder {
    /// Uploads the weights of a file and compiles the graph of its model, which is [`ModelGraph::from_file`] of that file.
    ///
    /// # Errors
    /// When the options do not fit the model, it cannot embed, the weights do not fit the device, or compiling fails.
    pub fn load(
        file: &GgufFile,
        model: &ModelGraph,
        device: &Device,
        options: &EmbedOptions,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<TokenEmbedder> {
        let context = context_of(model, options.context)?;
        let model = model.with_context(context, model.cache);
        let longest = embed_step(&model, device.caps(), options, context)?;
        let weights = upload(file, &model, device, &longest, progress)?;
        progress(Progress::Compile { graph: "embed" });
        let longest = device.prepare(&longest)?.bind(&weights, &HashMap::new())?;
        device.release_staging();
        let plans = Prefill::new(longest, context);
        Ok(TokenEmbedder { device: device.clone(), model, options: *options, context, weights, plans })
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
        self.options.pooling_of(&self.model)
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Figures of the plan for the longest texts.
    pub fn stats(&self) -> ExecStats {
        self.plans.longest().stats()
    }

    /// The embedding of a text of these tokens, of [`TokenEmbedder::width`] elements; without pooling, those of all tokens,
    /// one after the other.
    ///
    /// # Errors
    /// When there are none, they do not fit the context or the vocabulary, the device fails, or an element is not finite.
    pub fn embed(&mut self, tokens: &[u32]) -> Result<Vec<f32>> {
        check_tokens(tokens, 0, self.context, self.model.vocabulary)?;
        let TokenEmbedder { device, model, options, weights, plans, .. } = self;
        let compile = |limit| -> Result<Executable> {
            let step = embed_step(model, device.caps(), options, limit)?;
            Ok(device.prepare(&step)?.bind(weights, &HashMap::new())?)
        };
        let plan = plans.step(tokens.len(), compile)?;
        let outputs = plan.run(&[(SEQ, tokens.len() as u64)], &[(TOKENS, &to_bytes(tokens))])?;
        let output = outputs.into_iter().find(|output| output.name == EMBEDDING).ok_or(Error::NoLogits)?;
        let found: Vec<f32> = f32s(&output.bytes).collect();
        if found.iter().all(|x| x.is_finite()) { Ok(found) } else { Err(EmbedError::NotFinite.into()) }
    }
}

/// A model ready to embed texts.
#[derive(Debug)]
pub struct Embedder {
    tokenizer: Tokenizer,
    model: TokenEmbedder,
}

impl Embedder {
    /// Copies the weights to the device and compiles the graph.
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
        let tokens = texts.iter().enumerate().map(|(number, text)| self.tokens(number + 1, text));
        let tokens: Vec<Vec<u32>> = tokens.collect::<Result<_>>()?;
        tokens.iter().map(|tokens| self.model.embed(tokens)).collect()
    }

    /// The tokens of a text, which is the `text`-th from 1.
    fn tokens(&self, text: usize, content: &str) -> Result<Vec<u32>> {
        let mut tokens = self.tokenizer.encode(content, true)?;
        let (count, context) = (tokens.len(), self.model.context);
        if tokens.is_empty() {
            return Err(EmbedError::Empty { text }.into());
        }
        if count > context {
            if !self.model.options.truncate {
                return Err(EmbedError::TooLong { text, tokens: count, context }.into());
            }
            let end = tokens.pop().filter(|_| self.tokenizer.adds_end());
            tokens.truncate(context - usize::from(end.is_some()));
            tokens.extend(end);
        }
        Ok(tokens)
    }
}

/// The graph that embeds texts of up to `limit` tokens, as it is compiled for a device.
pub(crate) fn embed_step(
    model: &ModelGraph,
    caps: Option<&DeviceCaps>,
    options: &EmbedOptions,
    limit: usize,
) -> Result<Graph> {
    let pooling = options.pooling_of(model);
    let step = graph(model, caps, options.activations, "embed", |model| {
        model.embed(pooling, options.normalize, limit)
    })?;
    if step.nodes().any(|(_, node)| matches!(node.op, Op::State { .. })) {
        return Err(EmbedError::HasStates(model.config.architecture.name()).into());
    }
    Ok(step)
}
