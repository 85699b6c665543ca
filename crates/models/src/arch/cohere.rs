//! Command R (Cohere, 2024): attention and feed-forward layer side by side, of one layer norm without bias; a factor on the
//! logits. In the larger model each head of queries and keys has a norm.

use tallow_ir::Value;

use super::{Builder, Built, Config, Keys, Layers, Norm, Pairing, Result};
use crate::layers::Activation::Silu;

/// `command-r`.
#[derive(Debug)]
pub(super) struct CommandR;

impl Layers for CommandR {
    fn pairing(&self) -> Option<Pairing> {
        Some(Pairing::Neighbours)
    }

    fn norm(&self) -> Norm {
        Norm::Layer
    }

    fn configure(&self, keys: &Keys<'_>, config: &mut Config) -> Result<()> {
        config.factors.logits = keys.positive_if_any("logit_scale")?.unwrap_or(1.0);
        Ok(())
    }

    fn layer(&self, b: &mut Builder<'_>, x: Value) -> Built {
        let normal = b.layer_norm(x, "attn_norm")?;
        let mut heads = b.heads(normal)?;
        if b.has("attn_q_norm.weight") {
            heads.q = b.each_head_layer_norm(heads.q, "attn_q_norm")?;
            heads.k = b.each_head_layer_norm(heads.k, "attn_k_norm")?;
        }
        let heads = b.rotated(heads, Pairing::Neighbours)?;
        let attended = b.causal_attention(heads)?;
        let fed = b.gated(normal, Silu)?;
        let both = b.add(attended, fed)?;
        b.add(x, both)
    }

    fn head(&self, b: &mut Builder<'_>, x: Value) -> Built {
        let normal = b.layer_norm(x, "output_norm")?;
        let logits = b.logits(normal)?;
        b.scaled(logits, b.config.factors.logits)
    }
}
