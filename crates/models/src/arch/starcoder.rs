//! StarCoder 2 (Lozhkov et al., arXiv 2402.19173): layer norms, biases, rope, GELU without a gate.

use tallow_ir::Value;

use super::{Builder, Built, EPSILON, Layers, Pairing};
use crate::layers::Activation::GeluTanh;

/// `starcoder2`.
#[derive(Debug)]
pub(super) struct Starcoder2;

impl Layers for Starcoder2 {
    fn pairing(&self) -> Option<Pairing> {
        Some(Pairing::Halves)
    }

    fn epsilon(&self) -> &'static str {
        EPSILON
    }

    fn layer(&self, b: &mut Builder<'_>, x: Value) -> Built {
        let normal = b.layer_norm(x, "attn_norm")?;
        let heads = b.heads(normal)?;
        let heads = b.rotated(heads, Pairing::Halves)?;
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
