//! The `llama` architecture and its kin (`qwen2`, `qwen3`) as a graph: token embedding, decoder layers of grouped-query attention and
//! SwiGLU, a norm and the output projection (Touvron et al., arXiv 2302.13971 and 2307.09288).
//!
//! Four graphs are made of it, which share weights and the key-value cache: *prefill* takes `seq` tokens and
//! *decode* one, for the logits after the last of them; *greedy* takes one and gives the most probable next one;
//! *score* takes `seq` tokens and gives the probability of the token that follows each. All take the position of their first token as the symbol `pos`, so that none
//! is compiled or recorded again as the text grows.

use tallow_gguf::GgufFile;
use tallow_ir::{
    Attention, DType, Dim, ElementwiseOp, Graph, GraphError, Op, ReduceKind, Symbol, TensorType, Value,
};

use crate::cache::{CacheType, CacheTypes};
use crate::config::LlamaConfig;
use crate::error::Result;
use crate::layers::{last_row, linear, log_probability, rms_norm, silu, times_transposed};
use crate::rope::{RopeFrequencies, Rotation, frequencies, rotate, rotation};
use crate::tensors;
use crate::weights::{WeightTypes, weight};

/// Input and output of the graph that [`crate::probe`] measures.
pub(crate) const PROBE: &str = "x";

/// Name of the weight that holds rope's frequencies, which is computed and not in the file.
pub const ROPE_WEIGHT: &str = "rope.frequencies";
/// Name of the graphs' input: token ids, u32.
pub const TOKENS: &str = "tokens";
/// Name of the output of prefill and decode: one logit per token of the vocabulary, after the last input token.
pub const LOGITS: &str = "logits";
/// What [`TOKENS`] is given to a step of the greedy graph that takes the token which the step before chose.
pub const CHOSEN: u32 = u32::MAX;
/// Name of the state that holds what a step of the greedy graph chose; u32 of one element.
pub const LAST: &str = "last";
/// Name of the greedy graph's first output: the token with the largest logit, the first of equals; u32.
pub const BEST: &str = "best";
/// Name of the greedy graph's other output: the logit of [`BEST`], NaN if any is.
pub const BEST_LOGIT: &str = "best_logit";
/// Name of the score graph's other input: for each input token the id of the one that follows, u32.
pub const NEXT: &str = "next";
/// Name of the score graph's output: the logarithm of the probability of each token of [`NEXT`].
pub const LOG_PROBABILITIES: &str = "log_probabilities";
/// Name of the symbol that counts the input tokens of the prefill and score graphs.
pub const SEQ: &str = "seq";
/// Name of the symbol that holds the position of the first input token.
pub const POS: &str = "pos";

/// A `llama` model: hyperparameters, the types of its weights, rope's frequencies.
#[derive(Clone, Debug)]
pub struct Llama {
    /// Hyperparameters.
    pub config: LlamaConfig,
    /// Types of the weights.
    pub types: WeightTypes,
    /// Rope's frequencies and magnitude.
    pub rope: RopeFrequencies,
    /// Number of tokens in the vocabulary.
    pub vocabulary: usize,
    /// How keys and values are kept.
    pub cache: CacheTypes,
}

/// How many tokens a graph takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    /// From 1 to this many, as symbol [`SEQ`].
    UpTo(usize),
    /// One.
    One,
}

impl Llama {
    /// Reads hyperparameters and checks that all tensors are there, of the shapes that follow from them.
    ///
    /// # Errors
    /// When something is missing, contradictory or not supported.
    pub fn from_file(file: &GgufFile) -> Result<Llama> {
        let config = LlamaConfig::from_metadata(file.metadata())?;
        let mut types = WeightTypes::of_file(file);
        let embedding = file.require("token_embd.weight")?;
        let vocabulary = embedding.shape.first().copied().unwrap_or(0);
        for (name, shape) in tensors::expected(&config, file, vocabulary) {
            types.require(file, &name, &shape)?;
        }

        let pairs = config.rope_dimensions / 2;
        let divisors = match file.tensor("rope_freqs.weight") {
            None => None,
            Some(info) => {
                types.require(file, &info.name, &[pairs])?;
                Some(crate::weights::floats(file, info)?)
            }
        };
        let rope =
            frequencies(config.rope_dimensions, config.rope_base, &config.rope_scaling, divisors.as_deref());
        types.insert(ROPE_WEIGHT, TensorType::new(DType::F32, [pairs]));
        Ok(Llama { config, types, rope, vocabulary, cache: CacheTypes::default() })
    }

    /// The key-value cache for `context` positions: name, element type and shape of each state.
    pub fn cache(&self, context: usize) -> Vec<(String, DType, Vec<usize>)> {
        let c = &self.config;
        let state = |name: String, kind: CacheType, length: usize| {
            (name, kind.dtype(), vec![context, c.kv_heads * length])
        };
        let layer = |i| {
            let keys = state(format!("k.{i}"), self.cache.keys, c.key_length);
            [keys, state(format!("v.{i}"), self.cache.values, c.value_length)]
        };
        (0..c.layers).flat_map(layer).collect()
    }

    /// All states of the graphs: the [cache](Llama::cache), and [`LAST`].
    pub fn states(&self, context: usize) -> Vec<(String, DType, Vec<usize>)> {
        let mut states = self.cache(context);
        states.push((LAST.into(), DType::U32, vec![1]));
        states
    }

    /// The graph of one step: input [`TOKENS`], output [`LOGITS`] of the last token, cache updated.
    ///
    /// # Errors
    /// When the weights do not fit each other.
    pub fn step(&self, rows: Rows, context: usize) -> Result<Graph, GraphError> {
        let (name, seq) = match rows {
            Rows::UpTo(limit) => ("prefill", up_to(limit)),
            Rows::One => ("decode", Dim::one()),
        };
        let mut graph = Graph::new(name);
        let g = &mut graph;
        let tokens = g.input(TOKENS, DType::U32, [seq.clone()])?;
        let x = self.decoder(g, tokens, seq, context)?;
        let last = last_row(g, x)?;
        let logits = self.head(g, last)?;
        let logits = g.reshape(logits, [self.vocabulary])?;
        g.output(LOGITS, logits)?;
        Ok(graph)
    }

    /// The graph of a decode step that ends in a choice: input [`TOKENS`] of one token, or [`CHOSEN`], outputs [`BEST`] and
    /// [`BEST_LOGIT`], cache and [`LAST`] updated. The logits stay on the device, and so may the choice: a step can be
    /// submitted before the one ahead of it is done.
    ///
    /// # Errors
    /// When the weights do not fit each other.
    pub fn greedy(&self, context: usize) -> Result<Graph, GraphError> {
        let mut graph = Graph::new("greedy");
        let g = &mut graph;
        let given = g.input(TOKENS, DType::U32, [1])?;
        let last = g.state(LAST, DType::U32, [1])?;
        let chosen = g.full_like(given, f64::from(CHOSEN))?;
        let chosen = g.elementwise(ElementwiseOp::Eq, &[given, chosen])?;
        let token = g.elementwise(ElementwiseOp::Select, &[chosen, last, given])?;
        let x = self.decoder(g, token, Dim::one(), context)?;
        let logits = self.head(g, x)?;
        let best = g.add(Op::Reduce { kind: ReduceKind::ArgMax, axes: vec![1] }, &[logits])?;
        let logit = g.add(Op::Reduce { kind: ReduceKind::Max, axes: vec![1] }, &[logits])?;
        let last = g.add(Op::StateUpdate { offsets: vec![Dim::zero()], rows: None }, &[last, best])?;
        g.keep(last)?;
        g.output(BEST, best)?;
        g.output(BEST_LOGIT, logit)?;
        Ok(graph)
    }

    /// The graph that scores text: from 1 to `limit` tokens as input [`TOKENS`] and those that follow each as
    /// [`NEXT`], output [`LOG_PROBABILITIES`], cache updated.
    ///
    /// The logits of all rows lie in the arena (`limit` times the vocabulary, in f32), and stay on the device.
    ///
    /// # Errors
    /// When the weights do not fit each other.
    pub fn score(&self, limit: usize, context: usize) -> Result<Graph, GraphError> {
        let mut graph = Graph::new("score");
        let g = &mut graph;
        let tokens = g.input(TOKENS, DType::U32, [up_to(limit)])?;
        let x = self.decoder(g, tokens, up_to(limit), context)?;
        let logits = self.head(g, x)?;
        let next = g.input(NEXT, DType::U32, [up_to(limit)])?;
        let scores = log_probability(g, logits, next)?;
        g.output(LOG_PROBABILITIES, scores)?;
        Ok(graph)
    }

    /// The feed-forward part of the first layer, of one row: input [`PROBE`] of `[1, width]`, output [`PROBE`]. A small
    /// graph with most of what a decode step of a layer computes.
    ///
    /// # Errors
    /// When the weights do not fit each other.
    pub(crate) fn probe(&self) -> Result<Graph, GraphError> {
        let mut graph = Graph::new("probe");
        let g = &mut graph;
        let x = g.input(PROBE, DType::F32, [1, self.config.width])?;
        let fed = self.feed_forward(g, x, 0)?;
        let y = g.elementwise(ElementwiseOp::Add, &[x, fed])?;
        g.output(PROBE, y)?;
        Ok(graph)
    }

    /// The decoder layers over `seq` tokens, `[seq]`: `[seq, width]`, the cache updated.
    fn decoder(&self, g: &mut Graph, tokens: Value, seq: Dim, context: usize) -> Result<Value, GraphError> {
        let c = &self.config;
        let pos = Dim::from(Symbol::new(POS, context.saturating_sub(1) as u32));
        let embedding = weight(g, &self.types, "token_embd.weight")?;
        let mut x = g.add(Op::Gather { axis: 0 }, &[embedding, tokens])?;

        let per_pair = weight(g, &self.types, ROPE_WEIGHT)?;
        let turn = rotation(g, per_pair, &seq, &pos, self.rope.magnitude)?;
        let step = Step { seq, pos, context, turn };
        for layer in 0..c.layers {
            let attended = self.attention(g, &step, x, layer)?;
            x = g.elementwise(ElementwiseOp::Add, &[x, attended])?;
            let fed = self.feed_forward(g, x, layer)?;
            x = g.elementwise(ElementwiseOp::Add, &[x, fed])?;
        }
        Ok(x)
    }

    /// The last norm and the output projection of `x: [rows, width]`: `[rows, vocabulary]`.
    fn head(&self, g: &mut Graph, x: Value) -> Result<Value, GraphError> {
        let normal = self.norm(g, x, "output_norm.weight")?;
        // Without an output projection of its own, a model uses its embedding (tied weights).
        let output = ["output.weight", "token_embd.weight"];
        let output = output.into_iter().find(|n| self.types.get(n).is_some()).unwrap_or(output[0]);
        times_transposed(g, &self.types, normal, output)
    }

    fn norm(&self, g: &mut Graph, x: Value, name: &str) -> Result<Value, GraphError> {
        let w = weight(g, &self.types, name)?;
        rms_norm(g, x, w, self.config.norm_epsilon)
    }

    /// The norm of each head of `x: [rows, heads, length]`, where the architecture has one.
    fn head_norm(&self, g: &mut Graph, x: Value, name: &str) -> Result<Value, GraphError> {
        if !self.config.architecture.norms_heads() {
            return Ok(x);
        }
        let shape = g.ty(x).shape.clone();
        let [rows, heads, length] = shape.dims() else { return Ok(x) };
        let flat = g.reshape(x, [rows * heads, length.clone()])?;
        let normal = self.norm(g, flat, name)?;
        g.reshape(normal, shape)
    }

    fn attention(&self, g: &mut Graph, step: &Step, x: Value, layer: usize) -> Result<Value, GraphError> {
        let c = &self.config;
        let name = |part: &str| format!("blk.{layer}.{part}");
        let x = self.norm(g, x, &name("attn_norm.weight"))?;
        let q = linear(g, &self.types, x, &name("attn_q"))?;
        let k = linear(g, &self.types, x, &name("attn_k"))?;
        let v = linear(g, &self.types, x, &name("attn_v"))?;

        let heads = |g: &mut Graph, x: Value, count: usize, length: usize| {
            g.reshape(x, [step.seq.clone(), count.into(), length.into()])
        };
        let q = heads(g, q, c.heads, c.key_length)?;
        let q = self.head_norm(g, q, &name("attn_q_norm.weight"))?;
        let q = rotate(g, q, step.turn, c.architecture.pairing())?;
        let q = g.permute(q, &[1, 0, 2])?;
        let k = heads(g, k, c.kv_heads, c.key_length)?;
        let k = self.head_norm(g, k, &name("attn_k_norm.weight"))?;
        let k = rotate(g, k, step.turn, c.architecture.pairing())?;
        let k = g.reshape(k, [step.seq.clone(), (c.kv_heads * c.key_length).into()])?;
        let k = step.through_cache(g, &format!("k.{layer}"), self.cache.keys, k, c.kv_heads)?;
        let v = step.through_cache(g, &format!("v.{layer}"), self.cache.values, v, c.kv_heads)?;

        let attention = Attention::new(1.0 / (c.key_length as f64).sqrt()).causal(true);
        let mixed = g.add(Op::Attention(attention), &[q, k, v])?;
        let rows = g.permute(mixed, &[1, 0, 2])?;
        let rows = g.reshape(rows, [step.seq.clone(), (c.heads * c.value_length).into()])?;
        linear(g, &self.types, rows, &name("attn_output"))
    }

    /// `down(silu(gate(x)) * up(x))` of the normalized `x` (SwiGLU: Shazeer, arXiv 2002.05202).
    fn feed_forward(&self, g: &mut Graph, x: Value, layer: usize) -> Result<Value, GraphError> {
        let name = |part: &str| format!("blk.{layer}.{part}");
        let x = self.norm(g, x, &name("ffn_norm.weight"))?;
        let gate = linear(g, &self.types, x, &name("ffn_gate"))?;
        let up = linear(g, &self.types, x, &name("ffn_up"))?;
        let gate = silu(g, gate)?;
        let product = g.elementwise(ElementwiseOp::Mul, &[gate, up])?;
        linear(g, &self.types, product, &name("ffn_down"))
    }
}

/// The extent of inputs that have from 1 to `limit` tokens.
fn up_to(limit: usize) -> Dim {
    Dim::from(Symbol::new(SEQ, limit as u32))
}

/// What the layers of one step share.
struct Step {
    seq: Dim,
    pos: Dim,
    context: usize,
    turn: Rotation,
}

impl Step {
    /// Writes `rows: [seq, heads * length]` into the cache at the position and returns all rows that it
    /// holds then, as `[heads, pos + seq, length]`.
    fn through_cache(
        &self,
        g: &mut Graph,
        name: &str,
        kind: CacheType,
        rows: Value,
        heads: usize,
    ) -> Result<Value, GraphError> {
        let width = g.ty(rows).shape.dims()[1].clone();
        let state = g.state(name, kind.dtype(), [self.context.into(), width.clone()])?;
        let rows = kind.store(g, rows)?;
        let offsets = vec![self.pos.clone(), Dim::zero()];
        let state = g.add(Op::StateUpdate { offsets, rows: None }, &[state, rows])?;
        let state = kind.load(g, state)?;
        let total = &self.pos + &self.seq;
        let seen = g.add(Op::Slice { axis: 0, start: Dim::zero(), len: total.clone() }, &[state])?;
        // The width was made of `heads` parts.
        let length = Dim::constant(width.max_value() / heads as i64);
        let split = g.reshape(seen, [total, heads.into(), length])?;
        g.permute(split, &[1, 0, 2])
    }
}
