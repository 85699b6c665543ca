//! Adapters: what they compute, their gradients, and that files fit their models.

use std::collections::HashMap;

use tallow::{DType, Device, Tensor, Var};
use tallow_gguf::{Format, GgufFile, Metadata, TensorSpec, Value};
use tallow_models::train::{LoraConfig, Net, Target, from_gguf};
use tallow_models::{LoadOptions, LoraAdapter, ModelFile};

use crate::support::{MAX_NMSE, expected, nmse, nmse_of_logits};
use crate::tiny::{adapter_of, change, in_format, nano, tiny, values};
use crate::training::TEXT;

/// As long as `B` is 0, the logits are the model's, in training and in generation.
#[test]
fn an_adapter_without_effect_changes_nothing() {
    for name in ["Q4_K_M", "f16"] {
        let file = nano(name);
        let net = Net::adapted(&file, &LoraConfig::new(4), &Device::Cpu).unwrap();
        assert_eq!((net.adapters().count(), net.vars().count(), net.parameters()), (28, 0, 77824));
        let row = &expected(&format!("storyteller-nano-{name}"))[0];
        let tokens = Tensor::from_vec(row.tokens.clone(), (1, row.tokens.len()), &Device::Cpu).unwrap();
        let logits = net.logits(&tokens, 0.0).unwrap();
        let last = values(&logits.narrow(0, row.tokens.len() - 1, 1).unwrap());
        assert!(nmse_of_logits(&last, row) < MAX_NMSE, "{name}");

        let mut adapted = nano(name);
        adapted.add_lora(adapter_of(&net, 8.0), 1.0).unwrap();
        let logits = |file: ModelFile| {
            let mut model = file.load(&Device::Cpu, &LoadOptions::default(), &mut |_| {}).unwrap();
            model.feed(&row.tokens).unwrap()
        };
        assert_eq!(logits(adapted), logits(file));
    }
}

/// Rows of a weight in the order of Hugging Face's files, from those of a GGUF file, whose rope pairs neighbours.
fn to_halves(rows: &[f32], heads: usize, width: usize) -> Vec<f32> {
    let length = rows.len() / width / heads;
    let of = |row: usize| {
        let (head, at) = (row / length, row % length);
        let from = head * length + at % (length / 2) * 2 + at / (length / 2);
        rows[from * width..][..width].to_vec()
    };
    (0..heads * length).flat_map(of).collect()
}

/// `d/dB = scale dW A^T` and `d/dA = scale B^T dW`, where `dW` is the gradient of the merged weights of a decoder that is
/// trained as a whole.
#[test]
fn gradients_are_those_of_merged_weights() {
    let file = nano("Q4_K_M");
    let config = LoraConfig { alpha: 6.0, ..LoraConfig::new(4) };
    let net = Net::adapted(&file, &config, &Device::Cpu).unwrap();
    change(&net);
    let adapter = adapter_of(&net, config.alpha);
    let gguf = GgufFile::open(tallow_testmodels::model("storyteller-nano-Q4_K_M")).unwrap();
    adapter.check(&gguf).unwrap();
    let updates: HashMap<String, Vec<f32>> =
        adapter.ranks().map(|(name, _)| (name.to_owned(), adapter.update(name, 1.0).unwrap())).collect();
    let merged = GgufFile::parse(in_format(&gguf, Format::F32, &updates)).unwrap();
    let (sizes, tensors) = from_gguf(&merged).unwrap();
    let whole = Net::from_tensors(&sizes, &tensors, &Device::Cpu).unwrap();

    let ids = file.tokenizer().encode(&TEXT.repeat(2), true).unwrap();
    let of = |from: usize| Tensor::from_slice(&ids[from..from + 24], (2, 12), &Device::Cpu).unwrap();
    let (tokens, targets) = (of(0), of(1));
    let ones = Tensor::ones((2, 12), DType::F32, &Device::Cpu).unwrap();
    let loss = net.weighted_loss(&tokens, &targets, &ones).unwrap();
    let expected = whole.loss(&tokens, &targets, 0.0).unwrap();
    let (got, other) = (loss.to_scalar::<f32>().unwrap(), expected.to_scalar::<f32>().unwrap());
    assert!((got - other).abs() < 1e-5 * other, "{got} {other}");
    let (grads, of_whole) = (loss.backward().unwrap(), expected.backward().unwrap());
    let vars: HashMap<&str, &Var> = whole.vars().collect();
    // In one evaluation each, or the forward pass would be computed for each of them.
    let all: Vec<&Tensor> = net.adapters().flat_map(|a| a.vars()).filter_map(|var| grads.get(var)).collect();
    tallow::eval(&all).unwrap();
    let all: Vec<&Tensor> = vars.values().filter_map(|var| of_whole.get(var)).collect();
    tallow::eval(&all).unwrap();
    let names = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"];
    let scale = config.alpha / config.rank as f64;
    for (number, adapter) in net.adapters().enumerate() {
        let (layer, part) = (number / 7, names[number % 7]);
        let block = if number % 7 < 4 { "self_attn" } else { "mlp" };
        let whole = vars[format!("model.layers.{layer}.{block}.{part}.weight").as_str()];
        let [a, b] = adapter.vars();
        let d_whole = of_whole.get(whole).unwrap();
        // Rows of `B` are in the order of the file.
        let (mut b_rows, mut d_b) = (values(b), values(grads.get(b).unwrap()));
        let heads = [4, 2].get(number % 7).copied();
        if let Some(heads) = heads {
            b_rows = to_halves(&b_rows, heads, config.rank);
            d_b = to_halves(&d_b, heads, config.rank);
        }
        let b_rows = Tensor::from_vec(b_rows, b.dims().to_vec(), &Device::Cpu).unwrap();
        let from_whole = |x: &Tensor, y: &Tensor| values(&x.matmul(y).unwrap().affine(scale, 0.0).unwrap());
        let expected_b = from_whole(d_whole, &a.t().unwrap());
        let expected_a = from_whole(&b_rows.t().unwrap().contiguous().unwrap(), d_whole);
        let name = adapter.weight();
        assert!(nmse(&d_b, &expected_b) < 1e-8, "{name}: {:e}", nmse(&d_b, &expected_b));
        let error = nmse(&values(grads.get(a).unwrap()), &expected_a);
        assert!(error < 1e-8, "{name}: {error:e}");
    }
}

/// The scale of an adapter counts, and adapters add up.
#[test]
fn adapters_are_scaled_and_added() {
    let folder = tempfile::tempdir().unwrap();
    let path = tiny(folder.path(), Format::Q8_0);
    let net = Net::adapted(&ModelFile::open(&path).unwrap(), &LoraConfig::new(2), &Device::Cpu).unwrap();
    change(&net);
    let logits = |scales: &[f32]| {
        let mut file = ModelFile::open(&path).unwrap();
        scales.iter().for_each(|scale| file.add_lora(adapter_of(&net, 4.0), *scale).unwrap());
        let mut model = file.load(&Device::Cpu, &LoadOptions::default(), &mut |_| {}).unwrap();
        model.feed(&[5, 80, 90]).unwrap()
    };
    let plain = logits(&[]);
    assert!(nmse(&logits(&[1.0]), &plain) > 1e-4);
    assert!(nmse(&logits(&[1.0, -1.0]), &plain) < 1e-10);
    assert!(nmse(&logits(&[0.5, 0.25, 0.25]), &logits(&[1.0])) < 1e-8);
}

/// Files that are no adapters of the model, each with what is said of it.
#[test]
fn adapters_that_do_not_fit_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = tiny(folder.path(), Format::Q4_0);
    let name = "blk.0.attn_q.weight";
    let refused = |change: &dyn Fn(&mut Metadata), tensors: &[(&str, [usize; 2])]| {
        let mut metadata = Metadata::new();
        for (key, text) in
            [("general.architecture", "llama"), ("general.type", "adapter"), ("adapter.type", "lora")]
        {
            metadata.insert(key, Value::String(text.into()));
        }
        metadata.insert("adapter.lora.alpha", Value::F32(4.0));
        change(&mut metadata);
        let parts = tensors.iter().map(|(end, shape)| {
            let whole = if end.starts_with('.') { format!("{name}{end}") } else { end.to_string() };
            let spec = TensorSpec { name: whole, shape: shape.to_vec(), format: Format::F32 };
            (spec, vec![0; 4 * shape[0] * shape[1]])
        });
        let file = GgufFile::from_parts(metadata, parts).unwrap();
        let mut model = ModelFile::open(&path).unwrap();
        LoraAdapter::new(file).and_then(|adapter| model.add_lora(adapter, 1.0)).unwrap_err().to_string()
    };
    let pair = [(".lora_a", [4, 64]), (".lora_b", [64, 4])];
    let set = |key: &'static str, value: Value| {
        move |metadata: &mut Metadata| {
            metadata.insert(key, value.clone());
        }
    };
    let text = |text: &str| Value::String(text.into());
    let error = refused(&set("general.type", text("model")), &pair);
    assert_eq!(error, "it is no LoRA adapter: general.type is model, not adapter");
    let error = refused(&set("adapter.type", text("other")), &pair);
    assert_eq!(error, "it is no LoRA adapter: adapter.type is other, not lora");
    let error = refused(&set("general.architecture", text("qwen2")), &pair);
    assert_eq!(error, "the adapter is of architecture qwen2, the model of llama");
    let error = refused(&set("adapter.lora.alpha", Value::F32(f32::NAN)), &pair);
    assert_eq!(error, "it is no LoRA adapter: adapter.lora.alpha is NaN");
    let none = |_: &mut Metadata| {};
    assert_eq!(refused(&none, &[]), "it is no LoRA adapter: it has no tensors");
    for (tensors, says) in [
        (vec![pair[0]], "tensor blk.0.attn_q.weight.lora_a has no blk.0.attn_q.weight.lora_b"),
        (vec![pair[1]], "tensor blk.0.attn_q.weight.lora_b has no blk.0.attn_q.weight.lora_a"),
        (vec![pair[0], (".lora_b", [64, 3])], "lora_b of shape [64, 3] are no pair"),
        (vec![(".lora_a", [4, 32]), pair[1]], "do not fit the model's blk.0.attn_q.weight of shape [64, 64]"),
        (vec![pair[0], (".lora_b", [32, 4])], "do not fit the model's blk.0.attn_q.weight of shape [64, 64]"),
        (vec![("other", [4, 4])], "tensor other is neither a .lora_a nor a .lora_b"),
        (
            vec![("token_embd.weight.lora_a", [4, 64]), ("token_embd.weight.lora_b", [259, 4])],
            "adapts no weight of the model that can have an adapter",
        ),
    ] {
        let error = refused(&none, &tensors);
        assert!(error.contains(says), "{error}");
    }
    let mut model = ModelFile::open(&path).unwrap();
    let net = Net::adapted(&model, &LoraConfig::new(2), &Device::Cpu).unwrap();
    let error = model.add_lora(adapter_of(&net, 1.0), f32::INFINITY).unwrap_err().to_string();
    assert_eq!(error, "the adapter's scale is inf, it must be a finite number");
}

/// The same seed gives the same adapters, whatever else is adapted.
#[test]
fn adapters_begin_as_the_seed_says() {
    let folder = tempfile::tempdir().unwrap();
    let model = ModelFile::open(tiny(folder.path(), Format::F32)).unwrap();
    let first = |config: &LoraConfig| {
        let net = Net::adapted(&model, config, &Device::Cpu).unwrap();
        let [a, b] = net.adapters().last().unwrap().vars();
        assert!(values(b).iter().all(|b| *b == 0.0));
        values(a)
    };
    let plain = LoraConfig::new(4);
    let a = first(&plain);
    // Uniform within 1 / sqrt(128).
    let bound = 1.0 / 128f32.sqrt();
    assert!(a.iter().all(|a| a.abs() <= bound) && a.iter().any(|a| *a > 0.9 * bound));
    assert!(a.iter().sum::<f32>().abs() < 0.1 * bound * a.len() as f32);
    assert_eq!(a, first(&LoraConfig { targets: vec![Target::Down], ..plain.clone() }));
    assert_ne!(a, first(&LoraConfig { seed: 2, ..plain }));
}
