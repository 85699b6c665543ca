//! Small random models of every architecture against the logits or last rows of Hugging Face's transformers.
//!
//! `scripts/architecture_fixtures` wrote the fixtures: metadata, names and shapes of tensors, tokens, and logits after each,
//! or of encoders the last layer's rows.
//! Weights are a function of a tensor's name and an index, which both sides compute.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use tallow::Device;
use tallow_gguf::{Format, GgufFile, GgufWriter, Metadata, TensorSpec, Value};
use tallow_ir::{DType, TensorType};
use tallow_models::Architecture;
use tallow_models::config::Pooling;
use tallow_models::embedder::TokenEmbedder;
use tallow_models::model_graph::ModelGraph;
use tallow_models::{Activations, CacheType, CacheTypes, Decoder, EmbedOptions, LoadOptions};
use tallow_quant::quantize;

/// Tokens of a prompt that are computed at once: all of the longest.
pub const CHUNK: usize = 16;
/// The bound on the normalized mean squared error.
pub const LARGEST_ERROR: f64 = 1e-6;

/// A model and what it computes.
#[derive(Deserialize)]
pub struct Fixture {
    #[serde(skip)]
    pub name: String,
    /// The version of transformers that computed it.
    pub transformers: String,
    /// The class of transformers.
    pub class: String,
    pub metadata: BTreeMap<String, BTreeMap<String, serde_json::Value>>,
    pub tensors: Vec<Tensor>,
    quantized: Vec<String>,
    pub tokens: Vec<u32>,
    pub logits: Option<BTreeMap<String, Vec<Vec<f64>>>>,
    /// What an encoder computes: the last layer's row of each token.
    pub hidden: Option<BTreeMap<String, Vec<Vec<f64>>>>,
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
    pub fn values(&self) -> Vec<f32> {
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

    /// The value of `general.architecture`.
    pub fn architecture(&self) -> &str {
        self.metadata["general.architecture"]["string"].as_str().unwrap()
    }

    /// What transformers computed, by the format of the weights.
    fn expected(&self) -> Option<&BTreeMap<String, Vec<Vec<f64>>>> {
        self.logits.as_ref().or(self.hidden.as_ref())
    }

    /// The formats in which it was computed.
    pub fn formats(&self) -> Vec<&str> {
        self.expected().into_iter().flat_map(BTreeMap::keys).map(String::as_str).collect()
    }

    /// The metadata of the model's file.
    pub fn metadata(&self) -> Metadata {
        let mut metadata = Metadata::new();
        for (key, typed) in &self.metadata {
            metadata.insert(key, value(typed));
        }
        metadata
    }

    /// The model's file, with its matrices in `format`.
    pub fn file(&self, format: Format) -> Vec<u8> {
        self.file_with(&self.metadata(), format)
    }

    /// The model of a file of this fixture.
    pub fn load(&self, bytes: Vec<u8>, device: &Device) -> Decoder {
        let file = GgufFile::parse(bytes).unwrap();
        let model = ModelGraph::from_file(&file).unwrap_or_else(|error| panic!("{}: {error}", self.name));
        // Transformers chooses the frequencies of long contexts by the length of the text, Tallow by the context.
        let original = model.config.long_rope.map(|long| long.original_context);
        let options = LoadOptions {
            context: original.filter(|original| self.tokens.len() <= *original),
            chunk: Some(CHUNK),
            activations: Activations::Exact,
            cache: CacheTypes { keys: CacheType::F32, values: CacheType::F32 },
            ..LoadOptions::default()
        };
        Decoder::load(&file, &model, device, &options, &mut |_| {}).unwrap()
    }

    /// As [`Fixture::file`], with other metadata.
    pub fn file_with(&self, metadata: &Metadata, format: Format) -> Vec<u8> {
        self.file_of(metadata, format, |tensor, format| quantize(format, &tensor.values()).unwrap())
    }

    /// The format of a tensor in a file in `format`: vectors are in f32, and of a model in MXFP4, only the experts are.
    pub fn format_of(&self, name: &str, format: Format) -> Format {
        match (self.quantized.iter().any(|quantized| quantized == name), format) {
            (false, _) => Format::F32,
            (true, Format::MXFP4) if !name.contains("_exps") => Format::Q8_0,
            (true, format) => format,
        }
    }

    /// As [`Fixture::file`], with other metadata and with the bytes that `write` gives each tensor in its format.
    pub fn file_of(
        &self,
        metadata: &Metadata,
        format: Format,
        mut write: impl FnMut(&Tensor, Format) -> Vec<u8>,
    ) -> Vec<u8> {
        let of = |name: &str| self.format_of(name, format);
        let spec = |tensor: &Tensor| TensorSpec {
            name: tensor.name.clone(),
            shape: tensor.shape.clone(),
            format: of(&tensor.name),
        };
        let mut bytes = Vec::new();
        let specs = self.tensors.iter().map(spec).collect();
        let mut writer = GgufWriter::create(&mut bytes, metadata, specs).unwrap();
        for tensor in &self.tensors {
            writer.tensor(&tensor.name, &write(tensor, of(&tensor.name))).unwrap();
        }
        writer.finish().unwrap();
        bytes
    }
}

/// The mean square of the differences as a part of the mean square of what is expected.
pub fn error(found: &[f32], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let differences: f64 = found.iter().zip(expected).map(|(a, b)| (f64::from(*a) - b).powi(2)).sum();
    differences / expected.iter().map(|b| b * b).sum::<f64>()
}

/// The error of an encoder's rows, of a text at once.
fn error_of_rows(fixture: &Fixture, format: Format, expected: &[Vec<f64>], device: &Device) -> f64 {
    let (pooling, activations) = (Some(Pooling::None), Activations::Exact);
    let options = EmbedOptions { pooling, normalize: false, activations, ..EmbedOptions::default() };
    let file = GgufFile::parse(fixture.file(format)).unwrap();
    let model = ModelGraph::from_file(&file).unwrap_or_else(|error| panic!("{}: {error}", fixture.name));
    let mut embedder = TokenEmbedder::load(&file, &model, device, &options, &mut |_| {}).unwrap();
    error(&embedder.embed(&fixture.tokens).unwrap(), &expected.concat())
}

/// Values of each size: those of a tensor times a power of two, from 2^-range to 2^range, one in 97 of them `outlier` times
/// that, one in 89 the smallest that f32 has.
fn of_all_sizes(name: &str, mut values: Vec<f32>, range: i32, outlier: f32) -> Vec<f32> {
    let seed = name.bytes().fold(7u32, |hash, byte| hash.wrapping_mul(31).wrapping_add(byte.into()));
    let scale = 2f32.powi((seed >> 8) as i32 % (2 * range + 1) - range);
    for (i, value) in values.iter_mut().enumerate() {
        *value *= match i {
            _ if i % 97 == 13 => outlier * scale,
            _ if i % 89 == 17 => 1e-45,
            _ => scale,
        };
    }
    values
}

/// Runs a model with weights of all sizes. Gives how many logits of the interpreter are numbers, and how many of those are
/// NaN on the device.
fn wrong_nans(fixture: &Fixture, format: Format, device: &Device) -> [usize; 2] {
    // The scale of a block is an f16.
    let (range, outlier) = if format == Format::F32 { (40, 1e6) } else { (8, 1e3) };
    let write = |tensor: &Tensor, format| {
        quantize(format, &of_all_sizes(&tensor.name, tensor.values(), range, outlier)).unwrap()
    };
    let bytes = fixture.file_of(&fixture.metadata(), format, write);
    let [mut ours, mut theirs] = [device, &Device::Cpu].map(|device| fixture.load(bytes.clone(), device));
    let mut found = [0; 2];
    for at in 1..fixture.tokens.len() {
        // A prompt of two tokens first.
        let tokens = if at == 1 { &fixture.tokens[..2] } else { &fixture.tokens[at..=at] };
        let [ours, theirs] = [&mut ours, &mut theirs].map(|decoder| decoder.feed(tokens).unwrap());
        let numbers: Vec<_> = ours.iter().zip(&theirs).filter(|(_, theirs)| !theirs.is_nan()).collect();
        found[0] += numbers.len();
        found[1] += numbers.iter().filter(|(ours, _)| ours.is_nan()).count();
    }
    found
}

/// The largest error of a fixture's model on a device: token by token, as one prompt, and as a prompt with tokens after it.
fn largest_error(fixture: &Fixture, format: Format, expected: &[Vec<f64>], device: &Device) -> f64 {
    let mut decoder = fixture.load(fixture.file(format), device);
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
    let (mut wrong, mut models, mut with_numbers) = (Vec::new(), 0, 0);
    for (number, fixture) in Fixture::all().iter().enumerate() {
        for name in checks(number) {
            let is_encoder = fixture.hidden.is_some();
            let Some(expected) = fixture.expected().and_then(|outputs| outputs.get(*name)) else { continue };
            let format = Format::ALL.iter().copied().find(|f| f.name().eq_ignore_ascii_case(name)).unwrap();
            let error = match is_encoder {
                true => error_of_rows(fixture, format, expected, device),
                false => largest_error(fixture, format, expected, device),
            };
            if error.is_nan() || error >= LARGEST_ERROR {
                wrong.push(format!("{} {name}: {error:.1e}", fixture.name));
            }
            if !matches!(device, Device::Cpu) && !is_encoder {
                let [numbers, nans] = wrong_nans(fixture, format, device);
                models += 1;
                with_numbers += usize::from(numbers > 0);
                if nans > 0 {
                    wrong.push(format!("{} {name}: {nans} of {numbers} numbers are NaN", fixture.name));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(2 * with_numbers >= models, "{with_numbers} of {models} models give numbers");
}

/// The Vulkan device, where there is one.
pub fn vulkan() -> Option<Device> {
    match Device::best_vulkan() {
        Ok(device) => Some(device),
        Err(why) if std::env::var("REQUIRE_VULKAN").is_ok_and(|v| v == "1") => panic!("{why}"),
        Err(_) => None,
    }
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
    let Some(device) = vulkan() else { return };
    let is_full = std::env::var("TALLOW_FULL").is_ok_and(|v| v == "1");
    let is_software = device.caps().is_some_and(|caps| caps.is_software());
    check(&device, if is_software && !is_full { one_format } else { every_format });
}

#[test]
fn every_architecture_has_a_fixture() {
    let fixtures = Fixture::all();
    for architecture in Architecture::ALL {
        assert!(
            fixtures.iter().any(|fixture| fixture.architecture() == architecture.name()),
            "{}",
            architecture.name()
        );
    }
}

/// A model of a file's hyperparameters has the weights that the file has, of the same shapes.
#[test]
fn weights_follow_from_hyperparameters() {
    for fixture in Fixture::all() {
        let file = GgufFile::parse(fixture.file(Format::F32)).unwrap();
        let of_file = ModelGraph::from_file(&file).unwrap();
        if of_file.config.architecture.is_encoder() {
            // Only the file says how many types of tokens it has.
            continue;
        }
        let in_layer = |name: &str| match name.strip_prefix("blk.") {
            Some(rest) => rest.split_once('.').map_or(rest, |(_, part)| part).to_owned(),
            None => name.to_owned(),
        };
        let names: Vec<String> = file.tensors().map(|tensor| in_layer(&tensor.name)).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let f16 = |_: &str, _: &[usize]| DType::F16;
        let model = ModelGraph::from_config(of_file.config, of_file.vocabulary, &names, &f16).unwrap();
        let weights = model.types.iter().filter(|(name, _)| model.computed(name).is_none());
        // A norm of one group may be a vector or a matrix of one row.
        let extents = |shape: &mut dyn Iterator<Item = usize>| shape.filter(|n| *n != 1).collect::<Vec<_>>();
        let of = |ty: &TensorType| extents(&mut ty.shape.dims().iter().map(|dim| dim.max_value() as usize));
        let found: BTreeMap<&str, Vec<usize>> = weights.map(|(name, ty)| (name, of(ty))).collect();
        // Divisors of rope's frequencies are no weights of a graph.
        let tensors = file.tensors().filter(|tensor| !tensor.name.starts_with("rope_"));
        let of = |shape: &[usize]| extents(&mut shape.iter().copied());
        let expected: BTreeMap<&str, Vec<usize>> =
            tensors.map(|tensor| (tensor.name.as_str(), of(&tensor.shape))).collect();
        assert_eq!(found, expected, "{}", fixture.name);
    }
}
