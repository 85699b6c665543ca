//! Weights to and from GGUF files of architecture `llama`, whose rope rotates neighbours instead of halves.

use std::collections::HashMap;
use std::io::Write;

use tallow::{Device, Tensor};
use tallow_gguf::{Format, GgufError, GgufFile, GgufWriter, Metadata, TensorSpec, Value};

use super::config::{ExportType, NetConfig};
use super::net::Net;
use crate::architecture::Architecture;
use crate::config::Config;
use crate::error::Result;

/// Version of the formats, `GGML_QNT_VERSION`.
const QUANTIZATION_VERSION: u32 = 2;
/// Names of a layer's weights: Hugging Face's, GGUF's.
pub(super) const OF_LAYER: [(&str, &str); 9] = [
    ("input_layernorm", "attn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("post_attention_layernorm", "ffn_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
];

/// Names of the norms of heads, which some architectures have.
pub(super) const OF_HEADS: [(&str, &str); 2] =
    [("self_attn.q_norm", "attn_q_norm"), ("self_attn.k_norm", "attn_k_norm")];

/// A weight's names, and the heads whose rows are in another order in the file.
struct Names {
    ours: String,
    file: String,
    heads: Option<usize>,
}

/// All weights, in the order of the file.
fn names(config: &NetConfig) -> Vec<Names> {
    let plain = |ours: &str, file: &str| Names { ours: ours.into(), file: file.into(), heads: None };
    let mut all = vec![plain("model.embed_tokens.weight", "token_embd.weight")];
    for layer in 0..config.n_layer {
        all.extend(OF_LAYER.map(|(ours, file)| Names {
            ours: format!("model.layers.{layer}.{ours}.weight"),
            file: format!("blk.{layer}.{file}.weight"),
            heads: match file {
                "attn_q" => Some(config.n_head),
                "attn_k" => Some(config.n_head_kv),
                _ => None,
            },
        }));
    }
    all.push(plain("model.norm.weight", "output_norm.weight"));
    all
}

/// Writes a decoder with its tokenizer's metadata. `name` is the model's.
///
/// # Errors
/// When weights cannot be read from the device, or writing fails.
pub fn to_gguf(
    net: &Net,
    tokenizer: &Metadata,
    name: &str,
    export: ExportType,
    out: &mut dyn Write,
) -> Result<()> {
    let config = net.config();
    let vars: HashMap<&str, _> = net.vars().collect();
    let all = names(config);
    let mut specs = vec![];
    for names in &all {
        let shape = vars.get(names.ours.as_str()).map(|var| var.dims().to_vec()).unwrap_or_default();
        let format = match export {
            ExportType::F16 if shape.len() > 1 => Format::F16,
            ExportType::F16 | ExportType::F32 => Format::F32,
        };
        specs.push(TensorSpec { name: names.file.clone(), shape, format });
    }
    let formats: Vec<Format> = specs.iter().map(|spec| spec.format).collect();
    let metadata = metadata(net, tokenizer, name, export);
    let mut writer = GgufWriter::create(out, &metadata, specs)?;
    for (names, format) in all.iter().zip(formats) {
        let Some(var) = vars.get(names.ours.as_str()) else { continue };
        let mut values = var.as_detached_tensor().flatten_all()?.to_vec1::<f32>()?;
        if let Some(heads) = names.heads {
            values = reordered(&values, heads, values.len() / config.n_embd, Order::ToNeighbours);
        }
        let quant = |source| GgufError::Quant { tensor: names.file.clone(), source };
        writer.tensor(&names.file, &tallow_quant::quantize(format, &values).map_err(quant)?)?;
    }
    writer.finish()?;
    Ok(())
}

fn metadata(net: &Net, tokenizer: &Metadata, name: &str, export: ExportType) -> Metadata {
    let config = net.config();
    let mut metadata = Metadata::new();
    let label = match net.parameters() {
        count if count < 1_000_000 => format!("{}K", count / 1000),
        count => format!("{}M", count / 1_000_000),
    };
    let file_type = match export {
        ExportType::F32 => 0,
        ExportType::F16 => 1,
    };
    for (key, text) in [("architecture", "llama"), ("type", "model"), ("name", name), ("size_label", &label)]
    {
        metadata.insert(format!("general.{key}"), Value::String(text.into()));
    }
    metadata.insert("general.file_type", Value::U32(file_type));
    metadata.insert("general.quantization_version", Value::U32(QUANTIZATION_VERSION));
    let length = config.n_embd / config.n_head;
    let numbers = [
        ("vocab_size", config.vocab_size),
        ("context_length", config.n_ctx),
        ("embedding_length", config.n_embd),
        ("block_count", config.n_layer),
        ("feed_forward_length", config.n_ff),
        ("attention.head_count", config.n_head),
        ("attention.head_count_kv", config.n_head_kv),
        ("attention.key_length", length),
        ("attention.value_length", length),
        ("rope.dimension_count", length),
    ];
    for (key, number) in numbers {
        metadata.insert(format!("llama.{key}"), Value::U32(number as u32));
    }
    metadata.insert("llama.rope.freq_base", Value::F32(config.rope_theta as f32));
    metadata.insert("llama.attention.layer_norm_rms_epsilon", Value::F32(config.rms_eps as f32));
    for (key, value) in tokenizer.iter() {
        metadata.insert(key, value.clone());
    }
    metadata
}

/// Sizes and weights of a file of architecture `llama`, dequantized, by Hugging Face's names, on the CPU.
///
/// # Errors
/// When the file is of another architecture, has an output matrix of its own or scaled rope, or is not whole.
pub fn from_gguf(file: &GgufFile) -> Result<(NetConfig, HashMap<String, Tensor>), String> {
    let read = Config::from_metadata(file.metadata()).map_err(|error| error.to_string())?;
    if read.architecture != Architecture::Llama {
        return Err(format!("architecture {} cannot be trained, only llama", read.architecture.name()));
    }
    if read.window.is_some() || read.experts.is_some() {
        return Err("it has a sliding window or experts, which cannot be trained".into());
    }
    if file.tensor("output.weight").is_some() {
        return Err("it has an output matrix of its own; only tied ones can be trained".into());
    }
    let rows = file.tensor("token_embd.weight").and_then(|tensor| tensor.shape.first().copied());
    let number = |key: &str| file.metadata().get_u32(key).map_err(|error| error.to_string());
    let config = NetConfig {
        vocab_size: rows.ok_or("token_embd.weight is missing")?,
        n_embd: read.width,
        n_layer: read.layers,
        n_head: read.heads,
        n_head_kv: read.kv_heads,
        n_ff: number("llama.feed_forward_length")? as usize,
        n_ctx: number("llama.context_length")? as usize,
        rope_theta: f64::from(file.metadata().get_f32("llama.rope.freq_base").unwrap_or(10000.0)),
        rms_eps: f64::from(
            file.metadata()
                .get_f32("llama.attention.layer_norm_rms_epsilon")
                .map_err(|error| error.to_string())?,
        ),
    };
    let mut tensors = HashMap::new();
    for names in names(&config) {
        let (shape, mut values) = dequantized(file, &names.file).map_err(|error| error.to_string())?;
        if let Some(heads) = names.heads {
            let rows = shape.first().copied().unwrap_or(0);
            if !rows.is_multiple_of(2 * heads) {
                return Err(format!("{} has {rows} rows for {heads} heads", names.file));
            }
            values = reordered(&values, heads, rows, Order::ToHalves);
        }
        let tensor = Tensor::from_vec(values, shape, &Device::Cpu).map_err(|error| error.to_string())?;
        tensors.insert(names.ours, tensor);
    }
    Ok((config, tensors))
}

fn dequantized(file: &GgufFile, name: &str) -> Result<(Vec<usize>, Vec<f32>), GgufError> {
    let info = file.require(name)?;
    let mut values = vec![0.0; info.elements()];
    tallow_quant::dequantize(info.format()?, file.tensor_data(info)?, &mut values)
        .map_err(|source| GgufError::Quant { tensor: name.into(), source })?;
    Ok((info.shape.clone(), values))
}

/// Which way rows are reordered.
#[derive(Clone, Copy)]
enum Order {
    /// Rows `i` and `i + half` of a head become rows `2 i` and `2 i + 1`.
    ToNeighbours,
    /// The reverse.
    ToHalves,
}

/// The rows of each head in another order.
fn reordered(values: &[f32], heads: usize, rows: usize, order: Order) -> Vec<f32> {
    let (columns, length) = (values.len() / rows.max(1), rows / heads);
    let half = length / 2;
    let from = |row: usize| {
        let (head, at) = (row / length, row % length);
        let source = match order {
            Order::ToNeighbours => at % 2 * half + at / 2,
            Order::ToHalves => at % half * 2 + at / half,
        };
        head * length + source
    };
    (0..rows).flat_map(|row| values[from(row) * columns..][..columns].iter().copied()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_reordered_and_back() {
        let rows: Vec<f32> = (0..16).map(|i| i as f32).collect();
        let neighbours = reordered(&rows, 2, 8, Order::ToNeighbours);
        // Two heads of four rows of two: rows 0, 2, 1, 3 of each.
        let expected = [0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15].map(|i| i as f32);
        assert_eq!(neighbours, expected);
        assert_eq!(reordered(&neighbours, 2, 8, Order::ToHalves), rows);
    }
}
