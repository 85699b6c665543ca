//! Embeddings of texts that share a run: those that each text has alone.

use tallow::Device;
use tallow_gguf::{Format, GgufFile};
use tallow_models::config::Pooling;
use tallow_models::embedder::TokenEmbedder;
use tallow_models::model_graph::ModelGraph;
use tallow_models::{Activations, EmbedOptions};

use crate::architectures::{Fixture, vulkan};
use crate::support::nmse;

const POOLINGS: [Pooling; 4] = [Pooling::None, Pooling::Mean, Pooling::Cls, Pooling::Last];

/// Parts of the fixture's text, of different lengths, one of them twice.
fn texts(fixture: &Fixture) -> Vec<Vec<u32>> {
    let parts = [(0, 3), (2, 10), (4, 1), (5, 7), (2, 10), (0, 6)];
    parts.map(|(start, count)| fixture.tokens[start..][..count].to_vec()).into()
}

/// The embeddings of the texts in runs of up to `rows` tokens.
fn embedded(fixture: &Fixture, pooling: Pooling, rows: usize, device: &Device) -> Vec<Vec<f32>> {
    let file = GgufFile::parse(fixture.file(Format::F32)).unwrap();
    let model = ModelGraph::from_file(&file).unwrap();
    let options = EmbedOptions {
        pooling: Some(pooling),
        normalize: false,
        activations: Activations::Exact,
        context: Some(12),
        rows: Some(rows),
        ..EmbedOptions::default()
    };
    let mut embedder = TokenEmbedder::load(&file, &model, device, &options, &mut |_| {}).unwrap();
    embedder.embed_all(&texts(fixture)).unwrap()
}

/// The largest error of texts that share runs of up to `rows` tokens.
fn error(fixture: &Fixture, pooling: Pooling, rows: usize, device: &Device) -> f64 {
    let alone = embedded(fixture, pooling, 1, &Device::Cpu);
    let packed = embedded(fixture, pooling, rows, device);
    packed.iter().zip(&alone).map(|(found, expected)| nmse(found, expected)).fold(0.0, f64::max)
}

#[test]
fn texts_of_every_architecture_share_a_run_on_the_interpreter() {
    for fixture in Fixture::all() {
        // All 37 tokens, and two runs.
        for (pooling, rows) in POOLINGS.into_iter().zip([64, 27, 37, 64]) {
            let error = error(&fixture, pooling, rows, &Device::Cpu);
            assert!(error < 1e-12, "{} {pooling:?}: {error:.1e}", fixture.name);
        }
    }
}

/// Each way in which the rows of a text depend on each other: all keys, windows and sinks, latent keys, recurrences.
/// `TALLOW_FULL=1` runs all fixtures.
#[test]
fn texts_share_a_run_on_the_device() {
    let Some(device) = vulkan() else { return };
    let some = [
        ("bert", Pooling::Mean),
        ("gpt-oss", Pooling::Last),
        ("deepseek2-lite", Pooling::None),
        ("mamba2", Pooling::Cls),
    ];
    let is_full = std::env::var("TALLOW_FULL").is_ok_and(|v| v == "1");
    for fixture in Fixture::all() {
        let pooling = match some.iter().find(|(name, _)| fixture.name == *name) {
            Some((_, pooling)) => *pooling,
            None if is_full => Pooling::Mean,
            None => continue,
        };
        let error = error(&fixture, pooling, 64, &device);
        assert!(error < 1e-10, "{} {pooling:?}: {error:.1e}", fixture.name);
    }
}

/// A hundred texts of 10 tokens take two runs, and as many as there are texts where each runs alone.
#[cfg(feature = "vulkan")]
#[test]
fn short_texts_take_few_runs() {
    let Some(device) = vulkan() else { return };
    let Device::Vulkan(counted) = &device else { panic!("{device} is no Vulkan device") };
    let fixture = Fixture::all().into_iter().find(|fixture| fixture.name == "bert").unwrap();
    let file = GgufFile::parse(fixture.file(Format::F32)).unwrap();
    let model = ModelGraph::from_file(&file).unwrap();
    let texts: Vec<Vec<u32>> =
        (0..100).map(|text| fixture.tokens[text % 3..][..10 - text % 3].to_vec()).collect();
    let mut all = vec![];
    for (rows, expected) in [(None, 2), (Some(1), 100)] {
        let options = EmbedOptions { activations: Activations::Exact, rows, ..EmbedOptions::default() };
        let mut embedder = TokenEmbedder::load(&file, &model, &device, &options, &mut |_| {}).unwrap();
        let first = embedder.embed_all(&texts).unwrap();
        let before = counted.submissions();
        assert_eq!(embedder.embed_all(&texts).unwrap(), first);
        assert_eq!(counted.submissions() - before, expected, "{rows:?}");
        all.push(first.concat());
    }
    assert!(nmse(&all[0], &all[1]) < 1e-10);
}
