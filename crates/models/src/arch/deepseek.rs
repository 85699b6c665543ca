//! DeepSeek V2 (arXiv 2405.04434) and V3 (arXiv 2412.19437): latent attention, and experts beside one that every token uses.

use tallow_ir::Value;

use super::{Builder, Built, Config, Keys, Layers, Pairing, Result};
use crate::blocks::LatentHeads;
use crate::config::{Experts, Latent, Router};
use crate::layers::Activation::Silu;
use crate::rope::RopeScaling;

/// `deepseek2`.
#[derive(Debug)]
pub(super) struct Deepseek2;

/// `expert_gating_func` of a sigmoid.
const SIGMOID: usize = 2;

impl Layers for Deepseek2 {
    fn pairing(&self) -> Option<Pairing> {
        Some(Pairing::Neighbours)
    }

    fn configure(&self, keys: &Keys<'_>, config: &mut Config) -> Result<()> {
        let latent = Latent::read(keys, config)?;
        let mut scale = 1.0 / (latent.key_length as f32).sqrt();
        if let RopeScaling::Yarn { factor, log_multiplier, .. } = &mut config.rope_scaling
            && *log_multiplier != 0.0
        {
            // YaRN's magnitude is a factor on scores here, and none on queries and keys.
            scale *= (1.0 + *log_multiplier * factor.max(1.0).ln()).powi(2);
            *log_multiplier = 1.0;
        }
        config.attention_scale = Some(scale);
        config.latent = Some(latent);
        let router = match keys.count("expert_gating_func")? {
            Some(SIGMOID) => Router::Sigmoid,
            Some(1) | None => Router::Softmax,
            Some(_) => return Err(keys.bad("expert_gating_func", "is neither 1 (softmax) nor 2 (sigmoid)")),
        };
        config.experts = Experts::read(keys, router, false, config.feed_forward)?;
        if let Some(experts) = &mut config.experts {
            // Without the key, the expert that every token uses would be left out.
            experts.shared = keys.number("expert_shared_count")?;
        }
        Ok(())
    }

    fn layer(&self, b: &mut Builder<'_>, x: Value) -> Built {
        let normal = b.rms_norm(x, "attn_norm")?;
        let attended = match b.config.latent {
            Some(latent) => attention(b, normal, latent)?,
            None => return Ok(x),
        };
        let x = b.add(x, attended)?;
        self.probe(b, x)
    }

    fn probe(&self, b: &mut Builder<'_>, x: Value) -> Built {
        let normal = b.rms_norm(x, "ffn_norm")?;
        let fed = match b.config.experts {
            Some(e) if b.layer() >= e.leading_dense => {
                let fed = b.gated_experts(normal, Silu, &e)?;
                let names = ["ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp"];
                match e.feed_forward * e.shared {
                    0 => fed,
                    hidden => {
                        let shared = b.gated_parts(normal, Silu, names, hidden)?;
                        b.add(fed, shared)?
                    }
                }
            }
            _ => b.gated(normal, Silu)?,
        };
        b.add(x, fed)
    }
}

/// Latent attention of the normalized `x: [rows, width]`.
fn attention(b: &mut Builder<'_>, x: Value, latent: Latent) -> Built {
    let c = b.config;
    let (rotated, plain) = (c.rope_dimensions, latent.key_length - c.rope_dimensions);
    let q = match latent.query_rank {
        Some(rank) => {
            let q = b.linear(x, "attn_q_a", rank)?;
            let q = b.rms_norm(q, "attn_q_a_norm")?;
            b.linear(q, "attn_q_b", c.heads * latent.key_length)?
        }
        None => b.linear(x, "attn_q", c.heads * latent.key_length)?,
    };
    let q = b.split(q, c.heads, latent.key_length)?;
    let (q_plain, q_rotated) = (b.part(q, 2, 0, plain)?, b.part(q, 2, plain, rotated)?);

    let both = b.linear(x, "attn_kv_a_mqa", latent.rank + rotated)?;
    let row = b.part(both, 1, 0, latent.rank)?;
    let row = b.rms_norm(row, "attn_kv_a_norm")?;
    let row = b.split(row, 1, latent.rank)?;
    let k_rotated = b.part(both, 1, latent.rank, rotated)?;
    let k_rotated = b.split(k_rotated, 1, rotated)?;

    let [q_rotated, k_rotated] = b.rotated_pair([q_rotated, k_rotated], Pairing::Neighbours)?;
    let heads = LatentHeads { q: [q_plain, q_rotated], row: [row, k_rotated] };
    let rows = b.attend_to_latent(heads, b.causal(), latent)?;
    b.attention_output(rows)
}
