//! What architectures are made of, as pieces of a graph: weights, norms, linear layers, attention through the cache,
//! feed-forward layers, mixtures of experts.
//!
//! A [`Builder`] writes one graph. Within a layer, names of weights are relative to it: `attn_q` of layer 3 is
//! `blk.3.attn_q.weight` of the file.

mod attention;
mod expert_products;
mod experts;
mod feed_forward;
mod latent;
mod norm;
mod pooling;
mod recurrence;
mod texts;
mod tiles;

pub use latent::LatentHeads;

use indexmap::IndexMap;
use tallow_ir::{DType, Dim, ElementwiseOp, Graph, GraphError, Op, ReduceKind, Symbol, TensorType, Value};

use crate::cache::CacheTypes;
use crate::config::Config;
use crate::layers::{scaled, sigmoid, times_transposed};
use crate::names::{LOCAL_ROPE_WEIGHT, POS, ROPE_WEIGHT, Rows, SEQ};
use crate::rope::{Rotation, rotation, rotation_at};
use crate::weights::{WeightTypes, weight};

type Result<T> = std::result::Result<T, GraphError>;

/// A graph of a model that is being written.
#[derive(Debug)]
pub struct Builder<'a> {
    /// The graph.
    pub g: Graph,
    /// Hyperparameters.
    pub config: &'a Config,
    types: &'a WeightTypes,
    cache: CacheTypes,
    /// Tokens that a run takes.
    seq: Dim,
    /// Position of the first of them.
    pos: Dim,
    context: usize,
    /// Whether keys and values go through the cache. Without it, a run has the whole text and gives no logits.
    has_cache: bool,
    /// What [`Builder::logits`] was called with.
    normalized: Option<Value>,
    /// Of layers that see all keys, and of those with a window.
    rotations: [Option<Rotation>; 2],
    layer: Option<usize>,
    /// Where a run has several.
    texts: Option<texts::Texts>,
    /// Weights that the graph requires, with the shapes that they should have.
    required: IndexMap<String, Vec<usize>>,
}

/// How a model's file is read by its graphs.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    /// Hyperparameters.
    pub config: &'a Config,
    /// Types of the weights.
    pub types: &'a WeightTypes,
    /// Types of the key-value cache.
    pub cache: CacheTypes,
}

impl<'a> Builder<'a> {
    /// An empty graph for `rows` tokens, with a cache of `context` positions.
    pub fn new(name: &str, source: Source<'a>, rows: Rows, context: usize) -> Builder<'a> {
        let Source { config, types, cache } = source;
        let seq = match rows {
            Rows::UpTo(limit) => Dim::from(Symbol::new(SEQ, limit as u32)),
            Rows::One => Dim::one(),
        };
        let pos = Dim::from(Symbol::new(POS, context.saturating_sub(1) as u32));
        let g = Graph::new(name);
        let (rotations, layer, required) = ([None; 2], None, IndexMap::new());
        Builder {
            g,
            config,
            types,
            cache,
            seq,
            pos,
            context,
            has_cache: true,
            normalized: None,
            rotations,
            layer,
            texts: None,
            required,
        }
    }

    /// The same for whole texts: positions start at 0, no cache is read or written, and instead of logits the graph has
    /// the rows that they would be computed of.
    pub(crate) fn without_cache(self) -> Self {
        Builder { pos: Dim::zero(), has_cache: false, ..self }
    }

    /// The rows that logits are computed of, once [`Builder::logits`] was called.
    pub(crate) fn normalized(&self) -> Option<Value> {
        self.normalized
    }

    /// The number of tokens that a run takes.
    pub fn rows(&self) -> &Dim {
        &self.seq
    }

    /// The number of this layer.
    pub(crate) fn layer(&self) -> usize {
        self.layer.unwrap_or_default()
    }

    /// From here on, names are those of a layer, or without one of the model.
    pub(crate) fn enter(&mut self, layer: Option<usize>) {
        self.layer = layer;
    }

    /// Name and shape of each weight that the graph reads, in the order of their first use.
    pub(crate) fn into_required(self) -> IndexMap<String, Vec<usize>> {
        self.required
    }

    /// The name in the file of what this layer calls `part`.
    fn named(&self, part: &str) -> String {
        match self.layer {
            Some(layer) => format!("blk.{layer}.{part}"),
            None => part.to_owned(),
        }
    }

    /// Whether the file has a tensor, by its whole name within the layer (`attn_q.bias`).
    pub fn has(&self, part: &str) -> bool {
        self.types.get(&self.named(part)).is_some()
    }

    /// The values of a weight in f32, by its whole name within the layer; `shape` is that which the hyperparameters give.
    ///
    /// # Errors
    /// When the model has none of the name.
    pub fn weight(&mut self, part: &str, shape: &[usize]) -> Result<Value> {
        let name = self.named(part);
        self.require(&name, shape);
        weight(&mut self.g, self.types, &name, shape)
    }

    fn require(&mut self, name: &str, shape: &[usize]) {
        if !self.required.contains_key(name) {
            self.required.insert(name.to_owned(), shape.to_vec());
        }
    }

    /// `x w^T`, plus a bias where the file has one, for `x: [rows, inputs]`: `[rows, outputs]`. The weight is
    /// `{part}.weight: [outputs, inputs]`.
    ///
    /// # Errors
    /// When the weight is missing or of another width.
    pub fn linear(&mut self, x: Value, part: &str, outputs: usize) -> Result<Value> {
        let name = self.named(&format!("{part}.weight"));
        let inputs = self.columns(x);
        let shape = [outputs, inputs];
        self.require(&name, &shape);
        let y = times_transposed(&mut self.g, self.types, x, &name, shape)?;
        self.plus_bias(y, part)
    }

    /// The product of each row of `x: [rows, n]` with the weight `part: [n]`: `[rows, 1]`.
    ///
    /// # Errors
    /// When the weight is missing or of another length.
    pub fn row_product(&mut self, x: Value, part: &str) -> Result<Value> {
        let w = self.weight(part, &[self.columns(x)])?;
        let shape = self.g.ty(x).shape.clone();
        let w = self.g.broadcast(w, shape)?;
        let product = self.mul(x, w)?;
        self.g.reduce_keepdim(ReduceKind::Sum, product, &[1])
    }

    /// `x` plus `{part}.bias` of its columns, where the file has one.
    fn plus_bias(&mut self, x: Value, part: &str) -> Result<Value> {
        let bias = format!("{part}.bias");
        if !self.has(&bias) {
            return Ok(x);
        }
        let b = self.weight(&bias, &[self.columns(x)])?;
        let shape = self.g.ty(x).shape.clone();
        let b = self.g.broadcast(b, shape)?;
        self.add(x, b)
    }

    /// The columns of `x`, which are a constant.
    fn columns(&self, x: Value) -> usize {
        self.g.ty(x).shape.dims().last().map_or(1, |dim| dim.max_value() as usize)
    }

    /// Rows of the embedding `token_embd.weight` for token ids `[rows]`: `[rows, width]`.
    ///
    /// # Errors
    /// When the model has none.
    pub fn embedding(&mut self, tokens: Value) -> Result<Value> {
        let vocabulary = self.types.get("token_embd.weight").map_or(0, |ty| extent(ty, 0));
        let table = self.weight("token_embd.weight", &[vocabulary, self.config.width])?;
        self.g.add(Op::Gather { axis: 0 }, &[table, tokens])
    }

    /// Rows of `position_embd.weight` at the positions of a run: `[rows, width]`.
    ///
    /// # Errors
    /// When the model has none.
    pub fn position_embedding(&mut self) -> Result<Value> {
        let table = self.weight("position_embd.weight", &[self.config.context, self.config.width])?;
        let positions = self.positions()?;
        self.g.add(Op::Gather { axis: 0 }, &[table, positions])
    }

    /// The positions of a run, `[rows]` of u32.
    fn positions(&mut self) -> Result<Value> {
        if let Some(positions) = self.positions_in_texts() {
            return Ok(positions);
        }
        let row = self.g.add(Op::Iota { len: self.seq.clone(), dtype: DType::U32 }, &[])?;
        let first = self.g.add(Op::DimValue { dim: self.pos.clone(), dtype: DType::U32 }, &[])?;
        let first = self.g.broadcast(first, [self.seq.clone()])?;
        self.add(row, first)
    }

    /// The logits of `x: [rows, width]`, which is normalized: its product with the output projection, or, in a model
    /// without one, with the embedding (tied weights). `[rows, vocabulary]`.
    ///
    /// # Errors
    /// When the model has neither.
    pub fn logits(&mut self, x: Value) -> Result<Value> {
        let vocabulary = self.types.get("token_embd.weight").map_or(0, |ty| extent(ty, 0));
        self.normalized = Some(x);
        if !self.has_cache {
            return Ok(x);
        }
        let own = self.has("output.weight");
        self.linear(x, if own { "output" } else { "token_embd" }, vocabulary)
    }

    /// Computes the rotations of the positions of a run, which layers share.
    pub(crate) fn start_rotation(&mut self, magnitude: f32, has_local: bool) -> Result<()> {
        let pairs = self.config.rope_dimensions / 2;
        self.rotations[0] = Some(self.rotation_by(ROPE_WEIGHT, pairs, magnitude)?);
        if has_local {
            self.rotations[1] = Some(self.rotation_by(LOCAL_ROPE_WEIGHT, pairs, 1.0)?);
        }
        Ok(())
    }

    fn rotation_by(&mut self, name: &str, pairs: usize, magnitude: f32) -> Result<Rotation> {
        self.require(name, &[pairs]);
        let per_pair = weight(&mut self.g, self.types, name, &[pairs])?;
        if let Some(positions) = self.positions_in_texts() {
            let positions = self.g.add(Op::Cast(DType::F32), &[positions])?;
            return rotation_at(&mut self.g, per_pair, positions, magnitude);
        }
        rotation(&mut self.g, per_pair, &self.seq, &self.pos, magnitude)
    }

    /// Elements `start .. start + count` of an axis.
    ///
    /// # Errors
    /// When there are fewer.
    pub fn part(&mut self, x: Value, axis: usize, start: usize, count: usize) -> Result<Value> {
        let (start, len) = (Dim::constant(start as i64), Dim::constant(count as i64));
        self.g.add(Op::Slice { axis, start, len }, &[x])
    }

    /// Tensors one after the other along an axis.
    ///
    /// # Errors
    /// When their other extents differ.
    pub fn joined(&mut self, parts: &[Value], axis: usize) -> Result<Value> {
        self.g.add(Op::Concat { axis }, parts)
    }

    /// `a + b`, of one shape.
    ///
    /// # Errors
    /// When the shapes differ.
    pub fn add(&mut self, a: Value, b: Value) -> Result<Value> {
        self.g.elementwise(ElementwiseOp::Add, &[a, b])
    }

    /// `a * b`, of one shape.
    ///
    /// # Errors
    /// When the shapes differ.
    pub fn mul(&mut self, a: Value, b: Value) -> Result<Value> {
        self.g.elementwise(ElementwiseOp::Mul, &[a, b])
    }

    /// `factor * x`.
    ///
    /// # Errors
    /// When `x` is not of numbers.
    pub fn scaled(&mut self, x: Value, factor: f32) -> Result<Value> {
        scaled(&mut self.g, x, factor.into())
    }

    /// `x + number`.
    ///
    /// # Errors
    /// When `x` is not of numbers.
    pub fn plus(&mut self, x: Value, number: f32) -> Result<Value> {
        self.with_number(ElementwiseOp::Add, x, number)
    }

    /// The smaller of each element of `x` and `bound`.
    ///
    /// # Errors
    /// When `x` is not of numbers.
    pub fn at_most(&mut self, x: Value, bound: f32) -> Result<Value> {
        self.with_number(ElementwiseOp::Minimum, x, bound)
    }

    /// The larger of each element of `x` and `bound`.
    ///
    /// # Errors
    /// When `x` is not of numbers.
    pub fn at_least(&mut self, x: Value, bound: f32) -> Result<Value> {
        self.with_number(ElementwiseOp::Maximum, x, bound)
    }

    fn with_number(&mut self, op: ElementwiseOp, x: Value, number: f32) -> Result<Value> {
        let number = self.g.full_like(x, number.into())?;
        self.g.elementwise(op, &[x, number])
    }

    /// `1 / (1 + e^-x)`.
    ///
    /// # Errors
    /// When `x` is not of floats.
    pub fn sigmoid(&mut self, x: Value) -> Result<Value> {
        sigmoid(&mut self.g, x)
    }

    /// `cap * tanh(x / cap)`, or `x` without a cap.
    ///
    /// # Errors
    /// When `x` is not of floats.
    pub fn capped(&mut self, x: Value, cap: Option<f32>) -> Result<Value> {
        let Some(cap) = cap else { return Ok(x) };
        let inside = self.scaled(x, 1.0 / cap)?;
        let tanh = self.g.elementwise(ElementwiseOp::Tanh, &[inside])?;
        self.scaled(tanh, cap)
    }
}

/// An extent of a weight, which is a constant.
fn extent(ty: &TensorType, axis: usize) -> usize {
    ty.shape.dims().get(axis).map_or(0, |dim| dim.max_value() as usize)
}
