//! Shapes of language models: an architecture, its hyperparameters, and the weights that follow from them.

mod list;
#[cfg(test)]
mod tests;

pub use list::{SHAPES, TINY};

use tallow_gguf::{Metadata, Value};
use tallow_models::config::Config;
use tallow_models::formats::{fitting, is_quantized};
use tallow_models::model_graph::ModelGraph;
use tallow_models::weights::dtype;
use tallow_models::{Architecture, CacheTypes};
use tallow_quant::Format;

use crate::error::{BenchError, Result};

/// A model without weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    /// Its name.
    pub name: &'static str,
    /// What its layers compute.
    pub architecture: Architecture,
    /// Decoder layers.
    pub layers: usize,
    /// Width of the residual stream.
    pub width: usize,
    /// Width of the feed-forward layer.
    pub feed_forward: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Elements of a head.
    pub head: usize,
    /// Tokens of the vocabulary.
    pub vocabulary: usize,
    /// Further hyperparameters, by their keys in files, without the name of the architecture.
    pub keys: &'static [(&'static str, Key)],
    /// What it has of the tensors that some models lack, by their names, those of layers without their numbers.
    pub has: &'static [&'static str],
    /// The format of its experts, where that is always the same.
    pub expert_format: Option<Format>,
    /// Tokens that decode makes, from an empty context.
    pub decode: usize,
    /// Tokens that prefill takes at once.
    pub prefill: usize,
}

/// The value of a hyperparameter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Key {
    /// An extent or a number.
    Count(u32),
    /// A factor, a base, or what a norm adds.
    Float(f32),
    /// A name.
    Text(&'static str),
}

impl Key {
    fn value(self) -> Value {
        match self {
            Key::Count(count) => Value::U32(count),
            Key::Float(x) => Value::F32(x),
            Key::Text(text) => Value::String(text.into()),
        }
    }
}

impl Shape {
    /// The shape of this name.
    pub fn find(name: &str) -> Option<&'static Shape> {
        SHAPES.iter().find(|shape| shape.name == name)
    }

    /// Positions of the cache.
    pub fn context(&self) -> usize {
        self.decode.max(self.prefill)
    }

    /// Hyperparameters of a model of this shape, read as those of a file are.
    ///
    /// # Errors
    /// When they contradict each other.
    pub fn config(&self) -> Result<Config> {
        let of_architecture = |key: &str| format!("{}.{key}", self.architecture.name());
        let mut metadata = Metadata::new();
        metadata.insert("general.architecture", Value::String(self.architecture.name().into()));
        for (key, number) in [
            ("block_count", self.layers),
            ("embedding_length", self.width),
            ("feed_forward_length", self.feed_forward),
            ("attention.head_count", self.heads),
            ("attention.head_count_kv", self.kv_heads),
            ("attention.key_length", self.head),
            ("attention.value_length", self.head),
            ("context_length", self.context()),
        ] {
            metadata.insert(of_architecture(key), Value::U32(number as u32));
        }
        metadata.insert(of_architecture("attention.layer_norm_rms_epsilon"), Value::F32(1e-5));
        metadata.insert(of_architecture("rope.freq_base"), Value::F32(500_000.0));
        for (key, value) in self.keys {
            metadata.insert(of_architecture(key), value.value());
        }
        Config::from_metadata(&metadata).map_err(|error| BenchError::Build(error.to_string()))
    }

    /// The model of this shape whose matrices are all in `format`, or where rows are no whole blocks of it, in what
    /// quantizing takes instead.
    ///
    /// # Errors
    /// When its hyperparameters contradict each other.
    pub fn model(&self, format: Format, cache: CacheTypes) -> Result<ModelGraph> {
        let dtype = |name: &str, extents: &[usize]| dtype(self.format_of(name, extents, format));
        let model = ModelGraph::from_config(self.config()?, self.vocabulary, self.has, &dtype)?;
        Ok(ModelGraph { cache, ..model })
    }

    /// The format of the weight `name` where matrices are in `format`.
    pub fn format_of(&self, name: &str, extents: &[usize], format: Format) -> Format {
        let format = match (is_quantized(name, extents.len()), self.expert_format) {
            (false, _) => return Format::F32,
            (true, Some(of_experts)) if is_of_experts(name) => of_experts,
            (true, _) => format,
        };
        fitting(format, extents.last().copied().unwrap_or_default())
    }
}

/// Whether a weight is that of all experts of a layer.
fn is_of_experts(name: &str) -> bool {
    name.contains("_exps.")
}

/// The matrices of a model that a token is multiplied by: name, shape, and the part of it that one token uses, which is
/// all of it, or of the experts a few. The embedding is among them where it serves as the output matrix.
pub fn multiplied(model: &ModelGraph) -> impl Iterator<Item = (&str, Vec<usize>, f64)> {
    let of_experts = model.config.experts.map_or(1.0, |e| e.used as f64 / e.count.max(1) as f64);
    let is_tied = model.types.get("output.weight").is_none();
    model.types.iter().filter_map(move |(name, ty)| {
        let extents: Vec<usize> = ty.shape.dims().iter().map(|dim| dim.max_value() as usize).collect();
        let is_multiplied = is_quantized(name, extents.len()) && (is_tied || name != "token_embd.weight");
        let used = if is_of_experts(name) { of_experts } else { 1.0 };
        is_multiplied.then_some((name, extents, used))
    })
}

/// Multiplications of a token by the matrices of a model's layers.
pub fn multiply_adds(model: &ModelGraph) -> u64 {
    let of_layers = multiplied(model).filter(|(name, ..)| name.starts_with("blk."));
    of_layers.map(|(_, extents, used)| extents.iter().product::<usize>() as f64 * used).sum::<f64>() as u64
}

/// Bytes of keys and values, in the types of the cache, that attention of one token reads with `depth` positions before
/// it: in layers with a window those of the window.
///
/// # Errors
/// When the graph cannot be built.
pub fn cache_read(model: &ModelGraph, depth: usize) -> Result<u64> {
    // Blocks lie in rows of a position, so that any number of positions has the same bytes each.
    let mut bytes = 0;
    for (name, ty) in model.cache(1)? {
        let layer = name.rsplit('.').next().and_then(|number| number.parse().ok()).unwrap_or(0);
        let window = model.config.window.and_then(|window| window.of_layer(layer));
        let seen = window.map_or(depth, |window| depth.min(window as usize));
        bytes += ty.max_bytes() * seen as u64;
    }
    Ok(bytes)
}
