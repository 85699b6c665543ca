//! Shapes of language models.

use tallow_ir::{DType, TensorType};
use tallow_models::config::{Config, Experts, Router};
use tallow_models::model_graph::{ModelGraph, ROPE_WEIGHT};
use tallow_models::rope::{RopeScaling, frequencies};
use tallow_models::weights::{WeightTypes, dtype};
use tallow_models::{Architecture, CacheTypes};
use tallow_quant::Format;

/// A decoder of the `llama` architecture, with experts of `qwen3moe`, or with joined weights of `phi3`.
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
    /// Experts in each layer, how many a token uses, and the width of each one's hidden layer.
    pub experts: Option<[usize; 3]>,
    /// Whether one weight has queries, keys and values, and another gate and up.
    pub joined: bool,
    /// Tokens that decode makes, from an empty context.
    pub decode: usize,
    /// Tokens that prefill takes at once.
    pub prefill: usize,
}

const fn shape(name: &'static str, sizes: [usize; 7]) -> Shape {
    let [layers, width, feed_forward, heads, kv_heads, head, vocabulary] = sizes;
    Shape {
        name,
        layers,
        width,
        feed_forward,
        heads,
        kv_heads,
        head,
        vocabulary,
        experts: None,
        joined: false,
        decode: 128,
        prefill: 512,
    }
}

const fn with_experts(shape: Shape, experts: [usize; 3]) -> Shape {
    Shape { experts: Some(experts), ..shape }
}

/// The shapes that can be measured.
pub const SHAPES: &[Shape] = &[
    shape("llama3-8b", [32, 4096, 14336, 32, 8, 128, 32000]),
    shape("llama3-3b", [28, 3072, 8192, 24, 8, 128, 32000]),
    shape("llama3-1b", [16, 2048, 8192, 32, 8, 64, 32000]),
    shape("tinyllama-1b", [22, 2048, 5632, 32, 4, 64, 32000]),
    with_experts(shape("qwen3-30b-a3b", [48, 2048, 6144, 32, 4, 128, 151936]), [128, 8, 768]),
    // As many active weights as qwen3-30b-a3b: 8 experts of 768 columns are a feed-forward layer of 6144.
    shape("qwen3-30b-a3b-dense", [48, 2048, 6144, 32, 4, 128, 151936]),
    Shape { joined: true, ..shape("phi4-14b", [40, 5120, 17920, 40, 10, 128, 100352]) },
    // The same in separate weights.
    shape("phi4-14b-llama", [40, 5120, 17920, 40, 10, 128, 100352]),
    TINY,
    Shape { name: "tiny-joined", joined: true, ..TINY },
    with_experts(Shape { name: "tiny-experts", ..TINY }, [8, 2, 256]),
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
            architecture: match (self.experts, self.joined) {
                (Some(_), _) => Architecture::Qwen3Moe,
                (None, true) => Architecture::Phi3,
                (None, false) => Architecture::Llama,
            },
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
            experts: self.experts.map(|[count, used, feed_forward]| Experts {
                count,
                used,
                feed_forward,
                shared_feed_forward: 0,
                shared: 0,
                leading_dense: 0,
                groups: None,
                router: Router::Softmax,
                normalizes: true,
                scale: 1.0,
            }),
            ..Config::default()
        }
    }

    /// The model of this shape whose matrices are all in `format`.
    pub fn llama(&self, format: Format) -> ModelGraph {
        let config = self.config();
        let mut types = WeightTypes::default();
        for (name, extents) in self.matrices() {
            types.insert(&name, TensorType::new(dtype(format), extents.as_slice()));
        }
        for (name, extents) in self.routers() {
            types.insert(&name, TensorType::new(DType::F32, extents));
        }
        for (name, length) in self.norms() {
            types.insert(&name, TensorType::new(DType::F32, [length]));
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

    /// Name and shape of every matrix, `[out, in]`, and of every layer's experts, `[experts, out, in]`.
    pub fn matrices(&self) -> Vec<(String, Vec<usize>)> {
        let (q, kv) = (self.heads * self.head, self.kv_heads * self.head);
        let mut all = vec![
            ("token_embd.weight".to_string(), vec![self.vocabulary, self.width]),
            ("output.weight".to_string(), vec![self.vocabulary, self.width]),
        ];
        for layer in 0..self.layers {
            let mut add = |part: &str, shape| all.push((format!("blk.{layer}.{part}.weight"), shape));
            if self.joined {
                add("attn_qkv", vec![q + 2 * kv, self.width]);
            } else {
                add("attn_q", vec![q, self.width]);
                add("attn_k", vec![kv, self.width]);
                add("attn_v", vec![kv, self.width]);
            }
            add("attn_output", vec![self.width, q]);
            match self.experts {
                Some([count, _, hidden]) => {
                    add("ffn_gate_exps", vec![count, hidden, self.width]);
                    add("ffn_up_exps", vec![count, hidden, self.width]);
                    add("ffn_down_exps", vec![count, self.width, hidden]);
                }
                None if self.joined => {
                    add("ffn_up", vec![2 * self.feed_forward, self.width]);
                    add("ffn_down", vec![self.width, self.feed_forward]);
                }
                None => {
                    add("ffn_gate", vec![self.feed_forward, self.width]);
                    add("ffn_up", vec![self.feed_forward, self.width]);
                    add("ffn_down", vec![self.width, self.feed_forward]);
                }
            }
        }
        all
    }

    /// The part of a matrix of [`Shape::matrices`] that one token uses: all of it, or a few of the experts.
    pub fn used(&self, shape: &[usize]) -> f64 {
        match (self.experts, shape.len()) {
            (Some([count, used, _]), 3) => used as f64 / count as f64,
            _ => 1.0,
        }
    }

    /// Name and shape, `[experts, width]`, of every layer's router, in f32.
    pub fn routers(&self) -> Vec<(String, [usize; 2])> {
        let Some([count, ..]) = self.experts else { return vec![] };
        (0..self.layers).map(|i| (format!("blk.{i}.ffn_gate_inp.weight"), [count, self.width])).collect()
    }

    /// Name and length of every norm's weights.
    pub fn norms(&self) -> Vec<(String, usize)> {
        let mut all = vec![];
        for i in 0..self.layers {
            all.push((format!("blk.{i}.attn_norm.weight"), self.width));
            all.push((format!("blk.{i}.ffn_norm.weight"), self.width));
            if self.experts.is_some() {
                all.push((format!("blk.{i}.attn_q_norm.weight"), self.head));
                all.push((format!("blk.{i}.attn_k_norm.weight"), self.head));
            }
        }
        all.push(("output_norm.weight".into(), self.width));
        all
    }
}
