//! OLMo 2 (OLMo team, arXiv 2501.00656): norms of what a block adds instead of what it takes, and of all queries and all keys
//! before they are divided into heads.

use tallow_ir::Value;

use super::{Builder, Built, Layers, Pairing};
use crate::layers::Activation::Silu;

/// `olmo2`.
#[derive(Debug)]
pub(super) struct Olmo2;

impl Layers for Olmo2 {
    fn pairing(&self) -> Option<Pairing> {
        Some(Pairing::Halves)
    }

    fn layer(&self, b: &mut Builder<'_>, x: Value) -> Built {
        let c = b.config;
        let q = b.linear(x, "attn_q", c.heads * c.key_length)?;
        let k = b.linear(x, "attn_k", c.kv_heads * c.key_length)?;
        let v = b.linear(x, "attn_v", c.kv_heads * c.value_length)?;
        let q = b.rms_norm(q, "attn_q_norm")?;
        let k = b.rms_norm(k, "attn_k_norm")?;
        let heads = b.split_heads([q, k, v])?;
        let heads = b.rotated(heads, Pairing::Halves)?;
        let attended = b.causal_attention(heads)?;
        let attended = b.rms_norm(attended, "post_attention_norm")?;
        let x = b.add(x, attended)?;
        self.probe(b, x)
    }

    fn probe(&self, b: &mut Builder<'_>, x: Value) -> Built {
        let fed = b.gated(x, Silu)?;
        let fed = b.rms_norm(fed, "post_ffw_norm")?;
        b.add(x, fed)
    }
}
