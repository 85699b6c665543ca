//! The tensors that a model's hyperparameters ask for, and whether a file has them.

use tallow_gguf::GgufFile;

use crate::config::LlamaConfig;
use crate::error::Error;
use crate::llama::Llama;
use crate::weights::WeightTypes;

/// Everything in a file's head that keeps it from being loaded as a model, but for its tokenizer.
///
/// That is a hyperparameter that is missing or not supported; if there is none, each tensor that is missing, of another
/// shape or of an unknown format. The list ends after `most` problems, as a file can claim any number of layers.
pub fn problems(file: &GgufFile, most: usize) -> Vec<Error> {
    if let Err(error) = file.metadata().get_str("general.architecture") {
        return vec![error.into()];
    }
    let config = match LlamaConfig::from_metadata(file.metadata()) {
        Ok(config) => config,
        Err(error) => return vec![error],
    };
    let types = WeightTypes::of_file(file);
    let embedding = file.tensor("token_embd.weight");
    let vocabulary = embedding.and_then(|info| info.shape.first()).copied().unwrap_or(0);
    let expected = expected(&config, file, vocabulary);
    let found: Vec<Error> =
        expected.filter_map(|(name, shape)| types.require(file, &name, &shape).err()).take(most).collect();
    if found.is_empty() { Llama::from_file(file).err().into_iter().collect() } else { found }
}

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
