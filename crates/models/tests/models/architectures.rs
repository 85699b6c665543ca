//! Small random models of every architecture against the logits of Hugging Face's transformers.
//!
//! `scripts/architecture_fixtures` wrote the fixtures: metadata, names and shapes of tensors, tokens, and logits after each.
//! Weights are a function of a tensor's name and an index, which both sides compute.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use tallow::Device;
use tallow_gguf::{Format, GgufFile, GgufWriter, Metadata, TensorSpec, Value};
use tallow_models::Architecture;
use tallow_models::model_graph::ModelGraph;
use tallow_models::{Activations, CacheType, CacheTypes, Decoder, LoadOptions};
use tallow_quant::quantize;

/// Tokens of a prompt that are computed at once: all of the longest.
const CHUNK: usize = 16;

/// A model and what it computes.
#[derive(Deserialize)]
pub struct Fixture {
    #[serde(skip)]
    pub name: String,
    pub metadata: BTreeMap<String, BTreeMap<String, serde_json::Value>>,
    pub tensors: Vec<Tensor>,
    quantized: Vec<String>,
    pub tokens: Vec<u32>,
    logits: Option<BTreeMap<String, Vec<Vec<f64>>>>,
}

/// A tensor whose values follow from its name.
#[derive(Deserialize)]
pub struct Tensor {
    pub name: String,
    pub shape: Vec<usize>,
    scale: Option<f32>,
    offset: Option<f32>,
    values: Option<Vec<f32>>,
}

impl Tensor {
    fn values(&self) -> Vec<f32> {
        if let Some(values) = &self.values {
            return values.clone();
        }
        let (scale, offset) = (self.scale.unwrap(), self.offset.unwrap());
        let seed = self.name.bytes().fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        let value = |i: u64| {
            let mut z = seed.wrapping_add(i.wrapping_mul(0x9E37_79B9_7F4A_7C15));
            z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            let bits = (z ^ (z >> 31)) >> 55;
            offset + scale * (bits as f32 - 255.5) / 256.0
        };
        (0..self.shape.iter().product::<usize>() as u64).map(value).collect()
    }
}

fn value(typed: &BTreeMap<String, serde_json::Value>) -> Value {
    let (kind, value) = typed.iter().next().unwrap();
    match kind.as_str() {
        "u32" => Value::U32(value.as_u64().unwrap() as u32),
        "i32" => Value::I32(value.as_i64().unwrap() as i32),
        "f32" => Value::F32(value.as_f64().unwrap() as f32),
        "bool" => Value::Bool(value.as_bool().unwrap()),
        "string" => Value::String(value.as_str().unwrap().into()),
        other => panic!("metadata of type {other}"),
    }
}

impl Fixture {
    /// All of them, in the order of their names.
    pub fn all() -> Vec<Fixture> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/architectures");
        let mut paths: Vec<PathBuf> =
            std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        let read = |path: &PathBuf| {
            let mut fixture: Fixture = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
            fixture.name = path.file_stem().unwrap().to_string_lossy().into_owned();
            fixture
        };
        paths.iter().map(read).collect()
    }

    /// The model's file, with its matrices in `format`.
    pub fn file(&self, format: Format) -> Vec<u8> {
        let mut metadata = Metadata::new();
        for (key, typed) in &self.metadata {
            metadata.insert(key, value(typed));
        }
        // Of a model in MXFP4, only the experts are.
        let of = |name: &String| match (self.quantized.contains(name), format) {
            (false, _) => Format::F32,
            (true, Format::MXFP4) if !name.contains("_exps") => Format::Q8_0,
            (true, format) => format,
        };
        let spec = |tensor: &Tensor| TensorSpec {
            name: tensor.name.clone(),
            shape: tensor.shape.clone(),
            format: of(&tensor.name),
        };
        let mut bytes = Vec::new();
        let specs = self.tensors.iter().map(spec).collect();
        let mut writer = GgufWriter::create(&mut bytes, &metadata, specs).unwrap();
        for tensor in &self.tensors {
            writer.tensor(&tensor.name, &quantize(of(&tensor.name), &tensor.values()).unwrap()).unwrap();
        }
        writer.finish().unwrap();
        bytes
    }
}

/// The mean square of the differences as a part of the mean square of what is expected.
fn error(found: &[f32], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let differences: f64 = found.iter().zip(expected).map(|(a, b)| (f64::from(*a) - b).powi(2)).sum();
    differences / expected.iter().map(|b| b * b).sum::<f64>()
}

/// The largest error of a fixture's model on a device: token by token, as one prompt, and as a prompt with tokens after it.
fn largest_error(fixture: &Fixture, format: &str, device: &Device) -> f64 {
    let Some(expected) = fixture.logits.as_ref().and_then(|logits| logits.get(format)) else { return 0.0 };
    let parsed = Format::ALL.iter().copied().find(|f| f.name().eq_ignore_ascii_case(format)).unwrap();
    let file = GgufFile::parse(fixture.file(parsed)).unwrap();
    let model = ModelGraph::from_file(&file).unwrap_or_else(|error| panic!("{}: {error}", fixture.name));
    // Transformers chooses the frequencies of long contexts by the length of the text, Tallow by the context.
    let original = model.config.long_rope.map(|long| long.original_context);
    let options = LoadOptions {
        context: original.filter(|original| fixture.tokens.len() <= *original),
        chunk: Some(CHUNK),
        activations: Activations::Exact,
        cache: CacheTypes { keys: CacheType::F32, values: CacheType::F32 },
        ..LoadOptions::default()
    };
    let mut decoder = Decoder::load(&file, &model, device, &options, &mut |_| {}).unwrap();
    let (tokens, mut worst) = (&fixture.tokens, 0f64);
    for prompt in [1, tokens.len(), tokens.len() / 2] {
        decoder.reset();
        let mut logits = decoder.feed(&tokens[..prompt]).unwrap();
        worst = worst.max(error(&logits, &expected[prompt - 1]));
        for at in prompt..tokens.len() {
            logits = decoder.feed(&tokens[at..=at]).unwrap();
            worst = worst.max(error(&logits, &expected[at]));
        }
    }
    worst
}

/// Checks the fixtures in the formats that `checks` names, given the number of a fixture.
fn check(device: &Device, checks: fn(usize) -> &'static [&'static str]) {
    let mut wrong = Vec::new();
    for (number, fixture) in Fixture::all().iter().enumerate() {
        for format in checks(number) {
            let error = largest_error(fixture, format, device);
            if error.is_nan() || error >= 1e-6 {
                wrong.push(format!("{} {format}: {error:.1e}", fixture.name));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

fn every_format(_: usize) -> &'static [&'static str] {
    &["F32", "Q8_0", "Q4_0", "MXFP4"]
}

/// On software, where compiling takes its time: of two models one in f32, the other in blocks.
fn one_format(number: usize) -> &'static [&'static str] {
    if number.is_multiple_of(2) { &["F32"] } else { &["Q4_0", "MXFP4"] }
}

#[test]
fn logits_are_those_of_transformers_on_the_interpreter() {
    check(&Device::Cpu, every_format);
}

#[test]
fn logits_are_those_of_transformers_on_the_device() {
    let device = match Device::best_vulkan() {
        Ok(device) => device,
        Err(why) if std::env::var("REQUIRE_VULKAN").is_ok_and(|v| v == "1") => panic!("{why}"),
        Err(_) => return,
    };
    let is_full = std::env::var("TALLOW_FULL").is_ok_and(|v| v == "1");
    let is_software = device.caps().is_some_and(|caps| caps.is_software());
    check(&device, if is_software && !is_full { one_format } else { every_format });
}

#[test]
fn every_architecture_has_a_fixture() {
    let of = |fixture: &Fixture| fixture.metadata["general.architecture"]["string"].clone();
    let known: Vec<_> = Fixture::all().iter().map(of).collect();
    for architecture in Architecture::ALL {
        assert!(known.iter().any(|name| name == architecture.name()), "{}", architecture.name());
    }
}
