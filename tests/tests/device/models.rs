//! The models in `models/` against `models/expected`.

use std::path::{Path, PathBuf};

use tallow::Device;
use tallow_gguf::{GgufFile, GgufWriter, TensorSpec};
use tallow_ir::dot;
use tallow_models::{Activations, LoadOptions, ModelFile, Scorer};
use tallow_quant::{Format, dequantize, quantize};
use tallow_tests::device::{is_full, is_software};
use tallow_tests::nmse;

use crate::harness::{device, device_with_range};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../models")
}

struct Case {
    prompt: String,
    tokens: Vec<u32>,
    greedy: Vec<u32>,
    text: String,
    logits: Vec<f64>,
}

impl Case {
    /// How many tokens go through the model.
    fn steps(&self) -> usize {
        self.tokens.len() + self.greedy.len()
    }
}

/// Prompts, tokens, continuations and logits of one model. The `.npy` is version 1, little-endian f16.
fn cases(model: &str) -> Vec<Case> {
    let dir = folder().join("expected");
    let json = std::fs::read_to_string(dir.join(format!("{model}.json"))).unwrap();
    let rows: serde_json::Value = serde_json::from_str(&json).unwrap();
    let npy = std::fs::read(dir.join(format!("{model}.logits.npy"))).unwrap();
    let start = 10 + usize::from(u16::from_le_bytes([npy[8], npy[9]]));
    let floats: Vec<f64> =
        npy[start..].as_chunks::<2>().0.iter().map(|b| half::f16::from_le_bytes(*b).to_f64()).collect();
    let rows = rows.as_array().unwrap();
    let width = floats.len() / rows.len();
    let ids =
        |v: &serde_json::Value| v.as_array().unwrap().iter().map(|x| x.as_u64().unwrap() as u32).collect();
    let case = |(i, row): (usize, &serde_json::Value)| Case {
        prompt: row["prompt"].as_str().unwrap().into(),
        tokens: ids(&row["tokens"]),
        greedy: ids(&row["greedy_tokens"]),
        text: row["greedy_text"].as_str().unwrap().into(),
        logits: floats[i * width..(i + 1) * width].to_vec(),
    };
    rows.iter().enumerate().map(case).collect()
}

fn open(name: &str) -> ModelFile {
    ModelFile::open(tallow_testmodels::model(name)).unwrap()
}

/// Of every second token, as they are stored: they tell as much as all.
fn every_second(logits: &[f64]) -> Vec<f64> {
    logits.iter().copied().step_by(2).collect()
}

/// The largest logit's position; the smallest position on a tie.
fn best(logits: &[f32]) -> u32 {
    (0..logits.len()).rev().max_by(|a, b| logits[*a].total_cmp(&logits[*b])).unwrap() as u32
}

/// Token ids, next-token logits and greedy text of every prompt.
fn check(name: &str, file: ModelFile) {
    let Some(device) = device() else { return };
    let mut cases = cases(name);
    cases.sort_by_key(Case::steps);
    // On software the two shortest: the others have no other kernels, but for long prompts (`prompts_of_all_lengths`).
    if is_software(&device) && !is_full() {
        cases.truncate(2);
    }
    check_on(&device, name, file, &cases);
}

fn check_on(device: &Device, name: &str, file: ModelFile, cases: &[Case]) {
    let options = LoadOptions { activations: Activations::Exact, ..LoadOptions::default() };
    let mut model = file.load(device, &options, &mut |_| {}).unwrap();
    let mut worst: f64 = 0.0;
    for case in cases {
        assert_eq!(
            model.tokenizer().encode(&case.prompt, true).unwrap(),
            case.tokens,
            "{name}: {:?}",
            case.prompt
        );
        model.reset();
        let mut logits = model.feed(&case.tokens).unwrap();
        let got: Vec<f64> = logits.iter().map(|x| f64::from(*x)).collect();
        let error = nmse(&case.logits, &every_second(&got));
        worst = worst.max(error);
        assert!(error < 1e-6, "{name}: {:?}: NMSE {error:e}", case.prompt);
        let mut greedy = vec![];
        for _ in 0..case.greedy.len() {
            let token = best(&logits);
            greedy.push(token);
            logits = model.feed(&[token]).unwrap();
        }
        assert_eq!(greedy, case.greedy, "{name}: {:?}", case.prompt);
        assert_eq!(model.tokenizer().decode(&greedy), case.text);
    }
    println!("{name}: worst NMSE {worst:.1e}");
}

#[test]
fn nano_f16() {
    check("storyteller-nano-f16", open("storyteller-nano-f16"));
}

#[test]
fn nano_q4_0() {
    check("storyteller-nano-Q4_0", open("storyteller-nano-Q4_0"));
}

#[test]
fn nano_q4_k_m() {
    check("storyteller-nano-Q4_K_M", open("storyteller-nano-Q4_K_M"));
}

#[test]
fn main_q4_k_m() {
    check("storyteller-main-Q4_K_M", open("storyteller-main-Q4_K_M"));
}

/// Decode steps whose activations are rounded to 8 bits, and multiplied as integers.
#[test]
fn quantized_activations() {
    let Some(device) = device() else { return };
    let quantizes = device.caps().is_some_and(dot::has_instructions);
    for name in ["storyteller-nano-Q4_0", "storyteller-nano-Q4_K_M"] {
        let options = LoadOptions { activations: Activations::Quantized, ..LoadOptions::default() };
        let mut model = open(name).load(&device, &options, &mut |_| {}).unwrap();
        let mut worst: f64 = 0.0;
        for case in cases(name) {
            model.reset();
            // A run of one token is a decode step.
            let logits = case.tokens.iter().map(|t| model.feed(&[*t]).unwrap()).last().unwrap();
            let got: Vec<f64> = logits.iter().map(|x| f64::from(*x)).collect();
            worst = worst.max(nmse(&case.logits, &every_second(&got)));
        }
        println!("{name}: worst NMSE {worst:.1e}");
        // Each of the 28 products loses about 1e-5, and their errors add up.
        assert!(worst < 1e-3, "{name}: NMSE {worst:e}");
        assert!(!quantizes || worst > 1e-6, "{name}: nothing was rounded");
    }
}

/// Prompts around the limits of the steps for short ones, and a text that goes on in such a step, give the logits of a
/// model that takes seven tokens a run.
#[test]
fn prompts_of_all_lengths() {
    let Some(device) = device() else { return };
    let load = |chunk: Option<usize>| {
        let activations = Activations::Exact;
        let options = LoadOptions { context: Some(400), chunk, activations, ..LoadOptions::default() };
        open("storyteller-nano-Q4_K_M").load(&device, &options, &mut |_| {}).unwrap()
    };
    let (mut model, mut other) = (load(None), load(Some(7)));
    let text: Vec<u32> = (0..400).map(|i| (i * 997 + 11) % 8000).collect();
    let compare = |what: String, got: Vec<f32>, expected: Vec<f32>| {
        let [got, expected] = [got, expected].map(|v| v.into_iter().map(f64::from).collect::<Vec<_>>());
        let error = nmse(&expected, &got);
        println!("{what}: NMSE {error:e}");
        assert!(error < 1e-6, "{what}: NMSE {error:e}");
    };
    for count in [1, 2, 16, 17, 33, 64, 65, 129, 256, 257] {
        model.reset();
        other.reset();
        let got = model.feed(&text[..count]).unwrap();
        compare(format!("{count} tokens"), got, other.feed(&text[..count]).unwrap());
    }
    let (got, expected) = (model.feed(&text[257..290]).unwrap(), other.feed(&text[257..290]).unwrap());
    compare("33 more tokens".into(), got, expected);
}

/// Weights, caches and logits that exceed what one binding spans: a range of 1 MiB stands for the 128 MiB of
/// plain Vulkan and models a hundred times larger.
#[test]
fn main_q4_k_m_in_windows() {
    let Some(device) = device_with_range(1 << 20) else { return };
    let name = "storyteller-main-Q4_K_M";
    let file = GgufFile::open(folder().join(format!("{name}.gguf"))).unwrap();
    let large = file.tensors().filter(|t| file.tensor_data(t).unwrap().len() > 1 << 20).count();
    assert!(large > 0, "no weight of {name} takes two windows");
    // One prompt of few tokens: more would add time, and no kernel.
    let shortest = cases(name).into_iter().min_by_key(Case::steps).unwrap();
    check_on(&device, name, open(name), &[shortest]);
}

/// The probabilities of given tokens, on the device and on the interpreter, in runs of any length.
#[test]
fn probabilities_of_a_text() {
    let Some(device) = device() else { return };
    let name = "storyteller-nano-Q4_K_M";
    let prompts = std::fs::read_to_string(folder().join("prompts.txt")).unwrap();
    let file = open(name);
    let text = file.tokenizer().encode_ordinary(&prompts, true).unwrap();
    let scores = |device: &Device, chunk: usize| {
        let options = LoadOptions { context: Some(text.len()), chunk: Some(chunk), ..LoadOptions::default() };
        let mut scorer = Scorer::load(&file, device, &options, &mut |_| {}).unwrap();
        scorer.feed(&text[..5]).unwrap();
        scorer.score(&text[5..text.len() - 1], &text[6..]).unwrap()
    };
    let expected = scores(&Device::Cpu, text.len());
    assert_eq!(expected.len(), text.len() - 6);
    for chunk in [text.len(), 7] {
        let got = scores(&device, chunk);
        // Logits have a normalized error below 1e-6 (`check_on`), so one of magnitude 16 is off by some
        // 1e-3 of that; the logarithm of a sum of exponentials moves by no more than the logits do.
        let near = |(e, g): (&f32, &f32)| (e - g).abs() < 32.0 * 1e-3;
        let far = expected.iter().zip(&got).position(|pair| !near(pair));
        assert_eq!(far.map(|at| (at, expected[at], got[at])), None, "{chunk} tokens a run");
        let mean = |all: &[f32]| all.iter().map(|x| f64::from(*x)).sum::<f64>() / all.len() as f64;
        // Errors of either sign cancel in the mean.
        assert!((mean(&expected) - mean(&got)).abs() < 1e-3, "{} {}", mean(&expected), mean(&got));
    }
}

/// Every matrix of the F16 model in Q8_0; byte-equal to what llama.cpp makes of it (`crates/gguf/tests/requantize.rs`).
#[test]
fn nano_q8_0_made_here() {
    let f16 = GgufFile::open(folder().join("storyteller-nano-f16.gguf")).unwrap();
    let tensors: Vec<_> = f16.tensors().collect();
    let format = |shape: &[usize], old: Format| if shape.len() > 1 { Format::Q8_0 } else { old };
    let spec = |t: &&tallow_gguf::TensorInfo| TensorSpec {
        name: t.name.clone(),
        shape: t.shape.clone(),
        format: format(&t.shape, t.format().unwrap()),
    };
    let mut bytes = Vec::new();
    let mut writer =
        GgufWriter::create(&mut bytes, f16.metadata(), tensors.iter().map(spec).collect()).unwrap();
    for tensor in &tensors {
        let old = tensor.format().unwrap();
        let mut values = vec![0.0; tensor.elements()];
        dequantize(old, f16.tensor_data(tensor).unwrap(), &mut values).unwrap();
        writer.tensor(&tensor.name, &quantize(format(&tensor.shape, old), &values).unwrap()).unwrap();
    }
    writer.finish().unwrap();
    check("storyteller-nano-Q8_0", ModelFile::new(GgufFile::parse(bytes).unwrap()).unwrap());
}
