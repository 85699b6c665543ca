//! The decoder as an expression over weights, which are variables, or frozen with trained adapters.
//!
//! Weights have the names and shapes of Hugging Face's `LlamaForCausalLM`: matrices are `[outputs, inputs]`. Where all of
//! them are trained, rope rotates the halves of a head and the output matrix is the embedding. Frozen ones stay as they
//! are in their file, so that rope pairs what it does there.

use std::collections::HashMap;

use indexmap::IndexMap;
use tallow::nn::loss::cross_entropy;
use tallow::nn::ops::{dropout, log_softmax, rms_norm, sdpa};
use tallow::{D, DType, Device, Tensor, Var};

use super::config::NetConfig;
use super::frozen::{Adapter, Frozen};
use super::heads::Heads;

/// Standard deviation of initial matrices.
const DEVIATION: f64 = 0.02;

/// How a weight begins.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Initial {
    /// Normal, of this standard deviation.
    Normal(f64),
    Ones,
}

/// A weight.
#[derive(Debug)]
pub(super) enum Weight {
    /// One that training changes.
    Trained(Var),
    /// One that it does not, and what it trains in its place.
    Frozen(Frozen, Option<Adapter>),
}

/// A decoder whose weights are variables, or frozen with adapters that are variables.
#[derive(Debug)]
pub struct Net {
    config: NetConfig,
    device: Device,
    heads: Heads,
    weights: IndexMap<String, Weight>,
    /// The type in which products and attention are computed.
    compute: DType,
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
        let mut all = IndexMap::new();
        for (name, shape, initial) in weights(config) {
            // Drawn on the host: normal numbers differ in the last bits between devices.
            let values = match initial {
                Initial::Normal(deviation) => Tensor::randn(0f32, deviation as f32, shape, &Device::Cpu)?,
                Initial::Ones => Tensor::ones(shape, DType::F32, &Device::Cpu)?,
            };
            all.insert(name, Weight::Trained(Var::from_tensor(&values.to_device(device)?)?));
        }
        Ok(Net::of_weights(config, Heads::of(config), all, device))
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
        let mut all = IndexMap::new();
        for (name, shape, _) in weights(config) {
            let invalid = |why| tallow::Error::InvalidArgument { op: "load", why };
            let found = tensors.get(&name).ok_or_else(|| invalid(format!("{name} is missing")))?;
            if found.dims() != shape {
                return Err(invalid(format!("{name} has shape {:?}, not {shape:?}", found.dims())));
            }
            let values = found.to_dtype(DType::F32)?.to_device(device)?;
            all.insert(name, Weight::Trained(Var::from_tensor(&values)?));
        }
        Ok(Net::of_weights(config, Heads::of(config), all, device))
    }

    pub(super) fn of_weights(
        config: &NetConfig,
        heads: Heads,
        weights: IndexMap<String, Weight>,
        device: &Device,
    ) -> Net {
        Net { config: config.clone(), device: device.clone(), heads, weights, compute: DType::F32 }
    }

    /// The same with products and attention in another float type. Weights, norms, the residual stream and the loss stay
    /// in f32.
    pub fn computing_in(self, compute: DType) -> Net {
        Net { compute, ..self }
    }

    /// The sizes.
    pub fn config(&self) -> &NetConfig {
        &self.config
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Names and weights that are trained themselves, in the order of the architecture.
    pub fn vars(&self) -> impl Iterator<Item = (&str, &Var)> {
        self.weights.iter().filter_map(|(name, weight)| match weight {
            Weight::Trained(var) => Some((name.as_str(), var)),
            Weight::Frozen(..) => None,
        })
    }

    /// The adapters of frozen weights, in the order of the architecture.
    pub fn adapters(&self) -> impl Iterator<Item = &Adapter> {
        self.weights.values().filter_map(|weight| match weight {
            Weight::Trained(_) => None,
            Weight::Frozen(_, adapter) => adapter.as_ref(),
        })
    }

    /// All that is trained, by name: weights, or `A` and `B` of adapters as their file names them.
    pub(super) fn trained(&self) -> Vec<(String, Var)> {
        let weights = self.vars().map(|(name, var)| (name.to_owned(), var.clone()));
        let of_adapters = self.adapters().flat_map(|adapter| {
            let [a, b] = adapter.vars();
            [("lora_a", a), ("lora_b", b)]
                .map(|(end, var)| (format!("{}.{end}", adapter.weight()), var.clone()))
        });
        weights.chain(of_adapters).collect()
    }

    /// Number of parameters that are trained.
    pub fn parameters(&self) -> usize {
        self.trained().iter().map(|(_, var)| var.elem_count()).sum()
    }

    /// Logits `[batch * time, vocab_size]` of the tokens after each of `tokens` (u32, `[batch, time]`). `dropout` is the
    /// probability with which activations are dropped, 0 outside of training.
    ///
    /// # Errors
    /// When `tokens` is no matrix of integers, or an extent does not fit.
    pub fn logits(&self, tokens: &Tensor, dropout: f64) -> tallow::Result<Tensor> {
        let (batch, time) = tokens.dims2()?;
        let embedding = self.values("model.embed_tokens.weight")?;
        let angles = self.heads.angles(time, &self.device)?;
        let mut x = embedding.embedding(&tokens.flatten_all()?)?;
        x = dropped(&x, dropout)?;
        for layer in 0..self.config.n_layer {
            let at = format!("model.layers.{layer}.");
            let normed = self.norm(&x, &format!("{at}input_layernorm"))?;
            let attended = self.attention(&normed, &format!("{at}self_attn."), [batch, time], &angles)?;
            x = x.add(&dropped(&attended, dropout)?.to_dtype(DType::F32)?)?;
            let normed = self.norm(&x, &format!("{at}post_attention_layernorm"))?;
            let gate = self.linear(&normed, &format!("{at}mlp.gate_proj"))?.silu()?;
            let up = self.linear(&normed, &format!("{at}mlp.up_proj"))?;
            let down = self.linear(&gate.mul(&up)?, &format!("{at}mlp.down_proj"))?;
            x = x.add(&dropped(&down, dropout)?.to_dtype(DType::F32)?)?;
        }
        let last = self.norm(&x, "model.norm")?;
        // Without an output matrix of its own, a model uses its embedding.
        let logits = match self.weights.contains_key("lm_head.weight") {
            true => self.linear(&last, "lm_head")?,
            false => self.product(&last, &embedding)?,
        };
        logits.to_dtype(DType::F32)
    }

    /// Mean cross entropy (nats) of `targets` (u32, `[batch, time]`), the tokens after `tokens`; rank 0.
    ///
    /// # Errors
    /// As [`Net::logits`], or when `targets` is of another shape.
    pub fn loss(&self, tokens: &Tensor, targets: &Tensor, dropout: f64) -> tallow::Result<Tensor> {
        cross_entropy(&self.logits(tokens, dropout)?, &targets.flatten_all()?)
    }

    /// As [`Net::loss`] without dropout, but each token counts as much as `weights` (f32, `[batch, time]`) say: the sum of
    /// the weighted cross entropies, divided by the sum of the weights.
    ///
    /// # Errors
    /// As [`Net::logits`], or when `targets` or `weights` are of another shape.
    pub fn weighted_loss(
        &self,
        tokens: &Tensor,
        targets: &Tensor,
        weights: &Tensor,
    ) -> tallow::Result<Tensor> {
        let log_probabilities = log_softmax(&self.logits(tokens, 0.0)?, D::Minus1)?;
        let vocabulary = self.config.vocab_size as u32;
        // The element that the target names, as a sum in which all others are left out: its gradient is a choice, where
        // that of a lookup would be an addition into a matrix of zeros.
        let classes = Tensor::arange(0u32, vocabulary, &self.device)?.unsqueeze(0)?;
        let is_target = classes.broadcast_eq(&targets.flatten_all()?.unsqueeze(1)?)?;
        let zeros = log_probabilities.zeros_like()?;
        let picked = is_target.where_cond(&log_probabilities, &zeros)?.sum(1)?;
        let weights = weights.flatten_all()?;
        picked.mul(&weights)?.sum_all()?.neg()?.div(&weights.sum_all()?)
    }

    /// Of `x` `[batch * time, n_embd]`.
    fn attention(
        &self,
        x: &Tensor,
        at: &str,
        [batch, time]: [usize; 2],
        [cos, sin]: &[Tensor; 2],
    ) -> tallow::Result<Tensor> {
        let NetConfig { n_head, n_head_kv, .. } = self.config;
        let Heads { key_length, value_length, .. } = self.heads;
        let heads = |name: &str, heads: usize, length: usize| {
            self.linear(x, &format!("{at}{name}_proj"))?.reshape((batch, time, heads, length))
        };
        let rotated = |name: &str, count: usize| {
            let x = self.head_norm(heads(name, count, key_length)?, &format!("{at}{name}_norm"))?;
            self.heads.rotate(&x, cos, sin)?.contiguous()
        };
        let (q, k) = (rotated("q", n_head)?, rotated("k", n_head_kv)?);
        let v = heads("v", n_head_kv, value_length)?.transpose(1, 2)?.contiguous()?;
        let attended = sdpa(&q, &k, &v, None, true, 1.0 / (key_length as f32).sqrt(), 1.0)?;
        let merged = attended.transpose(1, 2)?.reshape((batch * time, n_head * value_length))?;
        self.linear(&merged, &format!("{at}o_proj"))
    }

    fn norm(&self, x: &Tensor, name: &str) -> tallow::Result<Tensor> {
        rms_norm(x, &self.values(&format!("{name}.weight"))?, self.config.rms_eps)
    }

    /// The norm of each head of `x` `[batch, time, heads, length]`, where the model has one.
    fn head_norm(&self, x: Tensor, name: &str) -> tallow::Result<Tensor> {
        if self.weights.contains_key(&format!("{name}.weight")) { self.norm(&x, name) } else { Ok(x) }
    }

    /// `x w^T` in the type of the computation.
    fn product(&self, x: &Tensor, w: &Tensor) -> tallow::Result<Tensor> {
        x.to_dtype(self.compute)?.matmul(&w.to_dtype(self.compute)?.t()?)
    }

    /// `x w^T`, the adapter's products and the bias, where there are such.
    fn linear(&self, x: &Tensor, name: &str) -> tallow::Result<Tensor> {
        let weight = format!("{name}.weight");
        let mut y = self.product(x, &self.values(&weight)?)?;
        if let Some(Weight::Frozen(_, Some(adapter))) = self.weights.get(&weight) {
            y = y.add(&adapter.apply(x)?.to_dtype(self.compute)?)?;
        }
        let bias = format!("{name}.bias");
        if self.weights.contains_key(&bias) {
            y.broadcast_add(&self.values(&bias)?.to_dtype(self.compute)?)
        } else {
            Ok(y)
        }
    }

    /// The values of a weight, f32.
    fn values(&self, name: &str) -> tallow::Result<Tensor> {
        match self.weights.get(name) {
            Some(Weight::Trained(var)) => Ok(var.as_tensor().clone()),
            Some(Weight::Frozen(frozen, _)) => frozen.values(),
            None => Err(tallow::Error::CannotFindTensor { path: name.into() }),
        }
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
