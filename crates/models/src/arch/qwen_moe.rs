//! Qwen's mixtures of experts: the attention of Qwen 2 or Qwen 3, then experts. Those of Qwen 2 (arXiv 2407.10671) have an
//! expert beside them that every token uses, times the sigmoid of a score of its own.

use tallow_ir::Value;

use super::llama::{Llama, QWEN2, QWEN3};
use super::{Builder, Built, Config, Keys, Layers, Pairing, Result};
use crate::config::{Experts, Router};
use crate::layers::Activation::Silu;

/// Experts after the attention of another architecture.
#[derive(Debug)]
pub(super) struct QwenMoe {
    attention: Llama,
    normalizes: bool,
    /// Whether each layer has an expert that every token uses.
    shares: bool,
}

/// `qwen2moe`.
pub(super) const QWEN2_MOE: QwenMoe = QwenMoe { attention: QWEN2, normalizes: false, shares: true };
/// `qwen3moe`.
pub(super) const QWEN3_MOE: QwenMoe = QwenMoe { attention: QWEN3, normalizes: true, shares: false };

impl Layers for QwenMoe {
    fn pairing(&self) -> Option<Pairing> {
        self.attention.pairing()
    }

    fn configure(&self, keys: &Keys<'_>, config: &mut Config) -> Result<()> {
        config.experts = Experts::read(keys, Router::Softmax, self.normalizes, config.feed_forward)?;
        match &mut config.experts {
            Some(experts) if self.shares => {
                experts.shared_feed_forward =
                    keys.number_or("expert_shared_feed_forward_length", config.feed_forward)?;
                Ok(())
            }
            Some(_) => Ok(()),
            None => Err(keys.bad("expert_count", "is missing or 0")),
        }
    }

    fn layer(&self, b: &mut Builder<'_>, x: Value) -> Built {
        let normal = b.rms_norm(x, "attn_norm")?;
        let attended = self.attention.attention(b, normal)?;
        let x = b.add(x, attended)?;
        self.probe(b, x)
    }

    fn probe(&self, b: &mut Builder<'_>, x: Value) -> Built {
        let Some(experts) = &b.config.experts else { return Ok(x) };
        let normal = b.rms_norm(x, "ffn_norm")?;
        let mut fed = b.gated_experts(normal, Silu, experts)?;
        if experts.shared_feed_forward > 0 {
            let names = ["ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp"];
            let shared = b.gated_parts(normal, Silu, names, experts.shared_feed_forward)?;
            let score = b.row_product(normal, "ffn_gate_inp_shexp.weight")?;
            let score = b.sigmoid(score)?;
            let score = b.g.broadcast(score, b.g.ty(shared).shape.clone())?;
            let shared = b.mul(shared, score)?;
            fed = b.add(fed, shared)?;
        }
        b.add(x, fed)
    }
}
