//! GLM 4 (GLM team, arXiv 2406.12793; files of the model of April 2025): each block is between two norms; gate and up are in
//! one weight.

use tallow_ir::Value;

use super::{Builder, Built, Layers, Pairing};
use crate::layers::Activation::Silu;

/// `glm4`.
#[derive(Debug)]
pub(super) struct Glm4;

impl Layers for Glm4 {
    fn pairing(&self) -> Option<Pairing> {
        Some(Pairing::Neighbours)
    }

    fn layer(&self, b: &mut Builder<'_>, x: Value) -> Built {
        let normal = b.rms_norm(x, "attn_norm")?;
        let heads = if b.has("attn_qkv.weight") { b.heads_in_one(normal)? } else { b.heads(normal)? };
        let heads = b.rotated(heads, Pairing::Neighbours)?;
        let attended = b.causal_attention(heads)?;
        let attended = b.rms_norm(attended, "post_attention_norm")?;
        let x = b.add(x, attended)?;
        self.probe(b, x)
    }

    fn probe(&self, b: &mut Builder<'_>, x: Value) -> Built {
        let normal = b.rms_norm(x, "ffn_norm")?;
        let fed = b.gated_in_one(normal, Silu)?;
        let fed = b.rms_norm(fed, "post_ffw_norm")?;
        b.add(x, fed)
    }
}
