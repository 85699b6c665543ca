//! Gemma (arXiv 2403.08295), Gemma 2 (arXiv 2408.00118) and Gemma 3 (arXiv 2503.19786): rows of the embedding times the root
//! of their width, GELU gates; from Gemma 2 on also norms of what a block adds, and windows in most layers.
//!
//! Files hold the weights of norms with the 1 that the papers add to them.

use tallow_ir::Value;

use super::{Builder, Built, Config, Keys, Layers, Pairing, Result};
use crate::config::{Softcaps, Window};
use crate::layers::Activation::GeluTanh;

/// `gemma`.
#[derive(Debug)]
pub(super) struct Gemma;

/// `gemma2`.
#[derive(Debug)]
pub(super) struct Gemma2;

/// `gemma3`.
#[derive(Debug)]
pub(super) struct Gemma3;

/// Layers of the Gemma 2 and Gemma 3 of 27 billion parameters, whose scores are divided by the root of `width / heads`.
const LAYERS_OF_27B: [usize; 2] = [46, 62];

impl Layers for Gemma {
    fn pairing(&self) -> Option<Pairing> {
        Some(Pairing::Halves)
    }

    fn embed(&self, b: &mut Builder<'_>, tokens: Value) -> Built {
        let rows = b.embedding(tokens)?;
        b.scaled(rows, (b.config.width as f32).sqrt())
    }

    fn layer(&self, b: &mut Builder<'_>, x: Value) -> Built {
        let normal = b.rms_norm(x, "attn_norm")?;
        let heads = b.heads(normal)?;
        let heads = b.rotated(heads, Pairing::Halves)?;
        let attended = b.causal_attention(heads)?;
        let x = b.add(x, attended)?;
        self.probe(b, x)
    }

    fn probe(&self, b: &mut Builder<'_>, x: Value) -> Built {
        let normal = b.rms_norm(x, "ffn_norm")?;
        let fed = b.gated(normal, GeluTanh)?;
        b.add(x, fed)
    }
}

/// The window that all but the last of each `period` layers have, and the factor on scores.
fn configure(keys: &Keys<'_>, config: &mut Config, period: usize) -> Result<()> {
    let window = keys.count("attention.sliding_window")?;
    config.window = window.map(|size| Window { size: size as u32, period: Some(period) });
    if LAYERS_OF_27B.contains(&config.layers) {
        config.attention_scale = Some(1.0 / (config.width as f32 / config.heads as f32).sqrt());
    }
    Ok(())
}

/// The layer of Gemma 2 and Gemma 3: each block is between two norms.
fn between_norms(b: &mut Builder<'_>, x: Value, norms_heads: bool) -> Built {
    let normal = b.rms_norm(x, "attn_norm")?;
    let mut heads = b.heads(normal)?;
    if norms_heads {
        heads.q = b.head_rms_norm(heads.q, "attn_q_norm")?;
        heads.k = b.head_rms_norm(heads.k, "attn_k_norm")?;
    }
    let heads = b.rotated(heads, Pairing::Halves)?;
    let attended = b.causal_attention(heads)?;
    let attended = b.rms_norm(attended, "post_attention_norm")?;
    let x = b.add(x, attended)?;
    fed_between_norms(b, x)
}

fn fed_between_norms(b: &mut Builder<'_>, x: Value) -> Built {
    let normal = b.rms_norm(x, "ffn_norm")?;
    let fed = b.gated(normal, GeluTanh)?;
    let fed = b.rms_norm(fed, "post_ffw_norm")?;
    b.add(x, fed)
}

impl Layers for Gemma2 {
    fn pairing(&self) -> Option<Pairing> {
        Some(Pairing::Halves)
    }

    fn configure(&self, keys: &Keys<'_>, config: &mut Config) -> Result<()> {
        config.softcaps = Softcaps {
            // The first files lack the keys.
            attention: Some(keys.positive("attn_logit_softcapping", 50.0)?),
            logits: Some(keys.positive("final_logit_softcapping", 30.0)?),
        };
        configure(keys, config, 2)?;
        let size = keys.number_or("attention.sliding_window", 4096)?;
        config.window = Some(Window { size: size as u32, period: Some(2) });
        Ok(())
    }

    fn embed(&self, b: &mut Builder<'_>, tokens: Value) -> Built {
        Gemma.embed(b, tokens)
    }

    fn layer(&self, b: &mut Builder<'_>, x: Value) -> Built {
        between_norms(b, x, false)
    }

    fn head(&self, b: &mut Builder<'_>, x: Value) -> Built {
        let normal = b.rms_norm(x, "output_norm")?;
        let logits = b.logits(normal)?;
        b.capped(logits, b.config.softcaps.logits)
    }

    fn probe(&self, b: &mut Builder<'_>, x: Value) -> Built {
        fed_between_norms(b, x)
    }
}

impl Layers for Gemma3 {
    fn pairing(&self) -> Option<Pairing> {
        Some(Pairing::Halves)
    }

    fn configure(&self, keys: &Keys<'_>, config: &mut Config) -> Result<()> {
        // Layers with a window have short-range frequencies.
        config.rope_local_base = Some(keys.positive("rope.freq_base_swa", 10000.0)?);
        config.softcaps.logits = keys.positive_if_any("final_logit_softcapping")?;
        configure(keys, config, 6)
    }

    fn embed(&self, b: &mut Builder<'_>, tokens: Value) -> Built {
        Gemma.embed(b, tokens)
    }

    fn layer(&self, b: &mut Builder<'_>, x: Value) -> Built {
        between_norms(b, x, true)
    }

    fn head(&self, b: &mut Builder<'_>, x: Value) -> Built {
        Gemma2.head(b, x)
    }

    fn probe(&self, b: &mut Builder<'_>, x: Value) -> Built {
        fed_between_norms(b, x)
    }
}
