//! The tensors that a model's hyperparameters ask for.

use tallow_gguf::GgufFile;

use crate::config::LlamaConfig;

/// Name and shape, outermost extent first, of every tensor that the graphs of a model read. Those that a model may leave
/// out are listed where the file has them.
pub(crate) fn expected<'a>(
    config: &'a LlamaConfig,
    file: &'a GgufFile,
    vocabulary: usize,
) -> impl Iterator<Item = (String, Vec<usize>)> + 'a {
    let width = config.width;
    let mut ends = vec![
        ("token_embd.weight".to_owned(), vec![vocabulary, width]),
        ("output_norm.weight".to_owned(), vec![width]),
    ];
    if file.tensor("output.weight").is_some() {
        ends.push(("output.weight".to_owned(), vec![vocabulary, width]));
    }
    ends.into_iter().chain((0..config.layers).flat_map(move |layer| of_layer(config, file, layer)))
}

/// The tensors of one layer.
fn of_layer(c: &LlamaConfig, file: &GgufFile, layer: usize) -> Vec<(String, Vec<usize>)> {
    let (q, k, v) = (c.heads * c.key_length, c.kv_heads * c.key_length, c.kv_heads * c.value_length);
    let mut tensors = Vec::new();
    for norm in ["attn_norm", "ffn_norm"] {
        tensors.push((format!("blk.{layer}.{norm}.weight"), vec![c.width]));
    }
    if c.architecture.norms_heads() {
        for norm in ["attn_q_norm", "attn_k_norm"] {
            tensors.push((format!("blk.{layer}.{norm}.weight"), vec![c.key_length]));
        }
    }
    for (part, out, width) in [
        ("attn_q", q, c.width),
        ("attn_k", k, c.width),
        ("attn_v", v, c.width),
        ("attn_output", c.width, c.heads * c.value_length),
        ("ffn_gate", c.feed_forward, c.width),
        ("ffn_up", c.feed_forward, c.width),
        ("ffn_down", c.width, c.feed_forward),
    ] {
        tensors.push((format!("blk.{layer}.{part}.weight"), vec![out, width]));
        let bias = format!("blk.{layer}.{part}.bias");
        if file.tensor(&bias).is_some() {
            tensors.push((bias, vec![out]));
        }
    }
    tensors
}
