//! StableLM 2 (Bellagente et al., arXiv 2402.17834): the layers of Llama with layer norms. In the larger model each head of
//! queries and keys has a norm, and the feed-forward layer stands beside attention, of the same norm.

use tallow_ir::Value;

use super::{Builder, Built, Layers, Norm, Pairing};
use crate::layers::Activation::Silu;

/// `stablelm`.
#[derive(Debug)]
pub(super) struct Stablelm;

impl Layers for Stablelm {
    fn pairing(&self) -> Option<Pairing> {
        Some(Pairing::Halves)
    }

    fn norm(&self) -> Norm {
        Norm::Layer
    }

    fn layer(&self, b: &mut Builder<'_>, x: Value) -> Built {
        let normal = b.layer_norm(x, "attn_norm")?;
        let mut heads = b.heads(normal)?;
        if b.has("attn_q_norm.weight") {
            heads.q = b.each_head_layer_norm(heads.q, "attn_q_norm")?;
            heads.k = b.each_head_layer_norm(heads.k, "attn_k_norm")?;
        }
        let heads = b.rotated(heads, Pairing::Halves)?;
        let attended = b.causal_attention(heads)?;
        let between = b.add(x, attended)?;
        let to_feed = if b.has("ffn_norm.weight") { b.layer_norm(between, "ffn_norm")? } else { normal };
        let fed = b.gated(to_feed, Silu)?;
        b.add(between, fed)
    }
}
