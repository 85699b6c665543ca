//! Architectures: how a token becomes a row, what a layer computes, how the last row becomes logits.
//!
//! Each module holds a family of them, written with the pieces of [`Builder`]. A value of `general.architecture` is a row of
//! [`Architecture::ALL`].

mod bert;
mod cohere;
mod deepseek;
mod falcon;
mod gemma;
mod glm;
mod gpt2;
mod gpt_oss;
mod granite;
mod llama;
mod mamba;
mod olmo;
mod phi;
mod qwen_moe;
mod stablelm;
mod starcoder;

use std::fmt::Debug;

use tallow_gguf::Metadata;
use tallow_ir::{GraphError, Value};

use crate::architecture::Architecture;
use crate::blocks::Builder;
use crate::config::{Config, Keys};
use crate::error::Result;
use crate::layers::Activation;
use crate::rope::Pairing;

/// What an architecture computes.
pub(crate) trait Layers: Debug + Sync {
    /// Whether every token sees all tokens of the text. Such a model embeds texts and generates none.
    fn is_encoder(&self) -> bool {
        false
    }

    /// Whether layers carry states from token to token instead of keys and values, so that a text can only be continued
    /// where it ends. Such a model has no attention.
    fn is_recurrent(&self) -> bool {
        false
    }

    /// Which elements of a head rope rotates together, if it rotates any.
    fn pairing(&self) -> Option<Pairing>;

    /// The norm in front of the output projection, and of most blocks.
    fn norm(&self) -> Norm {
        Norm::Rms
    }

    /// Reads the hyperparameters that other architectures lack.
    fn configure(&self, _keys: &Keys<'_>, _config: &mut Config) -> Result<()> {
        Ok(())
    }

    /// The rows of token ids `[rows]`: `[rows, width]`.
    fn embed(&self, b: &mut Builder<'_>, tokens: Value) -> Built {
        b.embedding(tokens)
    }

    /// The layer that `b` has entered, of `x: [rows, width]`: a tensor of the same shape.
    fn layer(&self, b: &mut Builder<'_>, x: Value) -> Built;

    /// The logits of `x: [rows, width]`: `[rows, vocabulary]`. Encoders have none, and return `x`.
    fn head(&self, b: &mut Builder<'_>, x: Value) -> Built {
        let normal = match self.norm() {
            Norm::Rms => b.rms_norm(x, "output_norm")?,
            Norm::Layer => b.layer_norm(x, "output_norm")?,
        };
        b.logits(normal)
    }

    /// A part of a layer without attention, of `x: [1, width]`, that tells how fast a device is.
    fn probe(&self, b: &mut Builder<'_>, x: Value) -> Built {
        let fed = b.gated(x, Activation::Silu)?;
        b.add(x, fed)
    }
}

/// A value of a graph, or why it cannot be built.
pub(crate) type Built = std::result::Result<Value, GraphError>;

/// A kind of norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Norm {
    /// Rows divided by the root of their mean square.
    Rms,
    /// Rows less their mean, divided by the root of their variance.
    Layer,
}

impl Norm {
    /// The key of what is added to the mean square or the variance.
    fn epsilon(self) -> &'static str {
        match self {
            Norm::Rms => "attention.layer_norm_rms_epsilon",
            Norm::Layer => "attention.layer_norm_epsilon",
        }
    }
}

/// What an architecture computes.
pub(crate) fn layers(architecture: Architecture) -> &'static dyn Layers {
    match architecture {
        Architecture::Llama => &llama::LLAMA,
        Architecture::Qwen2 => &llama::QWEN2,
        Architecture::Qwen3 => &llama::QWEN3,
        Architecture::Smollm3 => &llama::SMOLLM3,
        Architecture::Qwen2Moe => &qwen_moe::QWEN2_MOE,
        Architecture::Qwen3Moe => &qwen_moe::QWEN3_MOE,
        Architecture::Gemma => &gemma::Gemma,
        Architecture::Gemma2 => &gemma::Gemma2,
        Architecture::Gemma3 => &gemma::Gemma3,
        Architecture::Phi2 => &phi::Phi2,
        Architecture::Phi3 => &phi::Phi3,
        Architecture::Gpt2 => &gpt2::Gpt2,
        Architecture::Falcon => &falcon::Falcon,
        Architecture::Starcoder2 => &starcoder::Starcoder2,
        Architecture::Stablelm => &stablelm::Stablelm,
        Architecture::Olmo2 => &olmo::Olmo2,
        Architecture::Granite => &granite::Granite,
        Architecture::CommandR => &cohere::CommandR,
        Architecture::Deepseek2 => &deepseek::Deepseek2,
        Architecture::GptOss => &gpt_oss::GptOss,
        Architecture::Glm4 => &glm::Glm4,
        Architecture::Mamba => &mamba::Mamba,
        Architecture::Mamba2 => &mamba::Mamba2,
        Architecture::Bert => &bert::Bert,
        Architecture::NomicBert => &bert::NomicBert,
    }
}

impl Architecture {
    /// Whether every token sees all tokens of the text: such a model embeds texts and generates none.
    pub fn is_encoder(self) -> bool {
        layers(self).is_encoder()
    }

    /// Whether a text leaves states behind instead of keys and values: it can be continued where it ends, and not from an
    /// earlier token.
    pub fn is_recurrent(self) -> bool {
        layers(self).is_recurrent()
    }
}

impl Config {
    /// Reads the keys that start with the architecture's name.
    ///
    /// # Errors
    /// When a key is missing, of the wrong type, or contradicts another one.
    pub fn from_metadata(metadata: &Metadata) -> Result<Config> {
        let architecture = Architecture::of(metadata)?;
        let (keys, layers) = (Keys { metadata, architecture }, layers(architecture));
        let mut config = Config::common(&keys, layers.norm().epsilon(), !layers.is_recurrent())?;
        layers.configure(&keys, &mut config)?;
        if config.experts.is_none() && keys.count("expert_count")?.is_some() {
            let why = format!("{} has no experts", architecture.name());
            return Err(keys.bad("expert_count", &why));
        }
        Ok(config)
    }
}
