//! What the tests of whole models share: expected outputs and the comparison with them.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tallow::Device;
use tallow_models::generate::{GenerateOptions, generate};
use tallow_models::{LoadOptions, ModelFile, SamplingOptions};

/// What the normalized mean squared error of logits may be. Activations are f32. The cache and the expected logits
/// are f16, whose rounding gives a few 1e-8 each.
pub const MAX_NMSE: f64 = 1e-6;

pub fn models() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models")
}

pub struct Expected {
    pub prompt: String,
    pub tokens: Vec<u32>,
    pub greedy_tokens: Vec<u32>,
    pub greedy_text: String,
    pub logits: Vec<f32>,
}

/// The prompts of `expected/<name>.json` with the rows of `expected/<name>.logits.npy`.
pub fn expected(name: &str) -> Vec<Expected> {
    let file = |suffix: &str| models().join("expected").join(format!("{name}{suffix}"));
    let json: Value = serde_json::from_slice(&std::fs::read(file(".json")).unwrap()).unwrap();
    let npy = std::fs::read(file(".logits.npy")).unwrap();
    let rows = json.as_array().unwrap();
    assert_eq!(&npy[..8], b"\x93NUMPY\x01\x00");
    let data = 10 + usize::from(u16::from_le_bytes([npy[8], npy[9]]));
    assert!(String::from_utf8_lossy(&npy[10..data]).contains("'<f2'"));
    let values: Vec<f32> = npy[data..]
        .as_chunks::<2>()
        .0
        .iter()
        .map(|bytes| half::f16::from_le_bytes(*bytes).to_f32())
        .collect();
    assert_eq!(values.len() % rows.len(), 0);
    let ids = |value: &Value| -> Vec<u32> {
        value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
    };
    let row = |(row, logits): (&Value, &[f32])| Expected {
        prompt: row["prompt"].as_str().unwrap().into(),
        tokens: ids(&row["tokens"]),
        greedy_tokens: ids(&row["greedy_tokens"]),
        greedy_text: row["greedy_text"].as_str().unwrap().into(),
        logits: logits.to_vec(),
    };
    rows.iter().zip(values.chunks(values.len() / rows.len())).map(row).collect()
}

/// The error of logits. Those of every second token are stored, which tell as much.
pub fn nmse_of_logits(got: &[f32], row: &Expected) -> f64 {
    nmse(&got.iter().copied().step_by(2).collect::<Vec<_>>(), &row.logits)
}

pub fn nmse(got: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(got.len(), expected.len());
    let pairs = || got.iter().zip(expected).map(|(a, b)| (f64::from(*a), f64::from(*b)));
    let error: f64 = pairs().map(|(a, b)| (a - b).powi(2)).sum();
    error / pairs().map(|(_, b)| b * b).sum::<f64>()
}

/// Token ids, logits and greedy text of every prompt.
pub fn check(name: &str, file: ModelFile) {
    let mut model = file.load(&Device::Cpu, &LoadOptions::default(), &mut |_| {}).unwrap();
    let rows = expected(name);
    assert!(!rows.is_empty());
    for row in rows {
        let tokens = model.tokenizer().encode(&row.prompt, true).unwrap();
        assert_eq!(tokens, row.tokens, "{name}: {:?}", row.prompt);

        model.reset();
        let error = nmse_of_logits(&model.feed(&tokens).unwrap(), &row);
        println!("{name}: nmse {error:.3e} {:?}", row.prompt);
        assert!(error < MAX_NMSE, "{name}: nmse {error:e} for {:?}", row.prompt);

        let greedy =
            GenerateOptions { max_tokens: row.greedy_tokens.len(), sampling: SamplingOptions::default() };
        let mut streamed = String::new();
        let generation = generate(&mut model, &tokens, &greedy, &mut |text| {
            streamed.push_str(text);
            ControlFlow::Continue(())
        })
        .unwrap();
        assert_eq!(generation.tokens, row.greedy_tokens, "{name}: {:?}", row.prompt);
        assert_eq!(generation.text, row.greedy_text, "{name}: {:?}", row.prompt);
        assert_eq!(streamed, row.greedy_text);
    }
}
