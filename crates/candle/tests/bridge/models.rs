//! The drop-in models against those of `candle-transformers` on the CPU.

use std::collections::HashMap;
use std::io::Cursor;

use candle_core::quantized::{GgmlDType, QTensor, gguf_file};
use candle_core::{Device, Tensor};
use candle_transformers::generation::{LogitsProcessor, Sampling};
use candle_transformers::models::{quantized_llama, quantized_qwen2, quantized_qwen3};
use tallow_candle::models::{self, Options};

use crate::support::{Numbers, devices, fastest, nmse};

const FILES: [&str; 3] = ["storyteller-nano-f16", "storyteller-nano-Q4_0", "storyteller-nano-Q4_K_M"];
const LARGER: &str = "storyteller-main-Q4_K_M";

fn read(name: &str) -> Vec<u8> {
    std::fs::read(tallow_testmodels::model(name)).unwrap()
}

fn content(bytes: &[u8]) -> gguf_file::Content {
    gguf_file::Content::read(&mut Cursor::new(bytes)).unwrap()
}

/// The same file with its weights dequantized to f32, so that Candle multiplies by activations as they are.
fn dequantized(bytes: &[u8]) -> Vec<u8> {
    let content = content(bytes);
    let mut reader = Cursor::new(bytes);
    let tensors: Vec<(String, QTensor)> = content
        .tensor_infos
        .keys()
        .map(|name| {
            let tensor = content.tensor(&mut reader, name, &Device::Cpu).unwrap();
            let plain = tensor.dequantize(&Device::Cpu).unwrap();
            (name.clone(), QTensor::quantize(&plain, GgmlDType::F32).unwrap())
        })
        .collect();
    let metadata: Vec<(&str, &gguf_file::Value)> =
        content.metadata.iter().map(|(key, value)| (key.as_str(), value)).collect();
    let tensors: Vec<(&str, &QTensor)> = tensors.iter().map(|(name, t)| (name.as_str(), t)).collect();
    let mut file = Cursor::new(Vec::new());
    gguf_file::write(&mut file, &metadata, &tensors).unwrap();
    file.into_inner()
}

/// Candle's model of the dequantized weights.
pub fn exact(name: &str) -> quantized_llama::ModelWeights {
    exact_of(&read(name))
}

fn exact_of(bytes: &[u8]) -> quantized_llama::ModelWeights {
    let bytes = dequantized(bytes);
    quantized_llama::ModelWeights::from_gguf(content(&bytes), &mut Cursor::new(&bytes), &Device::Cpu).unwrap()
}

/// The token with the largest logit.
pub fn greedy(logits: &[f32]) -> u32 {
    logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).unwrap().0 as u32
}

/// How far the largest logit is above the second.
fn lead(logits: &[f32]) -> f32 {
    let best = greedy(logits) as usize;
    let others = logits.iter().enumerate().filter(|(i, _)| *i != best).map(|(_, x)| *x);
    logits[best] - others.fold(f32::NEG_INFINITY, f32::max)
}

fn worst(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).fold(0.0, |m, (a, b)| m.max((a - b).abs()))
}

fn tensor(tokens: &[u32]) -> Tensor {
    Tensor::new(tokens, &Device::Cpu).unwrap().unsqueeze(0).unwrap()
}

fn floats(logits: &Tensor) -> Vec<f32> {
    assert_eq!(logits.dims()[0], 1);
    logits.squeeze(0).unwrap().to_vec1().unwrap()
}

/// Tokens of no text in particular.
const PROMPT: [u32; 6] = [1, 9, 4, 27, 300, 5];

/// How a story starts, in a file's tokens.
fn story(bytes: &[u8]) -> Vec<u32> {
    let file = tallow_gguf::GgufFile::parse(bytes).unwrap();
    let tokenizer = tallow_gguf::Tokenizer::from_metadata(file.metadata()).unwrap();
    tokenizer.encode("Once upon a time there was a", true).unwrap()
}

/// Rounding a block of 256 activations to 8 bits, as Candle's products do it, adds a noise of (max / 127)^2 / 12, which is
/// 5e-5 of their square where the largest is three times the root of the mean square. 7 products in each of 4 layers (8 in
/// the main model) and the last one add up to 29 (57) times that, less what residuals keep from them: 2.9e-3 at most.
const NMSE_OF_ROUNDING: f64 = 2.9e-3;

/// For each file: against Candle on dequantized weights the same 100 tokens, logits within an NMSE of 1e-5; against
/// Candle's own products, which round activations and are themselves inexact, logits within what rounding explains, and
/// the same tokens until its two best logits lie closer than twice the largest difference. `cargo test -- --nocapture`
/// prints both errors.
#[test]
fn small_files_write_what_candle_writes() {
    for name in FILES {
        writes_what_candle_writes(name, &read(name));
    }
}

/// As above, beside it.
#[test]
fn a_larger_file_writes_what_candle_writes() {
    writes_what_candle_writes(LARGER, &read(LARGER));
}

/// The same of other files, such as those that are too large for the repository.
#[test]
#[ignore = "reads the GGUF files of the folder that TALLOW_MODELS names"]
fn files_of_a_folder_write_what_candle_writes() {
    let folder = std::env::var_os("TALLOW_MODELS").expect("TALLOW_MODELS names a folder");
    let mut paths: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "gguf"));
    paths.sort();
    assert!(!paths.is_empty(), "no GGUF files");
    for path in paths {
        writes_what_candle_writes(
            &path.file_stem().unwrap().to_string_lossy(),
            &std::fs::read(&path).unwrap(),
        );
    }
}

fn writes_what_candle_writes(name: &str, bytes: &[u8]) {
    let steps = if fastest().is_cpu() { 10 } else { 100 };
    // Candle's products are not optimized in this build, and slow.
    let with_candle = if name.contains("main") { 25 } else { steps };
    let options = Options { device: Some(fastest()), ..Options::default() };
    let mut ours = models::quantized_llama::ModelWeights::from_gguf_with(
        content(bytes),
        &mut Cursor::new(bytes),
        &Device::Cpu,
        &options,
    )
    .unwrap();
    let mut exact = exact_of(bytes);
    let mut candle =
        quantized_llama::ModelWeights::from_gguf(content(bytes), &mut Cursor::new(bytes), &Device::Cpu)
            .unwrap();
    let (mut at, mut tokens) = (0, story(bytes));
    let (mut nmse_exact, mut nmse_quantized, mut largest) = (0.0f64, 0.0f64, 0.0f32);
    let started = std::time::Instant::now();
    // For each token: whether Candle's products choose it too, and by how much.
    let mut choices = vec![];
    for step in 0..steps {
        let x = tensor(&tokens);
        let got = floats(&ours.forward(&x, at).unwrap());
        let expected = floats(&exact.forward(&x, at).unwrap());
        nmse_exact = nmse_exact.max(nmse(&got, &expected));
        assert!(nmse_exact < 1e-5, "{name}, token {step}: NMSE {nmse_exact}");
        assert_eq!(greedy(&got), greedy(&expected), "{name}, token {step}");
        if step < with_candle {
            let quantized = floats(&candle.forward(&x, at).unwrap());
            nmse_quantized = nmse_quantized.max(nmse(&quantized, &expected));
            largest = largest.max(worst(&got, &quantized));
            choices.push((greedy(&got) == greedy(&quantized), lead(&quantized)));
        }
        at += tokens.len();
        tokens = vec![greedy(&got)];
    }
    assert!(nmse_quantized < NMSE_OF_ROUNDING, "{name}: NMSE {nmse_quantized}");
    let close = choices.iter().position(|(_, lead)| *lead < 2.0 * largest).unwrap_or(choices.len());
    assert!(choices[..close].iter().all(|(same, _)| *same), "{name}: {choices:?}");
    let same = choices.iter().filter(|(same, _)| *same).count();
    println!(
        "{name}: {steps} tokens, the same as of dequantized weights, NMSE {nmse_exact:.1e} at most; Candle's own \
         products over {}: NMSE {nmse_quantized:.1e}, {largest:.1e} apart at most, {same} the same tokens, {close} until \
         the lead is less than twice that; {:.0} s",
        choices.len(),
        started.elapsed().as_secs_f64()
    );
}

#[test]
fn texts_start_over_go_back_and_go_on() {
    let bytes = read(FILES[1]);
    let device = Some(fastest());
    let load = |options: &Options| {
        models::quantized_llama::ModelWeights::from_gguf_with(
            content(&bytes),
            &mut Cursor::new(&bytes),
            &Device::Cpu,
            options,
        )
    };
    let mut model = load(&Options { device: device.clone(), chunk: Some(4), ..Options::default() }).unwrap();
    let first = floats(&model.forward(&tensor(&PROMPT), 0).unwrap());
    let next = floats(&model.forward(&tensor(&[7]), 6).unwrap());
    // Position 0 starts over, as in Candle; token by token gives the same text.
    let mut again = vec![];
    for (at, token) in PROMPT.iter().enumerate() {
        again = floats(&model.forward(&tensor(&[*token]), at).unwrap());
    }
    assert!(nmse(&again, &first) < 1e-6);
    model.forward(&tensor(&[70, 71, 72]), 6).unwrap();
    assert!(nmse(&floats(&model.forward(&tensor(&[7]), 6).unwrap()), &next) < 1e-6);
    // Numbers of other types are tokens too.
    let wide = tensor(&[7]).to_dtype(candle_core::DType::I64).unwrap();
    assert!(nmse(&floats(&model.forward(&wide, 6).unwrap()), &next) < 1e-6);
    model.clear_kv_cache();
    assert!(model.forward(&tensor(&[7]), 6).is_err());
    assert!(nmse(&floats(&model.forward(&tensor(&PROMPT), 0).unwrap()), &first) < 1e-12);

    // Candle's sampling takes the logits as they are.
    let mut sampler =
        LogitsProcessor::from_sampling(1, Sampling::TopKThenTopP { k: 40, p: 0.9, temperature: 0.8 });
    let logits = model.forward(&tensor(&[7]), 6).unwrap().squeeze(0).unwrap();
    assert!((sampler.sample(&logits).unwrap() as usize) < next.len());

    for wrong in [
        model.forward(&tensor(&[u32::MAX]), 0),
        model.forward(&Tensor::new(&[[1u32], [2]], &Device::Cpu).unwrap(), 0),
        model.forward(&Tensor::new(&[[1f32]], &Device::Cpu).unwrap(), 0),
        model.forward(&Tensor::new(&[1u32], &Device::Cpu).unwrap(), 0),
        model.forward(&tensor(&vec![1; model.context() + 1]), 0),
    ] {
        assert!(wrong.is_err());
    }
    let small = load(&Options { device: device.clone(), context: Some(8), ..Options::default() });
    assert_eq!(small.unwrap().context(), 8);
    assert!(load(&Options { device, context: Some(1 << 20), ..Options::default() }).is_err());
    let qwen = models::quantized_qwen2::ModelWeights::from_gguf(
        content(&bytes),
        &mut Cursor::new(&bytes),
        &Device::Cpu,
    );
    assert!(qwen.unwrap_err().to_string().contains("llama"));
    // A file that was cut off.
    let cut = &bytes[..bytes.len() - 1000];
    let error = models::quantized_llama::ModelWeights::from_gguf(
        content(&bytes),
        &mut Cursor::new(cut),
        &Device::Cpu,
    );
    assert!(error.is_err());
}

/// A model of random weights: 2 layers of width 64, 4 heads and 2 key heads, 96 tokens.
fn random(architecture: &str, head: usize, biases: bool, head_norms: bool) -> Vec<u8> {
    use gguf_file::Value;
    let mut numbers = Numbers(11);
    let mut tensors: Vec<(String, QTensor)> = vec![];
    let mut add = |name: String, dims: &[usize], scale: f64, shift: f64, format| {
        let tensor = numbers.tensor(dims).affine(scale, shift).unwrap();
        tensors.push((name, QTensor::quantize(&tensor, format).unwrap()));
    };
    let (width, ff, vocabulary) = (64, 96, 96);
    add("token_embd.weight".into(), &[vocabulary, width], 1.0, 0.0, GgmlDType::Q8_0);
    add("output_norm.weight".into(), &[width], 0.2, 1.0, GgmlDType::F32);
    add("output.weight".into(), &[vocabulary, width], 0.5, 0.0, GgmlDType::F32);
    for layer in 0..2 {
        let name = |part: &str| format!("blk.{layer}.{part}");
        for (part, out, inner) in [
            ("attn_q", 4 * head, width),
            ("attn_k", 2 * head, width),
            ("attn_v", 2 * head, width),
            ("attn_output", width, 4 * head),
            ("ffn_gate", ff, width),
            ("ffn_up", ff, width),
            ("ffn_down", width, ff),
        ] {
            add(name(&format!("{part}.weight")), &[out, inner], 0.3, 0.0, GgmlDType::F32);
            if biases && ["attn_q", "attn_k", "attn_v"].contains(&part) {
                add(name(&format!("{part}.bias")), &[out], 0.5, 0.0, GgmlDType::F32);
            }
        }
        for norm in ["attn_norm", "ffn_norm"] {
            add(name(&format!("{norm}.weight")), &[width], 0.2, 1.0, GgmlDType::F32);
        }
        for norm in ["attn_q_norm", "attn_k_norm"].iter().filter(|_| head_norms) {
            add(name(&format!("{norm}.weight")), &[head], 0.2, 1.0, GgmlDType::F32);
        }
    }
    let metadata: HashMap<String, Value> = [
        ("context_length", Value::U32(64)),
        ("embedding_length", Value::U32(width as u32)),
        ("block_count", Value::U32(2)),
        ("feed_forward_length", Value::U32(ff as u32)),
        ("attention.head_count", Value::U32(4)),
        ("attention.head_count_kv", Value::U32(2)),
        ("attention.key_length", Value::U32(head as u32)),
        ("attention.value_length", Value::U32(head as u32)),
        ("attention.layer_norm_rms_epsilon", Value::F32(1e-6)),
        ("rope.freq_base", Value::F32(50000.0)),
        ("rope.dimension_count", Value::U32(head as u32)),
    ]
    .into_iter()
    .map(|(key, value)| (format!("{architecture}.{key}"), value))
    .chain([("general.architecture".into(), Value::String(architecture.into()))])
    .collect();
    let metadata: Vec<(&str, &Value)> = metadata.iter().map(|(key, value)| (key.as_str(), value)).collect();
    let tensors: Vec<(&str, &QTensor)> = tensors.iter().map(|(name, t)| (name.as_str(), t)).collect();
    let mut file = Cursor::new(Vec::new());
    gguf_file::write(&mut file, &metadata, &tensors).unwrap();
    file.into_inner()
}

/// Runs a model of Candle's and ours of the same file over a prompt and some steps.
macro_rules! compare {
    ($module:ident, $bytes:expr) => {
        for device in devices() {
            let bytes = $bytes;
            let exact = dequantized(&bytes);
            let mut candle =
                $module::ModelWeights::from_gguf(content(&exact), &mut Cursor::new(&exact), &Device::Cpu)
                    .unwrap();
            let options = Options { device: Some(device.clone()), ..Options::default() };
            let mut ours = models::$module::ModelWeights::from_gguf_with(
                content(&bytes),
                &mut Cursor::new(&bytes),
                &Device::Cpu,
                &options,
            )
            .unwrap();
            let (mut at, mut tokens) = (0, vec![5u32, 80, 33, 2, 41]);
            for _ in 0..10 {
                let x = tensor(&tokens);
                let got = floats(&ours.forward(&x, at).unwrap());
                let expected = floats(&candle.forward(&x, at).unwrap());
                let error = nmse(&got, &expected);
                assert!(error < 1e-5, "NMSE {error} at {at} on {device}");
                at += tokens.len();
                tokens = vec![greedy(&expected)];
            }
        }
    };
}

#[test]
fn random_models_of_every_architecture() {
    compare!(quantized_llama, random("llama", 16, false, false));
    compare!(quantized_qwen2, random("qwen2", 16, true, false));
    // Heads that do not add up to the width.
    compare!(quantized_qwen3, random("qwen3", 32, false, true));
}
