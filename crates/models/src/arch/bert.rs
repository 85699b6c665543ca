//! BERT (Devlin et al., arXiv 1810.04805) and Nomic's encoder (Nussbaum et al., arXiv 2402.01613): every token sees all
//! tokens of the text, and norms follow the sums.

use tallow_ir::Value;

use super::{Builder, Built, Layers, Norm, Pairing};
use crate::layers::Activation::{Gelu, Silu};

/// `bert`: learned positions, biases everywhere, GELU.
#[derive(Debug)]
pub(super) struct Bert;

/// `nomic-bert`: rope, no biases but those of norms, a gate.
#[derive(Debug)]
pub(super) struct NomicBert;

impl Layers for Bert {
    fn is_encoder(&self) -> bool {
        true
    }

    fn pairing(&self) -> Option<Pairing> {
        None
    }

    fn norm(&self) -> Norm {
        Norm::Layer
    }

    fn embed(&self, b: &mut Builder<'_>, tokens: Value) -> Built {
        let rows = b.embedding(tokens)?;
        let rows = b.plus_first_token_type(rows)?;
        let positions = b.position_embedding()?;
        let rows = b.add(rows, positions)?;
        b.layer_norm(rows, "token_embd_norm")
    }

    fn layer(&self, b: &mut Builder<'_>, x: Value) -> Built {
        let heads = if b.has("attn_qkv.weight") { b.heads_in_one(x)? } else { b.heads(x)? };
        let rows = b.attend(heads, b.bidirectional())?;
        let x = attended(b, x, rows)?;
        self.probe(b, x)
    }

    fn head(&self, _: &mut Builder<'_>, x: Value) -> Built {
        Ok(x)
    }

    fn probe(&self, b: &mut Builder<'_>, x: Value) -> Built {
        let fed = b.plain(x, Gelu)?;
        let sum = b.add(x, fed)?;
        b.layer_norm(sum, "layer_output_norm")
    }
}

impl Layers for NomicBert {
    fn is_encoder(&self) -> bool {
        true
    }

    fn pairing(&self) -> Option<Pairing> {
        Some(Pairing::Halves)
    }

    fn norm(&self) -> Norm {
        Norm::Layer
    }

    fn embed(&self, b: &mut Builder<'_>, tokens: Value) -> Built {
        let rows = b.embedding(tokens)?;
        let rows = b.plus_first_token_type(rows)?;
        b.layer_norm(rows, "token_embd_norm")
    }

    fn layer(&self, b: &mut Builder<'_>, x: Value) -> Built {
        let heads = b.heads_in_one(x)?;
        let heads = b.rotated(heads, Pairing::Halves)?;
        let rows = b.attend(heads, b.bidirectional())?;
        let x = attended(b, x, rows)?;
        self.probe(b, x)
    }

    fn head(&self, _: &mut Builder<'_>, x: Value) -> Built {
        Ok(x)
    }

    fn probe(&self, b: &mut Builder<'_>, x: Value) -> Built {
        let fed = b.gated(x, Silu)?;
        let sum = b.add(x, fed)?;
        b.layer_norm(sum, "layer_output_norm")
    }
}

/// The sum of `x` and the projected `rows` of attention, normalized.
fn attended(b: &mut Builder<'_>, x: Value, rows: Value) -> Built {
    let projected = b.attention_output(rows)?;
    let sum = b.add(x, projected)?;
    b.layer_norm(sum, "attn_output_norm")
}
