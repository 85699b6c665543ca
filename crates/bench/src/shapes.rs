//! Shapes of language models.

use tallow_ir::{DType, TensorType};
use tallow_models::CacheTypes;
use tallow_models::config::Config;
use tallow_models::model_graph::{ModelGraph, ROPE_WEIGHT};
use tallow_models::rope::{RopeScaling, frequencies};
use tallow_models::weights::{WeightTypes, dtype};
use tallow_quant::Format;

/// A decoder of the `llama` architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Its name.
    pub name: &'static str,
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
    /// Tokens that decode makes, from an empty context.
    pub decode: usize,
    /// Tokens that prefill takes at once.
    pub prefill: usize,
}

const fn shape(name: &'static str, sizes: [usize; 7]) -> Shape {
    let [layers, width, feed_forward, heads, kv_heads, head, vocabulary] = sizes;
    Shape { name, layers, width, feed_forward, heads, kv_heads, head, vocabulary, decode: 128, prefill: 512 }
}

/// The shapes that can be measured.
pub const SHAPES: &[Shape] = &[
    shape("llama3-8b", [32, 4096, 14336, 32, 8, 128, 32000]),
    shape("llama3-3b", [28, 3072, 8192, 24, 8, 128, 32000]),
    shape("llama3-1b", [16, 2048, 8192, 32, 8, 64, 32000]),
    shape("tinyllama-1b", [22, 2048, 5632, 32, 4, 64, 32000]),
    TINY,
];

/// A shape for tests of what is around a model.
pub const TINY: Shape = Shape { decode: 6, prefill: 24, ..shape("tiny", [2, 256, 512, 4, 2, 64, 512]) };

impl Shape {
    /// The shape of this name.
    pub fn find(name: &str) -> Option<&'static Shape> {
        SHAPES.iter().find(|shape| shape.name == name)
    }

    /// Positions of the cache.
    pub fn context(&self) -> usize {
        self.decode.max(self.prefill)
    }

    /// Hyperparameters of a model of this shape.
    pub fn config(&self) -> Config {
        Config {
            architecture: tallow_models::Architecture::Llama,
            layers: self.layers,
            width: self.width,
            heads: self.heads,
            kv_heads: self.kv_heads,
            key_length: self.head,
            value_length: self.head,
            feed_forward: self.feed_forward,
            context: self.context(),
            norm_epsilon: 1e-5,
            rope_dimensions: self.head,
            rope_base: 500_000.0,
            rope_scaling: RopeScaling::None,
            ..Config::default()
        }
    }

    /// The model of this shape whose matrices are all in `format`.
    pub fn llama(&self, format: Format) -> ModelGraph {
        let config = self.config();
        let mut types = WeightTypes::default();
        for (name, extents) in self.matrices() {
            types.insert(&name, TensorType::new(dtype(format), extents));
        }
        for name in self.norms() {
            types.insert(&name, TensorType::new(DType::F32, [self.width]));
        }
        let rope = frequencies(config.rope_dimensions, config.rope_base, &config.rope_scaling, None);
        types.insert(ROPE_WEIGHT, TensorType::new(DType::F32, [rope.per_pair.len()]));
        ModelGraph {
            config,
            types,
            rope,
            local_rope: None,
            long_rope: None,
            vocabulary: self.vocabulary,
            cache: CacheTypes::default(),
        }
    }

    /// Name and shape of every matrix, `[out, in]`.
    pub fn matrices(&self) -> Vec<(String, [usize; 2])> {
        let (q, kv) = (self.heads * self.head, self.kv_heads * self.head);
        let mut all = vec![
            ("token_embd.weight".to_string(), [self.vocabulary, self.width]),
            ("output.weight".to_string(), [self.vocabulary, self.width]),
        ];
        for layer in 0..self.layers {
            for (part, shape) in [
                ("attn_q", [q, self.width]),
                ("attn_k", [kv, self.width]),
                ("attn_v", [kv, self.width]),
                ("attn_output", [self.width, q]),
                ("ffn_gate", [self.feed_forward, self.width]),
                ("ffn_up", [self.feed_forward, self.width]),
                ("ffn_down", [self.width, self.feed_forward]),
            ] {
                all.push((format!("blk.{layer}.{part}.weight"), shape));
            }
        }
        all
    }

    /// Name of every norm's weights, which are of the model's width.
    pub fn norms(&self) -> Vec<String> {
        let layer = |i| [format!("blk.{i}.attn_norm.weight"), format!("blk.{i}.ffn_norm.weight")];
        let mut all: Vec<String> = (0..self.layers).flat_map(layer).collect();
        all.push("output_norm.weight".into());
        all
    }
}
