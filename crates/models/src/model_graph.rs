//! The graphs of a language model: its hyperparameters and the types of its weights, and what is computed of them.
//!
//! Five graphs are made of a model, which share weights and the key-value cache: *prefill* takes `seq` tokens and
//! *decode* one, for the logits after the last of them; *greedy* takes one and gives the most probable next one;
//! *score* takes `seq` tokens and gives the probability of the token that follows each. All take the position of their
//! first token as the symbol `pos`, so that none is compiled or recorded again as the text grows.
//!
//! What a layer computes is its architecture's.

use std::collections::HashSet;

use indexmap::IndexMap;
use tallow_gguf::GgufFile;
use tallow_ir::{DType, Dim, ElementwiseOp, Graph, GraphError, Op, ReduceKind, Symbol, TensorType, Value};

use crate::arch::layers;
use crate::blocks::{Builder, Source};
use crate::cache::CacheTypes;
use crate::config::{Config, LongRope, Pooling};
use crate::error::{Error, Result};
use crate::layers::{last_row, log_probability};
pub use crate::names::*;
use crate::rope::{RopeFrequencies, RopeScaling, frequencies};
use crate::weights::WeightTypes;

/// A language model: hyperparameters, the types of its weights, rope's frequencies.
#[derive(Clone, Debug)]
pub struct ModelGraph {
    /// Hyperparameters.
    pub config: Config,
    /// Types of the weights.
    pub types: WeightTypes,
    /// Rope's frequencies and magnitude.
    pub rope: RopeFrequencies,
    /// Those of layers with a window, where they differ.
    pub local_rope: Option<RopeFrequencies>,
    /// Those of a context beyond the original one, where they differ.
    pub long_rope: Option<RopeFrequencies>,
    /// Number of tokens in the vocabulary.
    pub vocabulary: usize,
    /// Types of the key-value cache.
    pub cache: CacheTypes,
}

impl ModelGraph {
    /// Reads hyperparameters and checks that all tensors are there, of the shapes that follow from them.
    ///
    /// # Errors
    /// When something is missing, contradictory or not supported.
    pub fn from_file(file: &GgufFile) -> Result<ModelGraph> {
        let config = Config::from_metadata(file.metadata())?;
        match problems_of_weights(&config, file, 1).pop() {
            Some(problem) => Err(problem),
            None => ModelGraph::with_rope(config, file),
        }
    }

    /// The model of a file whose weights were checked.
    fn with_rope(config: Config, file: &GgufFile) -> Result<ModelGraph> {
        let mut model = ModelGraph::of_types(config, WeightTypes::of_file(file), vocabulary(file));
        let (config, pairs) = (&model.config, model.config.rope_dimensions / 2);
        let read = |name: &str| match file.tensor(name) {
            None => Ok(None),
            Some(info) => {
                model.types.require(file, &info.name, &[pairs])?;
                Ok::<_, Error>(Some(crate::weights::floats(file, info)?))
            }
        };
        let of = |scaling: &RopeScaling, divisors: &[f32]| {
            frequencies(config.rope_dimensions, config.rope_base, scaling, Some(divisors))
        };
        let (mut rope, mut long_rope) = (None, None);
        if let Some(divisors) = read("rope_freqs.weight")? {
            rope = Some(of(&config.rope_scaling, &divisors));
        }
        if let Some(LongRope { magnitude, .. }) = config.long_rope {
            let of = |divisors: Vec<f32>| RopeFrequencies { magnitude, ..of(&RopeScaling::None, &divisors) };
            if let Some(short) = read("rope_factors_short.weight")? {
                rope = Some(of(short));
            }
            long_rope = read("rope_factors_long.weight")?.map(of);
        }
        model.rope = rope.unwrap_or(model.rope);
        model.long_rope = long_rope;
        Ok(model)
    }

    /// The model with the frequencies that follow from the hyperparameters alone.
    pub(crate) fn of_types(config: Config, mut types: WeightTypes, vocabulary: usize) -> ModelGraph {
        for name in [ROPE_WEIGHT, LOCAL_ROPE_WEIGHT] {
            types.insert(name, TensorType::new(DType::F32, [config.rope_dimensions / 2]));
        }
        let of = |base, scaling| frequencies(config.rope_dimensions, base, scaling, None);
        let rope = of(config.rope_base, &config.rope_scaling);
        let local_rope = config.rope_local_base.map(|base| of(base, &RopeScaling::None));
        let cache = CacheTypes::default();
        ModelGraph { config, types, rope, local_rope, long_rope: None, vocabulary, cache }
    }

    /// The model with a cache of `context` positions, whose types are `cache`.
    pub(crate) fn with_context(&self, context: usize, cache: CacheTypes) -> ModelGraph {
        let is_long = self.config.long_rope.is_some_and(|long| context > long.original_context);
        let mut model = ModelGraph { cache, ..self.clone() };
        if let (true, Some(long)) = (is_long, &self.long_rope) {
            model.rope = long.clone();
        }
        model
    }

    /// The values of the weight of this name, if it is rope's frequencies: these are computed, and in no file.
    pub fn computed(&self, name: &str) -> Option<&[f32]> {
        match name {
            ROPE_WEIGHT => Some(&self.rope.per_pair),
            LOCAL_ROPE_WEIGHT => Some(&self.local_rope.as_ref()?.per_pair),
            _ => None,
        }
    }

    /// The key-value cache for `context` positions: name and type of each state.
    ///
    /// # Errors
    /// When the weights do not fit each other.
    pub fn cache(&self, context: usize) -> Result<Vec<(String, TensorType)>, GraphError> {
        let mut states = self.states(context)?;
        states.retain(|(name, _)| name != LAST);
        Ok(states)
    }

    /// All states of the graphs: the [cache](ModelGraph::cache), and [`LAST`].
    ///
    /// # Errors
    /// When the weights do not fit each other.
    pub fn states(&self, context: usize) -> Result<Vec<(String, TensorType)>, GraphError> {
        let graph = self.greedy(context)?;
        let state = |op: &Op| match op {
            Op::State { name, ty } => Some((name.clone(), ty.clone())),
            _ => None,
        };
        Ok(graph.nodes().filter_map(|(_, node)| state(&node.op)).collect())
    }

    /// The graph of one step: input [`TOKENS`], output [`LOGITS`] of the last token, cache updated.
    ///
    /// # Errors
    /// When the weights do not fit each other.
    pub fn step(&self, rows: Rows, context: usize) -> Result<Graph, GraphError> {
        let name = match rows {
            Rows::UpTo(_) => "prefill",
            Rows::One => "decode",
        };
        let (mut b, x) = self.through_layers(name, rows, context, input)?;
        let last = last_row(&mut b.g, x)?;
        let logits = layers(self.config.architecture).head(&mut b, last)?;
        let logits = b.g.reshape(logits, [self.vocabulary])?;
        b.g.output(LOGITS, logits)?;
        Ok(b.g)
    }

    /// The graph of a decode step that ends in a choice: input [`TOKENS`] of one token, or [`CHOSEN`], outputs [`BEST`] and
    /// [`BEST_LOGIT`], cache and [`LAST`] updated. The logits stay on the device, and so may the choice: a step can be
    /// submitted before the one ahead of it is done.
    ///
    /// # Errors
    /// When the weights do not fit each other.
    pub fn greedy(&self, context: usize) -> Result<Graph, GraphError> {
        let mut state = None;
        let token = |b: &mut Builder<'_>| {
            let given = input(b)?;
            let last = b.g.state(LAST, DType::U32, [1])?;
            state = Some(last);
            let chosen = b.g.full_like(given, f64::from(CHOSEN))?;
            let chosen = b.g.elementwise(ElementwiseOp::Eq, &[given, chosen])?;
            b.g.elementwise(ElementwiseOp::Select, &[chosen, last, given])
        };
        let (mut b, x) = self.through_layers("greedy", Rows::One, context, token)?;
        let logits = layers(self.config.architecture).head(&mut b, x)?;
        let g = &mut b.g;
        let best = g.add(Op::Reduce { kind: ReduceKind::ArgMax, axes: vec![1] }, &[logits])?;
        let logit = g.add(Op::Reduce { kind: ReduceKind::Max, axes: vec![1] }, &[logits])?;
        if let Some(last) = state {
            let last = g.add(Op::StateUpdate { offsets: vec![Dim::zero()], rows: None }, &[last, best])?;
            g.keep(last)?;
        }
        g.output(BEST, best)?;
        g.output(BEST_LOGIT, logit)?;
        Ok(b.g)
    }

    /// The graph that scores text: from 1 to `limit` tokens as input [`TOKENS`] and those that follow each as
    /// [`NEXT`], output [`LOG_PROBABILITIES`], cache updated.
    ///
    /// The logits of all rows lie in the arena (`limit` times the vocabulary, in f32), and stay on the device.
    ///
    /// # Errors
    /// When the weights do not fit each other.
    pub fn score(&self, limit: usize, context: usize) -> Result<Graph, GraphError> {
        let (mut b, x) = self.through_layers("score", Rows::UpTo(limit), context, input)?;
        let logits = layers(self.config.architecture).head(&mut b, x)?;
        let next = b.g.input(NEXT, DType::U32, [up_to(limit)])?;
        let scores = log_probability(&mut b.g, logits, next)?;
        b.g.output(LOG_PROBABILITIES, scores)?;
        Ok(b.g)
    }

    /// The graph that embeds a text: its 1 to `limit` tokens as input [`TOKENS`], output [`EMBEDDING`] of `[width]`, or of
    /// `[tokens, width]` without pooling. Rows are those that logits are computed of; an encoder's are the last layer's.
    ///
    /// # Errors
    /// When the weights do not fit each other.
    pub fn embed(&self, pooling: Pooling, normalize: bool, limit: usize) -> Result<Graph, GraphError> {
        let b = Builder::new("embed", self.source(), Rows::UpTo(limit), limit).without_cache();
        let (mut b, mut found) = self.embedded(b, pooling, normalize)?;
        if pooling != Pooling::None {
            found = b.g.reshape(found, [self.config.width])?;
        }
        b.g.output(EMBEDDING, found)?;
        Ok(b.g)
    }

    /// The graph that embeds several texts, whose tokens follow each other in [`TOKENS`]: 1 to `limit` of them in all. Other
    /// inputs are [`TEXT_OF_ROW`], [`FIRST_ROWS`] and perhaps [`LAST_ROWS`]; the output [`EMBEDDING`] is `[texts, width]`, or
    /// `[tokens, width]` without pooling.
    ///
    /// # Errors
    /// When the weights do not fit each other.
    pub fn embed_texts(&self, pooling: Pooling, normalize: bool, limit: usize) -> Result<Graph, GraphError> {
        let b = Builder::new("embed_texts", self.source(), Rows::UpTo(limit), limit).without_cache();
        let (mut b, found) = self.embedded(b.with_texts(limit)?, pooling, normalize)?;
        b.g.output(EMBEDDING, found)?;
        Ok(b.g)
    }

    /// The embeddings that pooling makes of the rows of a graph without a cache.
    fn embedded<'a>(
        &self,
        mut b: Builder<'a>,
        pooling: Pooling,
        normalize: bool,
    ) -> Result<(Builder<'a>, Value), GraphError> {
        let mut x = self.fill(&mut b, input)?;
        // A norm over one row is less than one over all, where the others are not needed.
        if pooling == Pooling::Last {
            x = b.pooled(x, pooling)?;
        }
        let head = layers(self.config.architecture).head(&mut b, x)?;
        let rows = b.normalized().unwrap_or(head);
        let pooled = if pooling == Pooling::Last { rows } else { b.pooled(rows, pooling)? };
        let found = if normalize { b.unit_rows(pooled)? } else { pooled };
        Ok((b, found))
    }

    /// The feed-forward part of the first layer, of one row: input [`PROBE`] of `[1, width]`, output [`PROBE`]. A small
    /// graph with most of what a decode step of a layer computes.
    ///
    /// # Errors
    /// When the weights do not fit each other.
    pub(crate) fn probe(&self) -> Result<Graph, GraphError> {
        let mut b = Builder::new("probe", self.source(), Rows::One, 1);
        let x = b.g.input(PROBE, DType::F32, [1, self.config.width])?;
        b.enter(Some(0));
        let y = layers(self.config.architecture).probe(&mut b, x)?;
        b.g.output(PROBE, y)?;
        Ok(b.g)
    }

    /// Name and shape of each weight that the graphs read, and why no graph can be built of them, if so: then the last one is
    /// the one that does not fit.
    pub(crate) fn required(&self) -> (IndexMap<String, Vec<usize>>, Option<GraphError>) {
        let mut b = Builder::new("decode", self.source(), Rows::One, 1);
        let built = self.fill(&mut b, input).and_then(|x| layers(self.config.architecture).head(&mut b, x));
        (b.into_required(), built.err())
    }

    fn source(&self) -> Source<'_> {
        Source { config: &self.config, types: &self.types, cache: self.cache }
    }

    /// A graph that has the decoder layers over its input [`TOKENS`], and their result `[rows, width]`.
    fn through_layers(
        &self,
        name: &str,
        rows: Rows,
        context: usize,
        tokens: impl FnOnce(&mut Builder<'_>) -> Result<Value, GraphError>,
    ) -> Result<(Builder<'_>, Value), GraphError> {
        let mut b = Builder::new(name, self.source(), rows, context);
        let x = self.fill(&mut b, tokens)?;
        Ok((b, x))
    }

    fn fill<'a>(
        &self,
        b: &mut Builder<'a>,
        tokens: impl FnOnce(&mut Builder<'a>) -> Result<Value, GraphError>,
    ) -> Result<Value, GraphError> {
        let layers = layers(self.config.architecture);
        let tokens = tokens(b)?;
        let mut x = layers.embed(b, tokens)?;
        if layers.pairing().is_some() {
            b.start_rotation(self.rope.magnitude, self.local_rope.is_some())?;
        }
        for layer in 0..self.config.layers {
            b.enter(Some(layer));
            x = layers.layer(b, x)?;
        }
        b.enter(None);
        Ok(x)
    }
}

/// The token ids of a run.
fn input(b: &mut Builder<'_>) -> Result<Value, GraphError> {
    let rows = b.rows().clone();
    b.g.input(TOKENS, DType::U32, [rows])
}

/// The extent of inputs that have from 1 to `limit` tokens.
fn up_to(limit: usize) -> Dim {
    Dim::from(Symbol::new(SEQ, limit as u32))
}

/// Rows of the embedding.
fn vocabulary(file: &GgufFile) -> usize {
    file.tensor("token_embd.weight").and_then(|info| info.shape.first()).copied().unwrap_or(0)
}

/// How many layers have a tensor.
fn layers_with_tensors(file: &GgufFile) -> usize {
    let number = |name: &str| name.strip_prefix("blk.")?.split('.').next()?.parse::<usize>().ok();
    file.tensors().filter_map(|tensor| number(&tensor.name)).collect::<HashSet<_>>().len()
}

/// What is wrong with the tensors of a file: each that is missing, of an unknown format, or of another shape than the
/// hyperparameters give, at most `most` of them.
pub(crate) fn problems_of_weights(config: &Config, file: &GgufFile, most: usize) -> Vec<Error> {
    let mut types = WeightTypes::of_file(file);
    // Of layers that have no tensor, a few are enough to say so.
    let with_tensors = layers_with_tensors(file);
    if let Err(error) = file.require("token_embd.weight") {
        return vec![error.into()];
    }
    // Each layer has tensors. The graph of a file that claims any number of them could not be built.
    if config.layers > file.tensors().len() {
        let key = format!("{}.block_count", config.architecture.name());
        let why = format!("{} layers of {} tensors in all", config.layers, file.tensors().len());
        return vec![Error::Hyperparameter { key, why }];
    }
    types.assume();
    let mut config = config.clone();
    config.layers = config.layers.min(with_tensors + 16);
    let model = ModelGraph::of_types(config, types, vocabulary(file));
    let (required, failed) = model.required();
    let wrong = |(name, shape): (String, Vec<usize>)| {
        if model.computed(&name).is_some() {
            return None;
        }
        model.types.require(file, &name, &shape).err()
    };
    let found: Vec<Error> = required.into_iter().filter_map(wrong).take(most).collect();
    match failed {
        Some(source) if found.is_empty() => vec![Error::Graph { graph: "decode", source }],
        _ => found,
    }
}
