//! Models with the layers of a fixture and the sizes of a published model.

use serde::Deserialize;
use tallow_ir::{DType, TensorType};
use tallow_models::Architecture;
use tallow_models::config::Config;
use tallow_models::model_graph::{LOCAL_ROPE_WEIGHT, ModelGraph, ROPE_WEIGHT};

use crate::architectures::Fixture;

/// Sizes of a published model.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Published {
    pub fixture: String,
    /// Its name.
    pub model: String,
    /// Width of the residual stream.
    width: usize,
    /// Width of the feed-forward layer.
    feed_forward: usize,
    /// Query heads.
    heads: usize,
    /// Key and value heads.
    kv_heads: usize,
    /// Elements of a head.
    head: usize,
}

impl Published {
    /// Gives the graph of a fixture these sizes. Only types of weights change: a plan reads no values.
    pub fn apply(&self, model: &mut ModelGraph, fixture: &Fixture) {
        let before = model.config.clone();
        let config = &mut model.config;
        (config.width, config.feed_forward) = (self.width, self.feed_forward);
        (config.heads, config.kv_heads) = (self.heads, self.kv_heads);
        (config.key_length, config.value_length) = (self.head, self.head);
        config.rope_dimensions = before.rope_dimensions * self.head / before.key_length;
        for tensor in &fixture.tensors {
            let rows = tensor.shape[0];
            let shape = |config: &Config| extents(&tensor.name, rows, config);
            assert_eq!(shape(&before), tensor.shape, "{}: {}", fixture.name, tensor.name);
            let dtype = model.types.get(&tensor.name).unwrap().dtype;
            model.types.insert(&tensor.name, TensorType::new(dtype, shape(&model.config).as_slice()));
        }
        for name in [ROPE_WEIGHT, LOCAL_ROPE_WEIGHT] {
            model.types.insert(name, TensorType::new(DType::F32, [model.config.rope_dimensions / 2]));
        }
    }
}

/// The extents of a tensor of the architectures that are counted so. Embeddings have `rows` rows.
fn extents(name: &str, rows: usize, config: &Config) -> Vec<usize> {
    let Config { architecture, width, heads, kv_heads, key_length: head, feed_forward, .. } = *config;
    let part = name.strip_prefix("blk.").and_then(|name| name.split_once('.')).map_or(name, |(_, part)| part);
    let gates = if architecture == Architecture::Glm4 { 2 } else { 1 };
    let normed = |heads: usize| if architecture == Architecture::Olmo2 { heads * head } else { head };
    match part {
        "token_embd.weight" | "output.weight" => vec![rows, width],
        "attn_q.weight" => vec![heads * head, width],
        "attn_k.weight" | "attn_v.weight" => vec![kv_heads * head, width],
        "attn_q.bias" => vec![heads * head],
        "attn_k.bias" | "attn_v.bias" => vec![kv_heads * head],
        "attn_q_norm.weight" => vec![normed(heads)],
        "attn_k_norm.weight" => vec![normed(kv_heads)],
        "attn_output.weight" => vec![width, heads * head],
        "ffn_gate.weight" | "ffn_up.weight" => vec![gates * feed_forward, width],
        "ffn_down.weight" => vec![width, feed_forward],
        _ => vec![width],
    }
}
