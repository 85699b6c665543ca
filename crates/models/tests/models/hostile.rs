//! Files whose metadata lies: an error that says where, never a panic.

use std::panic::{AssertUnwindSafe, catch_unwind};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tallow::Device;
use tallow_gguf::{Format, GgufFile, Metadata, Value};
use tallow_models::embedder::TokenEmbedder;
use tallow_models::model_graph::{ModelGraph, Rows};
use tallow_models::{Decoder, EmbedOptions, LoadOptions};

use crate::architectures::Fixture;

/// A value that a key may lie with.
fn lie(rng: &mut StdRng, old: &Value) -> Value {
    let number = match old {
        Value::U32(n) => f64::from(*n),
        Value::I32(n) => f64::from(*n),
        Value::F32(x) => f64::from(*x),
        _ => 1.0,
    };
    let numbers = [0.0, 1.0, 2.0, 3.0, number - 1.0, number + 1.0, number * 2.0, number / 2.0, 7.0, 64.0];
    let large = [f64::from(u32::MAX), f64::from(1u32 << 24), 65537.0, 1e6];
    let floats = [f32::NAN, f32::INFINITY, -1.0, 0.0, f32::MAX, f32::MIN_POSITIVE, 1e-30];
    match rng.random_range(0..12) {
        0..=5 => Value::U32(numbers[rng.random_range(0..numbers.len())].max(0.0) as u32),
        6 | 7 => Value::U32(large[rng.random_range(0..large.len())] as u32),
        8 | 9 => Value::F32(floats[rng.random_range(0..floats.len())]),
        10 => Value::String("yarn".into()),
        _ => Value::Bool(rng.random()),
    }
}

/// The fixture's metadata with one to three lies, and the keys that lie.
fn lies(fixture: &Fixture, rng: &mut StdRng) -> (Metadata, Vec<String>) {
    let mut metadata = fixture.metadata();
    let keys: Vec<String> = metadata.iter().map(|(key, _)| key.to_owned()).collect();
    let mut lying = Vec::new();
    for _ in 0..rng.random_range(1..=3) {
        let key = keys[rng.random_range(0..keys.len())].clone();
        // A file of another architecture is another file.
        if key == "general.architecture" {
            continue;
        }
        if rng.random_range(0..8) == 0 {
            metadata.remove(&key);
        } else {
            let value = lie(rng, metadata.get(&key).unwrap_or(&Value::U32(1)));
            metadata.insert(key.clone(), value);
        }
        lying.push(key);
    }
    (metadata, lying)
}

/// An error and what caused it.
fn with_sources(error: &dyn std::error::Error) -> String {
    std::iter::successors(Some(error), |error| error.source()).map(|error| format!("{error}; ")).collect()
}

/// What a loader does with a file: reads it, writes its graphs, and, if it is small, runs a token.
fn load(bytes: Vec<u8>, runs: bool) -> Result<(), String> {
    let file = GgufFile::parse(bytes).map_err(|error| error.to_string())?;
    let model = ModelGraph::from_file(&file).map_err(|error| with_sources(&error))?;
    if model.config.architecture.is_encoder() {
        return embed(&file, &model, runs);
    }
    for graph in [model.step(Rows::One, 8), model.step(Rows::UpTo(4), 8), model.greedy(8)] {
        graph.map_err(|error| format!("not refused by from_file: {error}"))?;
    }
    if runs {
        let options = LoadOptions { context: Some(1), ..LoadOptions::default() };
        let mut decoder = Decoder::load(&file, &model, &Device::Cpu, &options, &mut |_| {})
            .map_err(|error| error.to_string())?;
        decoder.feed(&[1]).map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// The same for an encoder.
fn embed(file: &GgufFile, model: &ModelGraph, runs: bool) -> Result<(), String> {
    let options = EmbedOptions { context: Some(1), ..EmbedOptions::default() };
    let pooling = options.pooling_of(model).map_err(|error| error.to_string())?;
    let graph = model.embed(pooling, true, 4);
    graph.map_err(|error| format!("not refused by from_file: {error}"))?;
    if runs {
        let mut embedder = TokenEmbedder::load(file, model, &Device::Cpu, &options, &mut |_| {})
            .map_err(|error| error.to_string())?;
        embedder.embed(&[1]).map_err(|error| error.to_string())?;
    }
    Ok(())
}

#[test]
fn files_that_lie_are_errors_that_say_where() {
    let is_full = std::env::var("TALLOW_FULL").is_ok_and(|v| v == "1");
    let mutants = if is_full { 10_000 } else { 100 };
    let (mut wrong, mut refused) = (Vec::new(), 0);
    for fixture in Fixture::all() {
        let mut rng = StdRng::seed_from_u64(32);
        for number in 0..mutants {
            let (metadata, lying) = lies(&fixture, &mut rng);
            let bytes = fixture.file_with(&metadata, Format::F32);
            let found = catch_unwind(AssertUnwindSafe(|| load(bytes, number % 20 == 0)));
            match found {
                Err(_) => wrong.push(format!("{} mutant {number} of {lying:?}: a panic", fixture.name)),
                Ok(Ok(())) => (),
                Ok(Err(why)) => {
                    refused += 1;
                    // A key or one that it contradicts, or a tensor of another shape.
                    let says_where =
                        ["metadata key ", "metadata has no key ", "tensor ", "the file has no tensor "];
                    if !says_where.iter().any(|start| why.starts_with(start)) {
                        wrong.push(format!("{} mutant {number} of {lying:?}: {why}", fixture.name));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {refused}: {:#?}", wrong.len(), &wrong[..wrong.len().min(30)]);
    assert!(refused > mutants, "only {refused} were refused");
}
