//! gpt-oss (OpenAI, arXiv 2508.10925): windows in every second layer, attention sinks, experts with biases and a bounded gate.
//!
//! A sink is one more score of each head, which has no value: it takes its share of the softmax.

use tallow_ir::Value;

use super::{Builder, Built, Config, Keys, Layers, Pairing, Result};
use crate::config::{Experts, Router, Window};
use crate::rope::RopeScaling;

/// `gpt-oss`.
#[derive(Debug)]
pub(super) struct GptOss;

/// Bound on the gate from above, and on what it multiplies from both sides.
const LIMIT: f32 = 7.0;
/// Factor on the gate inside the sigmoid.
const ALPHA: f32 = 1.702;

impl Layers for GptOss {
    fn pairing(&self) -> Option<Pairing> {
        Some(Pairing::Halves)
    }

    fn configure(&self, keys: &Keys<'_>, config: &mut Config) -> Result<()> {
        let window = keys.count("attention.sliding_window")?;
        config.window = window.map(|size| Window { size: size as u32, period: Some(2) });
        config.experts = Experts::read(keys, Router::SoftmaxOfChosen, false, config.feed_forward)?;
        if let RopeScaling::Yarn { rounds, .. } = &mut config.rope_scaling {
            *rounds = false;
        }
        match config.experts {
            Some(_) => Ok(()),
            None => Err(keys.bad("expert_count", "is missing or 0")),
        }
    }

    fn layer(&self, b: &mut Builder<'_>, x: Value) -> Built {
        let normal = b.rms_norm(x, "attn_norm")?;
        let heads = b.heads(normal)?;
        let heads = b.rotated(heads, Pairing::Halves)?;
        let rows = b.attend_with_sinks(heads, b.causal(), "attn_sinks.weight")?;
        let attended = b.attention_output(rows)?;
        let x = b.add(x, attended)?;
        self.probe(b, x)
    }

    fn probe(&self, b: &mut Builder<'_>, x: Value) -> Built {
        let Some(e) = &b.config.experts else { return Ok(x) };
        let normal = b.rms_norm(x, "post_attention_norm")?;
        let choice = b.route(normal, e)?;
        let rows = b.expert_rows(normal, &choice)?;
        let gate = b.of_experts(rows, &choice, "ffn_gate_exps", e)?;
        let up = b.of_experts(rows, &choice, "ffn_up_exps", e)?;
        let gate = b.at_most(gate, LIMIT)?;
        let up = b.at_most(up, LIMIT)?;
        let up = b.at_least(up, -LIMIT)?;
        let inside = b.scaled(gate, ALPHA)?;
        let share = b.sigmoid(inside)?;
        let gate = b.mul(gate, share)?;
        let up = b.plus(up, 1.0)?;
        let product = b.mul(up, gate)?;
        let fed = b.sum_of_experts(product, &choice, "ffn_down_exps", e)?;
        b.add(x, fed)
    }
}
