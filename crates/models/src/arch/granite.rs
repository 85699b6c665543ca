//! Granite 3 (IBM, 2024): the layers of Llama with factors on the embedding, on scores, on what blocks add, and on the logits.

use tallow_ir::Value;

use super::llama::LLAMA;
use super::{Builder, Built, Config, Keys, Layers, Pairing, Result};
use crate::config::Factors;
use crate::layers::Activation::Silu;

/// `granite`.
#[derive(Debug)]
pub(super) struct Granite;

impl Layers for Granite {
    fn pairing(&self) -> Option<Pairing> {
        LLAMA.pairing()
    }

    fn configure(&self, keys: &Keys<'_>, config: &mut Config) -> Result<()> {
        config.attention_scale = keys.positive_if_any("attention.scale")?;
        config.factors = Factors {
            embedding: keys.positive_if_any("embedding_scale")?.unwrap_or(1.0),
            residual: keys.positive_if_any("residual_scale")?.unwrap_or(1.0),
            // The file has the divisor.
            logits: 1.0 / keys.positive_if_any("logit_scale")?.unwrap_or(1.0),
        };
        Ok(())
    }

    fn embed(&self, b: &mut Builder<'_>, tokens: Value) -> Built {
        let rows = b.embedding(tokens)?;
        b.scaled(rows, b.config.factors.embedding)
    }

    fn layer(&self, b: &mut Builder<'_>, x: Value) -> Built {
        let normal = b.rms_norm(x, "attn_norm")?;
        let attended = LLAMA.attention(b, normal)?;
        let attended = b.scaled(attended, b.config.factors.residual)?;
        let x = b.add(x, attended)?;
        self.probe(b, x)
    }

    fn head(&self, b: &mut Builder<'_>, x: Value) -> Built {
        let normal = b.rms_norm(x, "output_norm")?;
        let logits = b.logits(normal)?;
        b.scaled(logits, b.config.factors.logits)
    }

    fn probe(&self, b: &mut Builder<'_>, x: Value) -> Built {
        let normal = b.rms_norm(x, "ffn_norm")?;
        let fed = b.gated(normal, Silu)?;
        let fed = b.scaled(fed, b.config.factors.residual)?;
        b.add(x, fed)
    }
}
