//! GPT-2 (Radford et al., 2019): learned positions, layer norms, biases everywhere, GELU without a gate.

use tallow_ir::Value;

use super::{Builder, Built, Layers, Norm, Pairing};
use crate::layers::Activation::GeluTanh;

/// `gpt2`.
#[derive(Debug)]
pub(super) struct Gpt2;

impl Layers for Gpt2 {
    fn pairing(&self) -> Option<Pairing> {
        None
    }

    fn norm(&self) -> Norm {
        Norm::Layer
    }

    fn embed(&self, b: &mut Builder<'_>, tokens: Value) -> Built {
        let rows = b.embedding(tokens)?;
        let positions = b.position_embedding()?;
        b.add(rows, positions)
    }

    fn layer(&self, b: &mut Builder<'_>, x: Value) -> Built {
        let normal = b.layer_norm(x, "attn_norm")?;
        let heads = b.heads_in_one(normal)?;
        let attended = b.causal_attention(heads)?;
        let x = b.add(x, attended)?;
        self.probe(b, x)
    }

    fn probe(&self, b: &mut Builder<'_>, x: Value) -> Built {
        let normal = b.layer_norm(x, "ffn_norm")?;
        let fed = b.plain(normal, GeluTanh)?;
        b.add(x, fed)
    }
}
