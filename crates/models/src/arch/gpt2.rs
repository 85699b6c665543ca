//! GPT-2 (Radford et al., 2019): learned positions, layer norms, biases everywhere, GELU without a gate.

use tallow_ir::Value;

use super::{Builder, Built, EPSILON, Layers, Pairing};
use crate::layers::Activation::GeluTanh;

/// `gpt2`.
#[derive(Debug)]
pub(super) struct Gpt2;

impl Layers for Gpt2 {
    fn pairing(&self) -> Option<Pairing> {
        None
    }

    fn epsilon(&self) -> &'static str {
        EPSILON
    }

    fn embed(&self, b: &mut Builder<'_>, tokens: Value) -> Built {
        let rows = b.embedding(tokens)?;
        let positions = b.position_embedding()?;
        b.add(rows, positions)
    }

    fn layer(&self, b: &mut Builder<'_>, x: Value) -> Built {
        let normal = b.layer_norm(x, "attn_norm")?;
        let heads = b.heads_in_one(normal)?;
        let rows = b.attend(heads, b.causal())?;
        let attended = b.attention_output(rows)?;
        let x = b.add(x, attended)?;
        self.probe(b, x)
    }

    fn head(&self, b: &mut Builder<'_>, x: Value) -> Built {
        let normal = b.layer_norm(x, "output_norm")?;
        b.logits(normal)
    }

    fn probe(&self, b: &mut Builder<'_>, x: Value) -> Built {
        let normal = b.layer_norm(x, "ffn_norm")?;
        let fed = b.plain(normal, GeluTanh)?;
        b.add(x, fed)
    }
}
