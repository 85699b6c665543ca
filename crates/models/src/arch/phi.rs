//! Phi 2 (Microsoft, 2023), whose attention and feed-forward layer take the same norm, and Phi 3 (arXiv 2404.14219), also of
//! Phi 4, which has the layers of Llama with queries, keys and values in one weight, gate and up in another.

use tallow_ir::Value;

use super::{Builder, Built, Config, Keys, Layers, Norm, Pairing, Result};
use crate::config::{LongRope, Window};
use crate::layers::Activation::{GeluTanh, Silu};

/// `phi2`.
#[derive(Debug)]
pub(super) struct Phi2;

/// `phi3`.
#[derive(Debug)]
pub(super) struct Phi3;

impl Layers for Phi2 {
    fn pairing(&self) -> Option<Pairing> {
        Some(Pairing::Halves)
    }

    fn norm(&self) -> Norm {
        Norm::Layer
    }

    fn layer(&self, b: &mut Builder<'_>, x: Value) -> Built {
        let normal = b.layer_norm(x, "attn_norm")?;
        let heads = if b.has("attn_qkv.weight") { b.heads_in_one(normal)? } else { b.heads(normal)? };
        let heads = b.rotated(heads, Pairing::Halves)?;
        let attended = b.causal_attention(heads)?;
        let fed = b.plain(normal, GeluTanh)?;
        let both = b.add(attended, fed)?;
        b.add(x, both)
    }

    fn probe(&self, b: &mut Builder<'_>, x: Value) -> Built {
        let fed = b.plain(x, GeluTanh)?;
        b.add(x, fed)
    }
}

impl Layers for Phi3 {
    fn pairing(&self) -> Option<Pairing> {
        Some(Pairing::Halves)
    }

    fn configure(&self, keys: &Keys<'_>, config: &mut Config) -> Result<()> {
        let window = keys.count("attention.sliding_window")?;
        config.window = window.map(|size| Window { size: size as u32, period: None });
        let original = keys.count("rope.scaling.original_context_length")?;
        let magnitude = keys.positive("rope.scaling.attn_factor", 1.0)?;
        config.long_rope = original.map(|original_context| LongRope { original_context, magnitude });
        Ok(())
    }

    fn layer(&self, b: &mut Builder<'_>, x: Value) -> Built {
        let normal = b.rms_norm(x, "attn_norm")?;
        let heads = b.heads_in_one(normal)?;
        let heads = b.rotated(heads, Pairing::Halves)?;
        let attended = b.causal_attention(heads)?;
        let x = b.add(x, attended)?;
        self.probe(b, x)
    }

    fn probe(&self, b: &mut Builder<'_>, x: Value) -> Built {
        let normal = b.rms_norm(x, "ffn_norm")?;
        let fed = b.gated_in_one(normal, Silu)?;
        b.add(x, fed)
    }
}
