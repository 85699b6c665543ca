//! Hyperparameters of a language model, read from GGUF metadata and checked.
//!
//! Key names are those of the GGUF specification (ggml's `docs/gguf.md`, section "LLM") and of llama.cpp's converters.

mod experts;
mod keys;
mod latent;
mod pooling;
mod scaling;
mod state_space;
#[cfg(test)]
mod tests;

pub use experts::{Experts, Router};
pub(crate) use keys::Keys;
pub use latent::Latent;
pub use pooling::Pooling;
pub use state_space::StateSpace;

use crate::architecture::Architecture;
use crate::error::Result;
use crate::rope::RopeScaling;

/// Hyperparameters of a model. What few architectures have is neutral by default.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The architecture.
    pub architecture: Architecture,
    /// Decoder layers.
    pub layers: usize,
    /// Width of the residual stream.
    pub width: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; query head `h` uses key head `h / (heads / kv_heads)`.
    pub kv_heads: usize,
    /// Elements of a query or key head.
    pub key_length: usize,
    /// Elements of a value head.
    pub value_length: usize,
    /// Width of the feed-forward layer.
    pub feed_forward: usize,
    /// Positions that the model was trained for.
    pub context: usize,
    /// Added to the mean square or the variance in norms.
    pub norm_epsilon: f32,
    /// Leading elements of each head that rope rotates.
    pub rope_dimensions: usize,
    /// Base of rope's frequencies.
    pub rope_base: f32,
    /// Base of rope's frequencies in layers with a window, where they have one of their own. They are never scaled.
    pub rope_local_base: Option<f32>,
    /// How rope's frequencies are stretched beyond the original context.
    pub rope_scaling: RopeScaling,
    /// The frequencies of long contexts, where a file has such.
    pub long_rope: Option<LongRope>,
    /// Which layers see only the last keys.
    pub window: Option<Window>,
    /// Bounds on scores and logits.
    pub softcaps: Softcaps,
    /// Factor on the scores of attention; without one `1 / sqrt(key_length)`.
    pub attention_scale: Option<f32>,
    /// Factors on what passes between layers.
    pub factors: Factors,
    /// Extents of latent attention, where the model has it.
    pub latent: Option<Latent>,
    /// Mixtures of experts, where the model has them.
    pub experts: Option<Experts>,
    /// Extents of state space layers, where the model has them instead of attention.
    pub state_space: Option<StateSpace>,
    /// The number of how the rows of a text become its embedding, where the file has it.
    pub pooling: Option<u32>,
}

/// Frequencies of a context that is longer than the original one (Ding et al., arXiv 2402.13753).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LongRope {
    /// The longest context that has the short frequencies.
    pub original_context: usize,
    /// Factor on queries and keys, at any context.
    pub magnitude: f32,
}

/// Sliding windows of attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Keys that a query sees: the last so many, itself included.
    pub size: u32,
    /// The last of each so many layers sees all keys; without it, none does.
    pub period: Option<usize>,
}

impl Window {
    /// The window of a layer.
    pub fn of_layer(self, layer: usize) -> Option<u32> {
        let sees_all = self.period.is_some_and(|period| (layer + 1).is_multiple_of(period.max(1)));
        (!sees_all).then_some(self.size)
    }
}

/// Bounds `c` of values `x` that become `c tanh(x / c)`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Softcaps {
    /// Of the scores of attention.
    pub attention: Option<f32>,
    /// Of the logits.
    pub logits: Option<f32>,
}

/// Factors on what passes between layers; 1 in most models.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Factors {
    /// On the rows of the embedding.
    pub embedding: f32,
    /// On what a block adds to the residual stream.
    pub residual: f32,
    /// On the logits.
    pub logits: f32,
}

impl Default for Factors {
    fn default() -> Factors {
        Factors { embedding: 1.0, residual: 1.0, logits: 1.0 }
    }
}

impl Default for Config {
    /// A `llama` model of no extent.
    fn default() -> Config {
        Config {
            architecture: Architecture::Llama,
            layers: 0,
            width: 0,
            heads: 0,
            kv_heads: 0,
            key_length: 0,
            value_length: 0,
            feed_forward: 0,
            context: 0,
            norm_epsilon: 1e-5,
            rope_dimensions: 0,
            rope_base: 10000.0,
            rope_local_base: None,
            rope_scaling: RopeScaling::None,
            long_rope: None,
            window: None,
            softcaps: Softcaps::default(),
            attention_scale: None,
            factors: Factors::default(),
            latent: None,
            experts: None,
            state_space: None,
            pooling: None,
        }
    }
}

impl Config {
    /// The keys that all architectures have, and those of attention where it has that; `epsilon` is the key of what norms
    /// add.
    pub(crate) fn common(keys: &Keys<'_>, epsilon: &str, has_attention: bool) -> Result<Config> {
        let mut config = Config {
            architecture: keys.architecture,
            width: keys.number("embedding_length")?,
            pooling: Pooling::read(keys)?,
            ..Config::default()
        };
        if has_attention {
            config.read_attention(keys)?;
        }
        keys.metadata.get_f32(&keys.named(epsilon))?;
        config.norm_epsilon = keys.positive(epsilon, 1e-5)?;
        config.context = keys.number("context_length")?;
        config.layers = keys.number("block_count")?;
        if has_attention {
            config.feed_forward = keys.number("feed_forward_length")?;
            config.rope_base = keys.positive("rope.freq_base", 10000.0)?;
            config.rope_scaling = scaling::read(keys, config.context)?;
        }
        Ok(config)
    }

    /// Reads the extents of heads.
    fn read_attention(&mut self, keys: &Keys<'_>) -> Result<()> {
        let heads = keys.number("attention.head_count")?;
        let kv_heads = keys.number_or("attention.head_count_kv", heads)?;
        if !heads.is_multiple_of(kv_heads) {
            return Err(keys.bad("attention.head_count_kv", "does not divide head_count"));
        }
        if !keys.has("attention.key_length") && !self.width.is_multiple_of(heads) {
            return Err(keys.bad("attention.head_count", "does not divide embedding_length"));
        }
        let key_length = keys.number_or("attention.key_length", self.width / heads)?;
        let rope_dimensions = keys.number_or("rope.dimension_count", key_length)?;
        if rope_dimensions > key_length || !rope_dimensions.is_multiple_of(2) {
            return Err(keys.bad("rope.dimension_count", "is odd or more than a head has"));
        }
        let value_length = keys.number_or("attention.value_length", key_length)?;
        *self = Config { heads, kv_heads, key_length, value_length, rope_dimensions, ..self.clone() };
        Ok(())
    }
}
