//! A small encoder of no use, with a tokenizer.

use tallow_gguf::{Format, GgufError, GgufWriter, Metadata, TensorSpec, Value};

const WIDTH: usize = 32;
const HIDDEN: usize = 64;
const CONTEXT: usize = 48;
const LAYERS: usize = 2;
/// Begin of a word in the vocabulary.
const MARK: char = '\u{2581}';

/// The bytes of a file of architecture `bert`: 2 layers of 32 columns and random weights, 48 positions, and a WordPiece
/// vocabulary of letters, which pools by the mean. `change` may spoil the metadata, and `keeps` leaves out tensors.
///
/// # Errors
/// When a tensor cannot be written.
pub fn encoder(
    change: impl FnOnce(&mut Metadata),
    keeps: impl Fn(&str) -> bool,
) -> Result<Vec<u8>, GgufError> {
    let mut metadata = metadata();
    change(&mut metadata);
    let tensors: Vec<(String, Vec<usize>)> =
        tensors(vocabulary().len()).into_iter().filter(|(name, _)| keeps(name)).collect();
    let spec = |(name, shape): &(String, Vec<usize>)| TensorSpec {
        name: name.clone(),
        shape: shape.clone(),
        format: Format::F32,
    };
    let mut bytes = vec![];
    let mut writer = GgufWriter::create(&mut bytes, &metadata, tensors.iter().map(spec).collect())?;
    for (name, shape) in &tensors {
        let data: Vec<u8> = values(name, shape).iter().flat_map(|x| x.to_le_bytes()).collect();
        writer.tensor(name, &data)?;
    }
    writer.finish()?;
    Ok(bytes)
}

fn metadata() -> Metadata {
    let mut all = Metadata::new();
    let number = |n: usize| Value::U32(n as u32);
    let tokens = vocabulary();
    for (key, value) in [
        ("general.architecture", Value::String("bert".into())),
        ("bert.context_length", number(CONTEXT)),
        ("bert.embedding_length", number(WIDTH)),
        ("bert.block_count", number(LAYERS)),
        ("bert.feed_forward_length", number(HIDDEN)),
        ("bert.attention.head_count", number(4)),
        ("bert.attention.layer_norm_epsilon", Value::F32(1e-12)),
        ("bert.attention.causal", Value::Bool(false)),
        ("bert.pooling_type", number(1)),
        ("tokenizer.ggml.model", Value::String("bert".into())),
        ("tokenizer.ggml.unknown_token_id", number(1)),
        ("tokenizer.ggml.bos_token_id", number(2)),
        ("tokenizer.ggml.seperator_token_id", number(3)),
    ] {
        all.insert(key, value);
    }
    // Control tokens are of type 3, others of type 1.
    let types = (0..tokens.len()).map(|at| if at < 4 { 3 } else { 1 }).collect();
    all.insert("tokenizer.ggml.token_type", Value::Array(tallow_gguf::Array::I32(types)));
    all.insert("tokenizer.ggml.tokens", Value::Array(tallow_gguf::Array::String(tokens)));
    all
}

fn vocabulary() -> Vec<String> {
    let special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"].map(str::to_owned);
    let starts = ('a'..='z').chain(".,!?".chars()).map(|c| format!("{MARK}{c}"));
    special.into_iter().chain(starts).chain(('a'..='z').map(String::from)).collect()
}

fn tensors(vocabulary: usize) -> Vec<(String, Vec<usize>)> {
    let mut all = vec![
        ("token_embd.weight".to_owned(), vec![vocabulary, WIDTH]),
        ("position_embd.weight".to_owned(), vec![CONTEXT, WIDTH]),
        ("token_types.weight".to_owned(), vec![2, WIDTH]),
        ("token_embd_norm.weight".to_owned(), vec![WIDTH]),
        ("token_embd_norm.bias".to_owned(), vec![WIDTH]),
    ];
    for layer in 0..LAYERS {
        for (part, outputs, inputs) in [
            ("attn_q", WIDTH, WIDTH),
            ("attn_k", WIDTH, WIDTH),
            ("attn_v", WIDTH, WIDTH),
            ("attn_output", WIDTH, WIDTH),
            ("ffn_up", HIDDEN, WIDTH),
            ("ffn_down", WIDTH, HIDDEN),
        ] {
            all.push((format!("blk.{layer}.{part}.weight"), vec![outputs, inputs]));
            all.push((format!("blk.{layer}.{part}.bias"), vec![outputs]));
        }
        for part in ["attn_output_norm", "layer_output_norm"] {
            all.push((format!("blk.{layer}.{part}.weight"), vec![WIDTH]));
            all.push((format!("blk.{layer}.{part}.bias"), vec![WIDTH]));
        }
    }
    all
}

/// Numbers between -1/2 and 1/2 that follow from a tensor's name; around 1 for norms.
fn values(name: &str, shape: &[usize]) -> Vec<f32> {
    let offset = if name.ends_with("norm.weight") { 1.0 } else { 0.0 };
    let mut state = name.bytes().fold(7u32, |hash, byte| hash.wrapping_mul(31).wrapping_add(byte.into()));
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        offset + (state >> 8) as f32 / (1 << 24) as f32 - 0.5
    };
    (0..shape.iter().product()).map(|_| next()).collect()
}
