//! Llama (Touvron et al., arXiv 2302.13971 and 2307.09288) and the architectures with its layers: grouped-query attention and
//! SwiGLU, each of the norm of the residual stream and added to it.
//!
//! Mistral (arXiv 2310.06825) adds a window, Mixtral (arXiv 2401.04088) experts; their files say `llama`. Qwen 2 (arXiv
//! 2407.10671) has biases of queries, keys and values, which are read wherever a file has them, Qwen 3 (arXiv 2505.09388)
//! norms of heads. SmolLM 3 rotates three of four layers.

use tallow_ir::Value;

use super::{Builder, Built, Config, Keys, Layers, Pairing, Result};
use crate::config::{Experts, Router, Window};
use crate::layers::Activation::Silu;

/// The layers of Llama.
#[derive(Debug)]
pub(super) struct Llama {
    pairing: Pairing,
    /// Each head of queries and keys goes through an RMS norm.
    norms_heads: bool,
    /// The last of each so many layers does not rotate; 0: each does.
    unrotated: usize,
    /// Files may be those of Mistral or Mixtral: with a window, or with experts.
    has_variants: bool,
}

/// `llama`.
pub(super) const LLAMA: Llama =
    Llama { pairing: Pairing::Neighbours, norms_heads: false, unrotated: 0, has_variants: true };
/// `qwen2`.
pub(super) const QWEN2: Llama = Llama { pairing: Pairing::Halves, has_variants: false, ..LLAMA };
/// `qwen3`.
pub(super) const QWEN3: Llama = Llama { norms_heads: true, ..QWEN2 };
/// `smollm3`.
pub(super) const SMOLLM3: Llama = Llama { unrotated: 4, has_variants: false, ..LLAMA };

impl Llama {
    /// Attention of the normalized `x`.
    pub(super) fn attention(&self, b: &mut Builder<'_>, x: Value) -> Built {
        let mut heads = b.heads(x)?;
        if self.norms_heads {
            heads.q = b.head_rms_norm(heads.q, "attn_q_norm")?;
            heads.k = b.head_rms_norm(heads.k, "attn_k_norm")?;
        }
        if self.unrotated == 0 || !(b.layer() + 1).is_multiple_of(self.unrotated) {
            heads = b.rotated(heads, self.pairing)?;
        }
        b.causal_attention(heads)
    }
}

impl Layers for Llama {
    fn pairing(&self) -> Option<Pairing> {
        Some(self.pairing)
    }

    fn configure(&self, keys: &Keys<'_>, config: &mut Config) -> Result<()> {
        if !self.has_variants {
            return Ok(());
        }
        let window = keys.count("attention.sliding_window")?;
        config.window = window.map(|size| Window { size: size as u32, period: None });
        config.experts = Experts::read(keys, Router::Softmax, true, config.feed_forward)?;
        Ok(())
    }

    fn layer(&self, b: &mut Builder<'_>, x: Value) -> Built {
        let normal = b.rms_norm(x, "attn_norm")?;
        let attended = self.attention(b, normal)?;
        let x = b.add(x, attended)?;
        self.probe(b, x)
    }

    fn probe(&self, b: &mut Builder<'_>, x: Value) -> Built {
        let normal = b.rms_norm(x, "ffn_norm")?;
        let fed = match &b.config.experts {
            Some(experts) => b.gated_experts(normal, Silu, experts)?,
            None => b.gated(normal, Silu)?,
        };
        b.add(x, fed)
    }
}
