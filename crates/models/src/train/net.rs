//! The decoder as an expression over variables.
//!
//! Weights have the names and shapes of Hugging Face's `LlamaForCausalLM`: matrices are `[outputs, inputs]`, rope rotates
//! the halves of a head, the output matrix is the embedding.

use std::collections::HashMap;

use indexmap::IndexMap;
use tallow::nn::loss::cross_entropy;
use tallow::nn::ops::dropout;
use tallow::nn::ops::{rms_norm, sdpa};
use tallow::nn::rotary_emb::rope_thd;
use tallow::{DType, Device, Tensor, Var};

use super::config::NetConfig;

/// Standard deviation of initial matrices.
const DEVIATION: f64 = 0.02;

/// How a weight begins.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Initial {
    /// Normal, of this standard deviation.
    Normal(f64),
    Ones,
}

/// A decoder whose weights are variables.
#[derive(Debug)]
pub struct Net {
    config: NetConfig,
    device: Device,
    vars: IndexMap<String, Var>,
}

impl Net {
    /// A decoder with random weights: matrices are normal with deviation 0.02, those that add to the residual stream with
    /// `0.02 / sqrt(2 n_layer)`; norms are 1. The same seed gives the same weights on each device. Starts the process's
    /// sequence of random draws anew ([`Device::set_seed`]).
    ///
    /// # Errors
    /// When memory runs out.
    pub fn new(config: &NetConfig, seed: u64, device: &Device) -> tallow::Result<Net> {
        Device::Cpu.set_seed(seed)?;
        let mut vars = IndexMap::new();
        for (name, shape, initial) in weights(config) {
            // Drawn on the host: normal numbers differ in the last bits between devices.
            let values = match initial {
                Initial::Normal(deviation) => Tensor::randn(0f32, deviation as f32, shape, &Device::Cpu)?,
                Initial::Ones => Tensor::ones(shape, DType::F32, &Device::Cpu)?,
            };
            vars.insert(name, Var::from_tensor(&values.to_device(device)?)?);
        }
        Ok(Net { config: config.clone(), device: device.clone(), vars })
    }

    /// A decoder with these weights by name, of any float type. Others are ignored.
    ///
    /// # Errors
    /// When a weight is missing or of another shape, or memory runs out.
    pub fn from_tensors(
        config: &NetConfig,
        tensors: &HashMap<String, Tensor>,
        device: &Device,
    ) -> tallow::Result<Net> {
        let mut vars = IndexMap::new();
        for (name, shape, _) in weights(config) {
            let invalid = |why| tallow::Error::InvalidArgument { op: "load", why };
            let found = tensors.get(&name).ok_or_else(|| invalid(format!("{name} is missing")))?;
            if found.dims() != shape {
                return Err(invalid(format!("{name} has shape {:?}, not {shape:?}", found.dims())));
            }
            let values = found.to_dtype(DType::F32)?.to_device(device)?;
            vars.insert(name, Var::from_tensor(&values)?);
        }
        Ok(Net { config: config.clone(), device: device.clone(), vars })
    }

    /// The sizes.
    pub fn config(&self) -> &NetConfig {
        &self.config
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Names and weights, in the order of the architecture.
    pub fn vars(&self) -> impl Iterator<Item = (&str, &Var)> {
        self.vars.iter().map(|(name, var)| (name.as_str(), var))
    }

    /// Number of parameters.
    pub fn parameters(&self) -> usize {
        self.vars.values().map(|var| var.elem_count()).sum()
    }

    /// Logits `[batch * time, vocab_size]` of the tokens after each of `tokens` (u32, `[batch, time]`). `dropout` is the
    /// probability with which activations are dropped, 0 outside of training.
    ///
    /// # Errors
    /// When `tokens` is no matrix of integers, or an extent does not fit.
    pub fn logits(&self, tokens: &Tensor, dropout: f64) -> tallow::Result<Tensor> {
        let (batch, time) = tokens.dims2()?;
        let embedding = self.var("model.embed_tokens.weight")?;
        let angles = self.angles(time)?;
        let mut x = embedding.embedding(&tokens.flatten_all()?)?;
        x = dropped(&x, dropout)?;
        for layer in 0..self.config.n_layer {
            let at = format!("model.layers.{layer}.");
            let normed = self.norm(&x, &format!("{at}input_layernorm.weight"))?;
            let attended = self.attention(&normed, &format!("{at}self_attn."), [batch, time], &angles)?;
            x = x.add(&dropped(&attended, dropout)?)?;
            let normed = self.norm(&x, &format!("{at}post_attention_layernorm.weight"))?;
            let gate = self.linear(&normed, &format!("{at}mlp.gate_proj.weight"))?.silu()?;
            let up = self.linear(&normed, &format!("{at}mlp.up_proj.weight"))?;
            let down = self.linear(&gate.mul(&up)?, &format!("{at}mlp.down_proj.weight"))?;
            x = x.add(&dropped(&down, dropout)?)?;
        }
        self.norm(&x, "model.norm.weight")?.matmul(&embedding.t()?)
    }

    /// Mean cross entropy (nats) of `targets` (u32, `[batch, time]`), the tokens after `tokens`; rank 0.
    ///
    /// # Errors
    /// As [`Net::logits`], or when `targets` is of another shape.
    pub fn loss(&self, tokens: &Tensor, targets: &Tensor, dropout: f64) -> tallow::Result<Tensor> {
        cross_entropy(&self.logits(tokens, dropout)?, &targets.flatten_all()?)
    }

    /// Of `x` `[batch * time, n_embd]`.
    fn attention(
        &self,
        x: &Tensor,
        at: &str,
        [batch, time]: [usize; 2],
        [cos, sin]: &[Tensor; 2],
    ) -> tallow::Result<Tensor> {
        let NetConfig { n_embd, n_head, n_head_kv, .. } = self.config;
        let length = n_embd / n_head;
        let heads = |name: &str, heads: usize| {
            self.linear(x, &format!("{at}{name}.weight"))?.reshape((batch, time, heads, length))
        };
        let rotated = |x: &Tensor| rope_thd(x, cos, sin)?.transpose(1, 2)?.contiguous();
        let (q, k) = (rotated(&heads("q_proj", n_head)?)?, rotated(&heads("k_proj", n_head_kv)?)?);
        let v = heads("v_proj", n_head_kv)?.transpose(1, 2)?.contiguous()?;
        let attended = sdpa(&q, &k, &v, None, true, 1.0 / (length as f32).sqrt(), 1.0)?;
        let merged = attended.transpose(1, 2)?.reshape((batch * time, n_embd))?;
        self.linear(&merged, &format!("{at}o_proj.weight"))
    }

    fn norm(&self, x: &Tensor, name: &str) -> tallow::Result<Tensor> {
        rms_norm(x, self.var(name)?, self.config.rms_eps)
    }

    fn linear(&self, x: &Tensor, name: &str) -> tallow::Result<Tensor> {
        x.matmul(&self.var(name)?.t()?)
    }

    fn var(&self, name: &str) -> tallow::Result<&Var> {
        self.vars.get(name).ok_or_else(|| tallow::Error::CannotFindTensor { path: name.into() })
    }

    /// Cosines and sines of the angles of `time` positions, each `[time, n_embd / n_head / 2]`.
    fn angles(&self, time: usize) -> tallow::Result<[Tensor; 2]> {
        let length = self.config.n_embd / self.config.n_head;
        let angle = |i: usize| {
            let (position, pair) = (i / (length / 2), i % (length / 2));
            position as f64 / self.config.rope_theta.powf((2 * pair) as f64 / length as f64)
        };
        let of = |function: fn(f64) -> f64| {
            let values: Vec<f32> = (0..time * length / 2).map(|i| function(angle(i)) as f32).collect();
            Tensor::from_vec(values, (time, length / 2), &self.device)
        };
        Ok([of(f64::cos)?, of(f64::sin)?])
    }
}

fn dropped(x: &Tensor, probability: f64) -> tallow::Result<Tensor> {
    if probability == 0.0 { Ok(x.clone()) } else { dropout(x, probability as f32) }
}

/// Names, shapes and beginnings of all weights.
fn weights(config: &NetConfig) -> Vec<(String, Vec<usize>, Initial)> {
    let NetConfig { vocab_size, n_embd, n_layer, n_head, n_head_kv, n_ff, .. } = *config;
    let (wide, narrow) = (n_embd, n_embd / n_head * n_head_kv);
    let normal = Initial::Normal(DEVIATION);
    // What adds to the residual stream is smaller, so that the stream does not grow with the layers.
    let residual = Initial::Normal(DEVIATION / ((2 * n_layer) as f64).sqrt());
    let mut all = vec![("model.embed_tokens.weight".to_string(), vec![vocab_size, n_embd], normal)];
    for layer in 0..n_layer {
        let of_layer = [
            ("input_layernorm", vec![n_embd], Initial::Ones),
            ("self_attn.q_proj", vec![wide, n_embd], normal),
            ("self_attn.k_proj", vec![narrow, n_embd], normal),
            ("self_attn.v_proj", vec![narrow, n_embd], normal),
            ("self_attn.o_proj", vec![n_embd, wide], residual),
            ("post_attention_layernorm", vec![n_embd], Initial::Ones),
            ("mlp.gate_proj", vec![n_ff, n_embd], normal),
            ("mlp.up_proj", vec![n_ff, n_embd], normal),
            ("mlp.down_proj", vec![n_embd, n_ff], residual),
        ];
        let named = |(name, shape, initial): (&str, Vec<usize>, Initial)| {
            (format!("model.layers.{layer}.{name}.weight"), shape, initial)
        };
        all.extend(of_layer.map(named));
    }
    all.push(("model.norm.weight".into(), vec![n_embd], Initial::Ones));
    all
}
