//! Attention over the key-value cache.

use tallow_ir::{Attention, Dim, Op, Value};

use super::{Builder, Result};
use crate::cache::CacheType;
use crate::rope::{Pairing, rotate};

/// Queries, keys and values of a layer, each `[rows, heads, length]`.
#[derive(Clone, Copy, Debug)]
pub struct Heads {
    /// Queries.
    pub q: Value,
    /// Keys.
    pub k: Value,
    /// Values.
    pub v: Value,
}

impl Builder<'_> {
    /// The heads of `x: [rows, width]` by the weights `attn_q`, `attn_k` and `attn_v`, with biases where the file has them.
    ///
    /// # Errors
    /// When a weight is missing or of another shape.
    pub fn heads(&mut self, x: Value) -> Result<Heads> {
        let c = self.config;
        let q = self.linear(x, "attn_q", c.heads * c.key_length)?;
        let k = self.linear(x, "attn_k", c.kv_heads * c.key_length)?;
        let v = self.linear(x, "attn_v", c.kv_heads * c.value_length)?;
        self.split_heads([q, k, v])
    }

    /// The heads of `x: [rows, width]` by the weight `attn_qkv`: rows of queries, then of keys, then of values.
    ///
    /// # Errors
    /// As [`Builder::heads`].
    pub fn heads_in_one(&mut self, x: Value) -> Result<Heads> {
        let c = self.config;
        let [q, k, v] = [c.heads * c.key_length, c.kv_heads * c.key_length, c.kv_heads * c.value_length];
        let all = self.linear(x, "attn_qkv", q + k + v)?;
        let parts =
            [(0, q), (q, k), (q + k, v)].map(|(start, count)| self.part_of_columns(all, start, count));
        let [q, k, v] = parts;
        self.split_heads([q?, k?, v?])
    }

    /// Queries, keys and values as `[rows, heads, length]`.
    pub(crate) fn split_heads(&mut self, [q, k, v]: [Value; 3]) -> Result<Heads> {
        let c = self.config;
        let q = self.split(q, c.heads, c.key_length)?;
        let k = self.split(k, c.kv_heads, c.key_length)?;
        let v = self.split(v, c.kv_heads, c.value_length)?;
        Ok(Heads { q, k, v })
    }

    /// `x: [rows, heads * length]` as `[rows, heads, length]`.
    pub(crate) fn split(&mut self, x: Value, heads: usize, length: usize) -> Result<Value> {
        self.g.reshape(x, [self.seq.clone(), heads.into(), length.into()])
    }

    /// Queries and keys rotated by their positions, with the frequencies of this layer.
    ///
    /// # Errors
    /// When the model has no rotation.
    pub fn rotated(&mut self, heads: Heads, pairing: Pairing) -> Result<Heads> {
        let local = self.rotations[1].filter(|_| self.window().is_some());
        let Some(rotation) = local.or(self.rotations[0]) else { return Ok(heads) };
        let q = rotate(&mut self.g, heads.q, rotation, pairing)?;
        let k = rotate(&mut self.g, heads.k, rotation, pairing)?;
        Ok(Heads { q, k, ..heads })
    }

    /// As [`Builder::rotated`], of tensors whose whole heads are rotated.
    ///
    /// # Errors
    /// When they are longer than what rope rotates.
    pub fn rotated_pair(&mut self, parts: [Value; 2], pairing: Pairing) -> Result<[Value; 2]> {
        let [q, k] = parts;
        let heads = self.rotated(Heads { q, k, v: k }, pairing)?;
        Ok([heads.q, heads.k])
    }

    /// The window of this layer.
    pub fn window(&self) -> Option<u32> {
        self.config.window.and_then(|window| window.of_layer(self.layer()))
    }

    /// Causal attention as the hyperparameters have it: scale, window of this layer, bound on scores.
    pub fn causal(&self) -> Attention {
        let c = self.config;
        let scale = c.attention_scale.map_or_else(|| 1.0 / (c.key_length as f64).sqrt(), f64::from);
        Attention::new(scale).causal(true).window(self.window()).softcap(c.softcaps.attention.map(f64::from))
    }

    /// Attention of every query to every key.
    pub fn bidirectional(&self) -> Attention {
        self.causal().causal(false)
    }

    /// Attention of the queries to all keys of the text: keys and values go through the cache. Returns
    /// `[rows, heads * value length]`.
    ///
    /// # Errors
    /// When the heads do not fit each other.
    pub fn attend(&mut self, heads: Heads, attention: Attention) -> Result<Value> {
        self.attend_to(heads, attention.sinks(false), None)
    }

    /// As [`Builder::attend`], with one more score of each head that has no value: `name: [heads]` (attention sinks: Xiao et
    /// al., arXiv 2309.17453).
    ///
    /// # Errors
    /// When the heads do not fit each other, or the weight is missing or of another shape.
    pub fn attend_with_sinks(&mut self, heads: Heads, attention: Attention, name: &str) -> Result<Value> {
        let sinks = self.weight(name, &[self.config.heads])?;
        self.attend_to(heads, attention.sinks(true), Some(sinks))
    }

    fn attend_to(&mut self, heads: Heads, attention: Attention, sinks: Option<Value>) -> Result<Value> {
        let c = self.config;
        let k = self.through_cache("k", self.cache.keys, heads.k)?;
        let v = self.through_cache("v", self.cache.values, heads.v)?;
        let rows = self.mixed([heads.q, k, v], attention, sinks)?;
        self.g.reshape(rows, [self.seq.clone(), (c.heads * c.value_length).into()])
    }

    /// Attention of `q: [rows, heads, length]` to the keys and values `[heads, keys, length]` of its text: `[rows, heads, value
    /// length]`.
    pub(super) fn mixed(
        &mut self,
        [q, k, v]: [Value; 3],
        attention: Attention,
        sinks: Option<Value>,
    ) -> Result<Value> {
        let q = self.g.permute(q, &[1, 0, 2])?;
        let bias = self.bias_of_texts()?;
        let operands: Vec<Value> = [q, k, v].into_iter().chain(bias).chain(sinks).collect();
        let mixed = self.g.add(Op::Attention(attention), &operands)?;
        self.g.permute(mixed, &[1, 0, 2])
    }

    /// `x: [rows, heads, length]` as `[rows, heads * length]`.
    ///
    /// # Errors
    /// When it has other axes.
    pub fn flat_heads(&mut self, x: Value) -> Result<Value> {
        let width = {
            let dims = self.g.ty(x).shape.dims();
            &dims[1] * &dims[2]
        };
        self.g.reshape(x, [self.seq.clone(), width])
    }

    /// [`Builder::attend`] as [`Builder::causal`] says, and its output projection: `[rows, width]`.
    ///
    /// # Errors
    /// When the heads do not fit each other, or the weight is missing.
    pub fn causal_attention(&mut self, heads: Heads) -> Result<Value> {
        let rows = self.attend(heads, self.causal())?;
        self.attention_output(rows)
    }

    /// The output projection `attn_output` of what [`Builder::attend`] gives: `[rows, width]`.
    ///
    /// # Errors
    /// When the weight is missing or of another shape.
    pub fn attention_output(&mut self, rows: Value) -> Result<Value> {
        self.linear(rows, "attn_output", self.config.width)
    }

    /// Writes `x: [rows, heads, length]` into the cache at the position and returns all rows that it holds then, as
    /// `[heads, pos + rows, length]`; without a cache only those of `x`.
    pub(super) fn through_cache(&mut self, name: &str, kind: CacheType, x: Value) -> Result<Value> {
        if !self.has_cache {
            return self.g.permute(x, &[1, 0, 2]);
        }
        let (heads, length) = {
            let dims = self.g.ty(x).shape.dims();
            (dims[1].clone(), dims[2].clone())
        };
        let state = self.cache_rows(name, kind, &heads * &length)?;
        let state = self.write(kind, state, x, Dim::zero())?;
        self.seen(kind, state, [heads, length])
    }

    /// The cache of this layer, a state of one row of `width` elements for each position.
    pub(super) fn cache_rows(&mut self, name: &str, kind: CacheType, width: Dim) -> Result<Value> {
        let name = format!("{name}.{}", self.layer());
        self.g.state(&name, kind.dtype(), [self.context.into(), width])
    }

    /// Writes `x: [rows, heads, length]` into the rows of a cache from the position on, from column `start` on.
    pub(super) fn write(&mut self, kind: CacheType, state: Value, x: Value, start: Dim) -> Result<Value> {
        let rows = self.flat_heads(x)?;
        let rows = kind.store(&mut self.g, rows)?;
        let offsets = vec![self.pos.clone(), start];
        self.g.add(Op::StateUpdate { offsets, rows: None }, &[state, rows])
    }

    /// The rows of a cache up to those of this run, as `[heads, pos + rows, length]`.
    pub(super) fn seen(&mut self, kind: CacheType, state: Value, [heads, length]: [Dim; 2]) -> Result<Value> {
        let state = kind.load(&mut self.g, state)?;
        let total = &self.pos + &self.seq;
        let seen = self.g.add(Op::Slice { axis: 0, start: Dim::zero(), len: total.clone() }, &[state])?;
        let split = self.g.reshape(seen, [total, heads, length])?;
        self.g.permute(split, &[1, 0, 2])
    }
}
