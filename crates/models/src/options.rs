//! What may be chosen when a model is loaded, and how far loading is.

use crate::cache::CacheTypes;
use crate::config::{Config, Pooling};
use crate::host_layers::HostLayers;

/// The most tokens that prefill takes in one run, where the caller does not say.
pub const DEFAULT_CHUNK: usize = 512;

/// What may be chosen when a model is loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadOptions {
    /// Positions of the key-value cache; the model's own context where not given.
    pub context: Option<usize>,
    /// The most prompt tokens in one run; 512 or the context where not given, fewer where their states would be large.
    pub chunk: Option<usize>,
    /// What weights are multiplied by.
    pub activations: Activations,
    /// How keys and values are kept.
    pub cache: CacheTypes,
    /// What decode steps give that are compiled when the model is loaded; others are compiled when they are first asked
    /// for.
    pub decode: Decode,
    /// How many of the last layers have their weights in the host's memory.
    pub host_layers: HostLayers,
    /// The most bytes that these may take; not bounded where not given.
    pub host_memory: Option<u64>,
    /// The most bytes that the rest may take. Where not given, a Vulkan device's free memory; the interpreter's is then not
    /// bounded. A model that takes more is not loaded.
    pub memory: Option<u64>,
}

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
    /// The most tokens of short texts that run together; where 1, each text runs alone. Where not given, 512 on a GPU, fewer
    /// where a model's states would be large. On the interpreter each text then runs alone: it would compute the scores of
    /// all pairs of tokens, also of different texts.
    pub rows: Option<usize>,
    /// As [`LoadOptions::host_layers`].
    pub host_layers: HostLayers,
    /// As [`LoadOptions::host_memory`].
    pub host_memory: Option<u64>,
    /// As [`LoadOptions::memory`], with the plan for the shortest texts.
    pub memory: Option<u64>,
}

impl Default for EmbedOptions {
    fn default() -> EmbedOptions {
        EmbedOptions {
            context: None,
            pooling: None,
            normalize: true,
            truncate: false,
            activations: Activations::Auto,
            rows: None,
            host_layers: HostLayers::default(),
            host_memory: None,
            memory: None,
        }
    }
}

impl EmbedOptions {
    /// What loading takes of these options, for texts of `context` tokens.
    pub(crate) fn for_loading(&self, context: usize) -> LoadOptions {
        let EmbedOptions { activations, host_layers, host_memory, memory, .. } = *self;
        let context = Some(context);
        LoadOptions { context, activations, host_layers, host_memory, memory, ..LoadOptions::default() }
    }
}

/// What a decode step gives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Decode {
    /// Logits, for [`crate::Model::feed`].
    #[default]
    Logits,
    /// The token with the largest logit, chosen on the device, for [`crate::Model::feed_greedy`]. The logits stay there.
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
    Quantized,
}

impl LoadOptions {
    /// The most tokens in one run of a model, with a cache of `context` positions.
    pub(crate) fn chunk_within(&self, config: &Config, context: usize) -> usize {
        let default = || config.state_space.map_or(DEFAULT_CHUNK, |s| s.rows_that_fit().min(DEFAULT_CHUNK));
        self.chunk.unwrap_or_else(default).clamp(1, context)
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
