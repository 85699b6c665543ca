//! StarCoder 2 (Lozhkov et al., arXiv 2402.19173): layer norms, biases, rope, GELU without a gate.

use tallow_ir::Value;

use super::{Builder, Built, Layers, Norm, Pairing};
use crate::layers::Activation::GeluTanh;

/// `starcoder2`.
#[derive(Debug)]
pub(super) struct Starcoder2;

impl Layers for Starcoder2 {
    fn pairing(&self) -> Option<Pairing> {
        Some(Pairing::Halves)
    }

    fn norm(&self) -> Norm {
        Norm::Layer
    }

    fn layer(&self, b: &mut Builder<'_>, x: Value) -> Built {
        let normal = b.layer_norm(x, "attn_norm")?;
        let heads = b.heads(normal)?;
        let heads = b.rotated(heads, Pairing::Halves)?;
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
