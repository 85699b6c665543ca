//! The llama graph against a plain f64 forward pass written here, on small random models with what the
//! stored models lack: biases, an output projection of its own, heads whose keys and values differ in
//! length, rope over a part of the head, and rope scaling.

use std::cell::RefCell;
use std::collections::HashMap;

use crate::support::{models, nmse};
use half::f16;
use tallow::Device;
use tallow_gguf::{Format, GgufFile, GgufWriter, Metadata, TensorSpec, Value};
use tallow_models::train::{LoraConfig, Net};
use tallow_models::{LoadOptions, ModelFile};

const VOCABULARY: usize = 50;
const LAYERS: usize = 2;
const WIDTH: usize = 48;
const HEADS: usize = 6;
const KV_HEADS: usize = 2;
const KEY: usize = 12;
const VALUE: usize = 10;
const FEED: usize = 40;
const ROPE: usize = 8;
const BASE: f64 = 500.0;
const EPSILON: f64 = 1e-5;

type Tensors = HashMap<String, (Vec<usize>, Vec<f32>)>;

/// Numbers from -1 to 1, the same for the same name (splitmix64).
fn random(name: &str, count: usize) -> Vec<f32> {
    let mut state = name.bytes().fold(7u64, |h, b| h.wrapping_mul(31).wrapping_add(b.into()));
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

fn tensors(biases: bool, output: bool) -> Tensors {
    let mut all = Tensors::new();
    let mut add = |name: &str, shape: &[usize]| {
        all.insert(name.into(), (shape.to_vec(), random(name, shape.iter().product())));
    };
    add("token_embd.weight", &[VOCABULARY, WIDTH]);
    add("output_norm.weight", &[WIDTH]);
    if output {
        add("output.weight", &[VOCABULARY, WIDTH]);
    }
    for i in 0..LAYERS {
        add(&format!("blk.{i}.attn_norm.weight"), &[WIDTH]);
        add(&format!("blk.{i}.ffn_norm.weight"), &[WIDTH]);
        for (part, out, width) in [
            ("attn_q", HEADS * KEY, WIDTH),
            ("attn_k", KV_HEADS * KEY, WIDTH),
            ("attn_v", KV_HEADS * VALUE, WIDTH),
            ("attn_output", WIDTH, HEADS * VALUE),
            ("ffn_gate", FEED, WIDTH),
            ("ffn_up", FEED, WIDTH),
            ("ffn_down", WIDTH, FEED),
        ] {
            add(&format!("blk.{i}.{part}.weight"), &[out, width]);
            if biases {
                add(&format!("blk.{i}.{part}.bias"), &[out]);
            }
        }
    }
    all
}

/// The model as a file; its tokenizer is nano's, which these tests do not use.
fn file(tensors: &Tensors, changes: &[(&str, Value)]) -> ModelFile {
    let nano = GgufFile::open(models().join("storyteller-nano-f16.gguf")).unwrap();
    let mut metadata: Metadata = nano.metadata().clone();
    for (key, value) in [
        ("block_count", LAYERS),
        ("embedding_length", WIDTH),
        ("attention.head_count", HEADS),
        ("attention.head_count_kv", KV_HEADS),
        ("attention.key_length", KEY),
        ("attention.value_length", VALUE),
        ("feed_forward_length", FEED),
        ("rope.dimension_count", ROPE),
        ("context_length", 64),
    ] {
        metadata.insert(format!("llama.{key}"), Value::U32(value as u32));
    }
    metadata.insert("llama.rope.freq_base", Value::F32(BASE as f32));
    for (key, value) in changes {
        metadata.insert(*key, value.clone());
    }
    let spec = |(name, (shape, _)): (&String, &(Vec<usize>, Vec<f32>))| TensorSpec {
        name: name.clone(),
        shape: shape.clone(),
        format: Format::F32,
    };
    let mut bytes = Vec::new();
    let mut writer = GgufWriter::create(&mut bytes, &metadata, tensors.iter().map(spec).collect()).unwrap();
    for (name, (_, values)) in tensors {
        let data: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        writer.tensor(name, &data).unwrap();
    }
    writer.finish().unwrap();
    ModelFile::new(GgufFile::parse(bytes).unwrap()).unwrap()
}

thread_local! {
    /// Sums of the squares of what was multiplied with each weight in this thread, which is this test.
    static SQUARES: RefCell<HashMap<String, Vec<f64>>> = RefCell::default();
}

/// `w x + b`.
fn linear(t: &Tensors, name: &str, x: &[f64]) -> Vec<f64> {
    SQUARES.with_borrow_mut(|all| {
        let sums = all.entry(format!("{name}.weight")).or_insert_with(|| vec![0.0; x.len()]);
        sums.iter_mut().zip(x).for_each(|(sum, x)| *sum += x * x);
    });
    let (shape, w) = &t[&format!("{name}.weight")];
    let bias = t.get(&format!("{name}.bias"));
    let row = |i: usize| {
        let products = w[i * x.len()..].iter().zip(x).map(|(w, x)| f64::from(*w) * x);
        products.sum::<f64>() + bias.map_or(0.0, |(_, b)| f64::from(b[i]))
    };
    (0..shape[0]).map(row).collect()
}

fn norm(t: &Tensors, name: &str, x: &[f64]) -> Vec<f64> {
    let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
    let (_, w) = &t[&format!("{name}.weight")];
    x.iter().zip(w).map(|(x, w)| x / (mean + EPSILON).sqrt() * f64::from(*w)).collect()
}

/// Rotates the pairs of each head in place.
fn rope(x: &mut [f64], position: usize, frequency: &[f64], magnitude: f64) {
    for head in x.chunks_mut(KEY) {
        for (pair, f) in frequency.iter().enumerate() {
            let (sin, cos) = (position as f64 * f).sin_cos();
            let (a, b) = (head[2 * pair], head[2 * pair + 1]);
            head[2 * pair] = (a * cos - b * sin) * magnitude;
            head[2 * pair + 1] = (a * sin + b * cos) * magnitude;
        }
    }
}

/// A number in the cache, which is f16.
fn to_f16(x: f64) -> f64 {
    f16::from_f64(x).to_f64()
}

/// The logits after `tokens`. `cached` are keys and values as attention sees them.
fn naive(t: &Tensors, tokens: &[u32], frequency: &[f64], magnitude: f64, cached: fn(f64) -> f64) -> Vec<f64> {
    let embedding = &t["token_embd.weight"].1;
    let mut rows: Vec<Vec<f64>> = tokens
        .iter()
        .map(|id| embedding[*id as usize * WIDTH..][..WIDTH].iter().map(|x| f64::from(*x)).collect())
        .collect();
    let rounded = |v: Vec<f64>| -> Vec<f64> { v.into_iter().map(cached).collect() };
    for i in 0..LAYERS {
        let part = |name: &str| format!("blk.{i}.{name}");
        let (mut keys, mut values) = (vec![], vec![]);
        for (position, x) in rows.iter_mut().enumerate() {
            let h = norm(t, &part("attn_norm"), x);
            let mut q = linear(t, &part("attn_q"), &h);
            let mut k = linear(t, &part("attn_k"), &h);
            rope(&mut q, position, frequency, magnitude);
            rope(&mut k, position, frequency, magnitude);
            keys.push(rounded(k));
            values.push(rounded(linear(t, &part("attn_v"), &h)));
            let mut mixed = vec![];
            for head in 0..HEADS {
                let group = head / (HEADS / KV_HEADS);
                let score = |k: &Vec<f64>| {
                    let dot: f64 =
                        q[head * KEY..][..KEY].iter().zip(&k[group * KEY..]).map(|(q, k)| q * k).sum();
                    (dot / (KEY as f64).sqrt()).exp()
                };
                let weights: Vec<f64> = keys.iter().map(score).collect();
                let total: f64 = weights.iter().sum();
                let element = |e: usize| {
                    let sum: f64 = weights.iter().zip(&values).map(|(w, v)| w * v[group * VALUE + e]).sum();
                    sum / total
                };
                mixed.extend((0..VALUE).map(element));
            }
            add(x, &linear(t, &part("attn_output"), &mixed));
            let h = norm(t, &part("ffn_norm"), x);
            let gate = linear(t, &part("ffn_gate"), &h);
            let up = linear(t, &part("ffn_up"), &h);
            let product: Vec<f64> = gate.iter().zip(&up).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect();
            add(x, &linear(t, &part("ffn_down"), &product));
        }
    }
    let last = norm(t, "output_norm", rows.last().unwrap());
    linear(t, if t.contains_key("output.weight") { "output" } else { "token_embd" }, &last)
}

fn add(x: &mut [f64], y: &[f64]) {
    x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
}

fn check(tensors: &Tensors, changes: &[(&str, Value)], frequency: &[f64], magnitude: f64) {
    let tokens: Vec<u32> = (0..13).map(|i| i * 17 % VOCABULARY as u32).collect();
    let expected = |cached: fn(f64) -> f64| -> Vec<f32> {
        naive(tensors, &tokens, frequency, magnitude, cached).into_iter().map(|x| x as f32).collect()
    };
    for chunk in [64, 5] {
        let options = LoadOptions { chunk: Some(chunk), ..LoadOptions::default() };
        let mut model = file(tensors, changes).load(&Device::Cpu, &options, &mut |_| {}).unwrap();
        let (most, last) = tokens.split_at(tokens.len() - 1);
        model.feed(most).unwrap();
        let error = nmse(&model.feed(last).unwrap(), &expected(to_f16));
        // f32 against f64, and now and then a key that rounds the other way in f16.
        assert!(error < 1e-8, "nmse {error:e} with {changes:?}");
    }
    // The decoder that is fine-tuned computes the same, without a cache.
    let net = Net::adapted(&file(tensors, changes), &LoraConfig::new(2), &Device::Cpu).unwrap();
    let text = tallow::Tensor::from_vec(tokens.clone(), (1, 13), &Device::Cpu).unwrap();
    let logits = net.logits(&text, 0.0).unwrap().narrow(0, 12, 1).unwrap().flatten_all().unwrap();
    let error = nmse(&logits.to_vec1::<f32>().unwrap(), &expected(|x| x));
    assert!(error < 1e-8, "nmse {error:e} with {changes:?}");
}

fn plain() -> Vec<f64> {
    (0..ROPE / 2).map(|pair| BASE.powf(-2.0 * pair as f64 / ROPE as f64)).collect()
}

#[test]
fn optional_tensors_are_used() {
    for (biases, output) in [(false, false), (true, false), (false, true), (true, true)] {
        check(&tensors(biases, output), &[], &plain(), 1.0);
    }
}

#[test]
fn linear_scaling_divides_every_frequency() {
    let changes = [
        ("llama.rope.scaling.type", Value::String("linear".into())),
        ("llama.rope.scaling.factor", Value::F32(4.0)),
    ];
    let quarter: Vec<f64> = plain().iter().map(|f| f / 4.0).collect();
    check(&tensors(false, false), &changes, &quarter, 1.0);
}

#[test]
fn a_table_divides_each_frequency() {
    let mut with_table = tensors(false, true);
    let divisors = [1.0f32, 1.5, 4.0, 8.0];
    with_table.insert("rope_freqs.weight".into(), (vec![ROPE / 2], divisors.to_vec()));
    let divided: Vec<f64> = plain().iter().zip(divisors).map(|(f, d)| f / f64::from(d)).collect();
    check(&with_table, &[], &divided, 1.0);
}

/// With 32 and 1 turns within 64 positions, `8 ln(64 / (turns * 2 pi)) / (2 ln 500)` is -0.74 and 1.49, so
/// the ramp runs from pair 0 to pair 2.
#[test]
fn yarn_blends_frequencies_and_scales_queries_and_keys() {
    let changes = [
        ("llama.rope.scaling.type", Value::String("yarn".into())),
        ("llama.rope.scaling.factor", Value::F32(4.0)),
        ("llama.rope.scaling.original_context_length", Value::U32(64)),
        ("llama.rope.scaling.attn_factor", Value::F32(1.25)),
    ];
    let blend = [1.0, 0.5 + 0.5 / 4.0, 0.25, 0.25];
    let blended: Vec<f64> = plain().iter().zip(blend).map(|(f, b)| f * b).collect();
    check(&tensors(false, false), &changes, &blended, 1.25 * (1.0 + 0.1 * 4f64.ln()));
}

/// Two texts, each of its own; the rows of the first are not those of the second.
#[test]
fn inputs_of_every_product_are_measured() {
    for output in [false, true] {
        let tensors = tensors(true, output);
        let texts: [Vec<u32>; 2] = [(0..13).map(|i| i * 17 % 50).collect(), vec![3, 1, 4, 1, 5]];
        let mut measurement = file(&tensors, &[]).measure_inputs(&Device::Cpu, 16, &mut |_| {}).unwrap();
        SQUARES.take();
        for text in &texts {
            naive(&tensors, text, &plain(), 1.0, to_f16);
            measurement.feed(text).unwrap();
        }
        assert_eq!(measurement.tokens(), 18);
        let mut expected = SQUARES.take();
        expected.retain(|name, _| name.starts_with("blk."));
        assert_eq!(measurement.sums().count(), 7 * LAYERS);
        for (name, sums) in measurement.sums() {
            let expected: Vec<f32> = expected[name].iter().map(|x| *x as f32).collect();
            let sums: Vec<f32> = sums.iter().map(|x| *x as f32).collect();
            let error = nmse(&sums, &expected);
            // As of the logits: f32 against f64, and keys that round the other way.
            assert!(error < 1e-8, "{name}: nmse {error:e}");
        }
        for bad in [vec![], vec![0; 17], vec![50]] {
            assert!(measurement.feed(&bad).is_err());
        }
    }
    for chunk in [0, 65] {
        assert!(file(&tensors(false, false), &[]).measure_inputs(&Device::Cpu, chunk, &mut |_| {}).is_err());
    }
}
