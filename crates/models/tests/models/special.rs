//! Weights that are infinite, no numbers, subnormal, or the largest of their type: the device has no NaN and no infinity
//! where the interpreter has none.
//!
//! Kernels must not let such weights into results that do not depend on them: those of experts that are not chosen, keys
//! that are hidden, what an earlier text left in the cache, and what pads a tile. One weight of one tensor is replaced at a
//! time, so that most results stay finite.
//!
//! **The largest numbers of f32 may count as infinity.** The interpreter computes an op in f64 and rounds once; kernels
//! compute in f32, where a sum or a score overflows. So results are compared where the interpreter is finite with the
//! largest number and with infinity in its place.

use std::collections::{HashMap, HashSet};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tallow::{Device, Executable, GraphState, Prepared, Weight};
use tallow_gguf::{Format, GgufFile};
use tallow_ir::{DType, Graph, Op};
use tallow_models::config::Pooling;
use tallow_models::model_graph::{
    EMBEDDING, LOCAL_ROPE_WEIGHT, LOGITS, ModelGraph, POS, ROPE_WEIGHT, Rows, SEQ, TOKENS,
};
use tallow_models::{CacheType, CacheTypes};
use tallow_quant::quantize;

use crate::architectures::{CHUNK, Fixture, Tensor, vulkan};

const SPECIAL: [f32; 10] = [
    f32::INFINITY,
    f32::NEG_INFINITY,
    f32::NAN,
    f32::MAX,
    -f32::MAX,
    // The largest of f16.
    65504.0,
    -65504.0,
    // Subnormal.
    1e-45,
    -1e-39,
    -0.0,
];

/// Where one tensor has a special value.
struct Case {
    /// Number of the element; of blocks, the one whose scale is replaced.
    at: usize,
    value: f32,
}

impl Case {
    /// A value in a row that the fixture's text reads, if it is the embedding, or else in any.
    fn new(fixture: &Fixture, tensor: &Tensor, value: f32, rng: &mut StdRng) -> Case {
        let width = *tensor.shape.last().unwrap();
        let rows = tensor.shape.iter().product::<usize>() / width;
        let row = match &*tensor.name {
            "token_embd.weight" => fixture.tokens[1] as usize,
            _ => rng.random_range(0..rows),
        };
        Case { at: row * width + rng.random_range(0..width), value }
    }

    /// The tensor's bytes with this value in place of its own.
    fn bytes(&self, tensor: &Tensor, format: Format) -> Vec<u8> {
        let mut values = tensor.values();
        if format.is_plain() {
            values[self.at] = self.value;
            return quantize(format, &values).unwrap();
        }
        let mut bytes = quantize(format, &values).unwrap();
        let block = &mut bytes[self.at / format.block_elements() * format.block_bytes()..];
        match format {
            // An exponent alone: the largest, or 0.
            Format::MXFP4 => block[0] = if self.value.abs() < 1.0 { 0 } else { 0xff },
            _ => block[..2].copy_from_slice(&half::f16::from_f32(self.value).to_le_bytes()),
        }
        bytes
    }

    /// The same with infinity in place of the largest number.
    fn overflowed(&self) -> Option<Case> {
        (self.value.abs() == f32::MAX).then_some(Case { at: self.at, value: self.value * 2.0 })
    }
}

/// Graphs of a model on a device.
struct Model {
    device: Device,
    steps: Vec<Prepared>,
    weights: HashMap<String, Weight>,
}

impl Model {
    /// Rows of all tokens, prefill and decode; without `decodes`, prefill alone. Of encoders, the rows.
    fn new(fixture: &Fixture, format: Format, decodes: bool, device: &Device) -> Model {
        let file = GgufFile::parse(fixture.file(format)).unwrap();
        // The graphs of `Fixture::load`, whose kernels other tests compile too.
        let cache = CacheTypes { keys: CacheType::F32, values: CacheType::F32 };
        let model = ModelGraph { cache, ..ModelGraph::from_file(&file).unwrap() };
        let context = model.config.context;
        let is_encoder = fixture.hidden.is_some();
        let mut graphs = vec![];
        if is_encoder || decodes {
            graphs.push(model.embed(Pooling::None, false, CHUNK));
        }
        if !is_encoder {
            graphs.push(model.step(Rows::UpTo(CHUNK), context));
        }
        if !is_encoder && decodes {
            graphs.push(model.step(Rows::One, context));
        }
        let graphs: Vec<Graph> = graphs.into_iter().map(Result::unwrap).collect();
        let name = |op: &Op| if let Op::Weight { name, .. } = op { Some(name.clone()) } else { None };
        let names = graphs.iter().flat_map(Graph::nodes).filter_map(|(_, node)| name(&node.op));
        let weights = names.map(|name| (name.clone(), weight_of(&file, &model, &name, device)));
        let weights = weights.collect();
        let steps = graphs.iter().map(|graph| device.prepare(graph).unwrap()).collect();
        Model { device: device.clone(), steps, weights }
    }

    /// What the graphs compute with another weight `name`, each as one list.
    fn run(&mut self, name: &str, weight: Weight, tokens: &[u32]) -> Vec<Vec<f32>> {
        let replaced = self.weights.insert(name.to_owned(), weight);
        let states: HashMap<String, GraphState> =
            self.steps.iter().flat_map(|step| states(step.graph(), &self.device)).collect();
        let (first, second) = tokens.split_at(tokens.len() / 2);
        let mut found = vec![];
        for step in &self.steps {
            let graph = step.graph();
            let step = step.bind(&self.weights, &states).unwrap();
            match graph.name() {
                "embed" => found.push(run(&step, &[(SEQ, tokens.len())], tokens, EMBEDDING)),
                "prefill" => {
                    // A text, and a shorter one after it, which finds the first one's keys in the cache.
                    found.push(run(&step, &[(POS, 0), (SEQ, tokens.len())], tokens, LOGITS));
                    found.push(run(&step, &[(POS, 0), (SEQ, second.len())], second, LOGITS));
                }
                "decode" => {
                    found.push(run(&step, &[(POS, second.len())], &first[..1], LOGITS));
                    found.push(run(&step, &[(POS, 0)], &second[..1], LOGITS));
                    found.push(run(&step, &[(POS, 1)], &second[1..2], LOGITS));
                }
                other => panic!("a graph {other}"),
            }
        }
        self.weights.extend(replaced.map(|weight| (name.to_owned(), weight)));
        found
    }
}

fn run(step: &Executable, symbols: &[(&str, usize)], tokens: &[u32], output: &str) -> Vec<f32> {
    let symbols: Vec<(&str, u64)> = symbols.iter().map(|(name, value)| (*name, *value as u64)).collect();
    let bytes: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
    let outputs = step.run(&symbols, &[(TOKENS, &bytes)]).unwrap();
    let found = outputs.iter().find(|found| found.name == output).unwrap();
    found.bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

fn states(graph: &Graph, device: &Device) -> HashMap<String, GraphState> {
    let state = |op: &Op| match op {
        Op::State { name, ty } => {
            let extents: Vec<usize> = ty.shape.dims().iter().map(|dim| dim.max_value() as usize).collect();
            Some((name.clone(), device.state(ty.dtype, &extents).unwrap()))
        }
        _ => None,
    };
    graph.nodes().filter_map(|(_, node)| state(&node.op)).collect()
}

fn weight_of(file: &GgufFile, model: &ModelGraph, name: &str, device: &Device) -> Weight {
    let rope = match name {
        ROPE_WEIGHT => Some(&model.rope),
        LOCAL_ROPE_WEIGHT => model.local_rope.as_ref(),
        _ => None,
    };
    if let Some(rope) = rope {
        let bytes: Vec<u8> = rope.per_pair.iter().flat_map(|x| x.to_le_bytes()).collect();
        return device.weight(DType::F32, &[rope.per_pair.len()], &bytes).unwrap();
    }
    let info = file.require(name).unwrap();
    weight(device, info.format().unwrap(), &info.shape, file.tensor_data(info).unwrap())
}

fn weight(device: &Device, format: Format, shape: &[usize], bytes: &[u8]) -> Weight {
    let dtype = match format {
        Format::F32 => DType::F32,
        Format::F16 => DType::F16,
        Format::BF16 => DType::BF16,
        format => DType::Block(format),
    };
    device.weight(dtype, shape, bytes).unwrap()
}

/// How many results are finite, how many there are, and what is wrong.
#[derive(Default)]
struct Found {
    finite: usize,
    all: usize,
    wrong: Vec<String>,
}

/// Compares a model with special values in the tensors that `choose` takes, of their numbers in the file.
fn check(
    fixture: &Fixture,
    format: Format,
    decodes: bool,
    devices: [&Device; 2],
    choose: impl Fn(&Tensor) -> bool,
) -> Found {
    let mut found = Found::default();
    let [mut ours, mut theirs] = devices.map(|device| Model::new(fixture, format, decodes, device));
    let mut rng = StdRng::seed_from_u64(40);
    for (number, tensor) in fixture.tensors.iter().enumerate().filter(|(_, tensor)| choose(tensor)) {
        let format = fixture.format_of(&tensor.name, format);
        let case = Case::new(fixture, tensor, SPECIAL[number % SPECIAL.len()], &mut rng);
        let run = |model: &mut Model, case: &Case| {
            let weight = weight(&model.device, format, &tensor.shape, &case.bytes(tensor, format));
            model.run(&tensor.name, weight, &fixture.tokens)
        };
        let (ours, expected) = (run(&mut ours, &case), run(&mut theirs, &case));
        let overflowed = case.overflowed().map(|case| run(&mut theirs, &case));
        for (step, (ours, expected)) in ours.iter().zip(&expected).enumerate() {
            let is_finite = |at: usize| {
                expected[at].is_finite() && overflowed.as_ref().is_none_or(|all| all[step][at].is_finite())
            };
            let finite: Vec<usize> = (0..expected.len()).filter(|at| is_finite(*at)).collect();
            let wrong = finite.iter().filter(|at| !ours[**at].is_finite()).count();
            if wrong > 0 {
                let Fixture { name, .. } = fixture;
                let Case { at, value } = case;
                let of = finite.len();
                let what = format!("{name}, {} of {format:?}, {value:e} at {at}, run {step}", tensor.name);
                found.wrong.push(format!("{what}: {wrong} of {of} results are not finite"));
            }
            found.finite += finite.len();
            found.all += expected.len();
        }
    }
    found
}

/// One fixture of each architecture, prefill alone, and few tensors: the embedding, matrices, experts. `TALLOW_FULL=1` takes
/// all tensors of all fixtures, and the graphs of decode steps and of the rows of all tokens.
#[test]
fn special_weights_stay_where_they_are() {
    let Some(device) = vulkan() else { return };
    let is_full = std::env::var("TALLOW_FULL").is_ok_and(|v| v == "1");
    let (mut found, mut known) = (Found::default(), HashSet::new());
    for (number, fixture) in Fixture::all().iter().enumerate() {
        if !is_full && !known.insert(fixture.architecture().to_owned()) {
            continue;
        }
        let formats: &[Format] = match (is_full, &*fixture.name) {
            (true, "gpt-oss") => &[Format::F32, Format::MXFP4],
            (true, _) => &[Format::F32, Format::Q8_0],
            (false, _) if number.is_multiple_of(2) => &[Format::F32],
            (false, "gpt-oss") => &[Format::MXFP4],
            (false, _) => &[Format::Q4_0],
        };
        let few = ["token_embd.weight", "output.weight", "blk.1.ffn_down.weight", "blk.1.ffn_up_exps.weight"];
        for format in formats {
            let choose = |tensor: &Tensor| is_full || few.contains(&&*tensor.name);
            let more = check(fixture, *format, is_full, [&device, &Device::Cpu], choose);
            if is_full {
                println!(
                    "{} {format:?}: {} of {} finite; {:#?}",
                    fixture.name, more.finite, more.all, more.wrong
                );
            }
            found.finite += more.finite;
            found.all += more.all;
            found.wrong.extend(more.wrong);
        }
    }
    assert!(found.wrong.is_empty(), "{:#?}", found.wrong);
    assert!(3 * found.finite > found.all, "{} of {} results are finite", found.finite, found.all);
}
