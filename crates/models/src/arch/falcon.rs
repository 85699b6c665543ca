//! Falcon (Almazrouei et al., arXiv 2311.16867): attention and feed-forward layer side by side, of one norm in the smaller
//! model and of two in the larger.

use tallow_ir::Value;

use super::{Builder, Built, Layers, Norm, Pairing};
use crate::layers::Activation::Gelu;

/// `falcon`.
#[derive(Debug)]
pub(super) struct Falcon;

impl Layers for Falcon {
    fn pairing(&self) -> Option<Pairing> {
        Some(Pairing::Halves)
    }

    fn norm(&self) -> Norm {
        Norm::Layer
    }

    fn layer(&self, b: &mut Builder<'_>, x: Value) -> Built {
        let to_feed = b.layer_norm(x, "attn_norm")?;
        let to_attend = if b.has("attn_norm_2.weight") { b.layer_norm(x, "attn_norm_2")? } else { to_feed };
        let heads = b.heads_in_one(to_attend)?;
        let heads = b.rotated(heads, Pairing::Halves)?;
        let attended = b.causal_attention(heads)?;
        let fed = b.plain(to_feed, Gelu)?;
        let both = b.add(attended, fed)?;
        b.add(x, both)
    }

    fn probe(&self, b: &mut Builder<'_>, x: Value) -> Built {
        let fed = b.plain(x, Gelu)?;
        b.add(x, fed)
    }
}
