//! Fine-tuning: what a few steps learn, what is learned of examples, and what does not fit.

use std::ops::ControlFlow;
use std::path::Path;

use tallow::{DType, Device, Tensor};
use tallow_chat::Template;
use tallow_gguf::Format;
use tallow_models::train::{
    AdapterType, Data, Examples, FinetuneOptions, Finetuner, LoraConfig, Progress, Shuffled,
};
use tallow_models::{LoadOptions, LoraAdapter, Memory, ModelFile};

use crate::support::nmse;
use crate::tiny::{nano, tiny, values};
use crate::training::{TEXT, devices};

pub fn template() -> Template {
    Template::builtin("chatml").unwrap()
}

fn go_on(_: &Progress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

pub fn options(rank: usize, steps: usize) -> FinetuneOptions {
    FinetuneOptions {
        steps: Some(steps),
        batch: 2,
        context: Some(24),
        learning_rate: 0.02,
        warmup: Some(3),
        save_every: 10,
        ..FinetuneOptions::new(LoraConfig::new(rank))
    }
}

/// Thirty steps learn something, the weights stay blocks, and the file gives the logits that training ended with.
#[test]
fn adapters_learn_on_each_device() {
    for device in devices() {
        let folder = tempfile::tempdir().unwrap();
        let path = tiny(folder.path(), Format::Q4_0);
        let text = folder.path().join("text.txt");
        std::fs::write(&text, TEXT.repeat(20)).unwrap();
        let types =
            if device.is_cpu() { &[AdapterType::F32, AdapterType::BF16][..] } else { &[AdapterType::F32] };
        for adapter_type in types.iter().copied() {
            let out = folder.path().join(format!("{adapter_type:?}.gguf"));
            let model = ModelFile::open(&path).unwrap();
            let mut options = options(8, 30);
            options.lora.adapter_type = adapter_type;
            let mut tuner = Finetuner::open(&model, &text, &template(), options, &out, &device).unwrap();
            let weights =
                tuner.train_step().function().graph().nodes().filter_map(|(_, node)| match &node.op {
                    tallow_ir::Op::Weight { ty, .. } if ty.shape.rank() > 1 => Some(ty.clone()),
                    _ => None,
                });
            let weights: Vec<_> = weights.filter(|ty| ty.shape.max_numel() >= 64 * 32).collect();
            assert!(weights.iter().all(|ty| ty.dtype == DType::Block(Format::Q4_0)), "{weights:?}");
            // Seven matrices in each of two layers, and the embedding.
            assert_eq!(weights.len(), 15);
            tuner.run(&mut go_on).unwrap();
            let losses = tuner.history().losses.clone();
            assert!(losses.len() == 30 && losses[29] < 0.8 * losses[0], "{losses:?}");

            let mut adapted = ModelFile::open(&path).unwrap();
            let adapter = LoraAdapter::open(&out).unwrap();
            assert_eq!((adapter.alpha(), adapter.ranks().count()), (16.0, 14));
            adapted.add_lora(adapter, 1.0).unwrap();
            let prompt = adapted.tokenizer().encode("Once upon", true).unwrap();
            let mut model = adapted.load(&device, &LoadOptions::default(), &mut |_| {}).unwrap();
            let logits = model.feed(&prompt).unwrap();
            let tokens = Tensor::from_vec(prompt.clone(), (1, prompt.len()), &device).unwrap();
            let own = tuner.net().logits(&tokens, 0.0).unwrap().narrow(0, prompt.len() - 1, 1).unwrap();
            // The cache is f16.
            let error = nmse(&logits, &values(&own));
            assert!(error < 1e-5, "{adapter_type:?}: {error:e}");
        }
    }
}

/// On no device do the weights of a step take more memory than those of generation do.
#[test]
fn weights_stay_quantized_on_every_device() {
    let folder = tempfile::tempdir().unwrap();
    let (text, out) = (folder.path().join("text.txt"), folder.path().join("adapter.gguf"));
    std::fs::write(&text, TEXT.repeat(10)).unwrap();
    let model = nano("Q4_K_M");
    let tuner = Finetuner::open(&model, &text, &template(), options(4, 1), &out, &Device::Cpu).unwrap();
    for (name, profile) in tallow::caps::PROFILES {
        let planned = tallow::plan_memory(tuner.train_step().function().graph(), &profile()).unwrap();
        let of_generation =
            Memory::of(model.model_graph(), Some(&profile()), &LoadOptions::default()).unwrap();
        assert!(
            planned.weights <= of_generation.weights + of_generation.weights / 20,
            "{name}: {planned:?} {of_generation:?}"
        );
    }
}

/// The first losses are those of PyTorch from the same weights, adapters and windows: `scripts/finetune_torch.py` prints
/// the fixture. The difference is at most three times that of PyTorch on its CPU and on a GPU.
#[test]
fn losses_are_those_of_pytorch() {
    const STEPS: usize = 15;
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let fixture = std::fs::read(root.join("tests/fixtures/finetune/torch_losses.json")).unwrap();
    let fixture: serde_json::Value = serde_json::from_slice(&fixture).unwrap();
    let losses = |key: &str| -> Vec<f64> {
        fixture[key].as_array().unwrap().iter().map(|loss| loss.as_f64().unwrap()).collect()
    };
    let (cpu, cuda) = (losses("cpu"), losses("cuda"));
    // As in the example `finetune_reference`.
    let options = FinetuneOptions {
        steps: Some(50),
        batch: 2,
        context: Some(64),
        learning_rate: 2e-3,
        warmup: Some(5),
        log_every: 1,
        ..FinetuneOptions::new(LoraConfig::new(8))
    };
    let folder = tempfile::tempdir().unwrap();
    let (model, out) = (nano("Q4_K_M"), folder.path().join("adapter.gguf"));
    let text = root.join("LICENSE-APACHE");
    let mut tuner = Finetuner::open(&model, &text, &template(), options, &out, &Device::Cpu).unwrap();
    let stop = |step| if step == STEPS { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
    tuner.run(&mut |progress| stop(progress.step)).unwrap();
    let gap = cpu.iter().zip(&cuda).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    assert_eq!(tuner.history().losses.len(), STEPS);
    for (step, (ours, theirs)) in tuner.history().losses.iter().zip(&cpu).enumerate() {
        let difference = (f64::from(*ours) - theirs).abs();
        assert!(difference <= 3.0 * gap, "step {step}: {ours} {theirs}, {gap:e} on a GPU");
    }
}

/// What is learned of examples: completions, the assistant's messages, and the tokens that end them.
#[test]
fn completions_alone_are_learned() {
    let folder = tempfile::tempdir().unwrap();
    let model = ModelFile::open(tiny(folder.path(), Format::F32)).unwrap();
    let tokenizer = model.tokenizer();
    let lines = [
        r#"{"prompt": "Who? ", "completion": "Me.", "id": 3}"#,
        r#"{"messages": [{"role": "user", "content": "A"}, {"role": "assistant", "content": "B"},
            {"role": "user", "content": "C"}, {"role": "assistant", "content": "D"}]}"#,
    ];
    let learned = |line: &str, context: usize| {
        let path = folder.path().join("data.jsonl");
        std::fs::write(&path, format!("\n{}\n\n", line.replace('\n', ""))).unwrap();
        let examples = Examples::read(&path, tokenizer, &template()).unwrap();
        let longest = examples.longest();
        let mut shuffled = Shuffled::new(examples.fit(context, &path).unwrap(), context, 1, 1);
        let batch = shuffled.batch(0);
        let seen: Vec<u32> = batch.tokens.iter().skip(1).chain(batch.targets.last()).copied().collect();
        assert_eq!(seen, batch.targets);
        let learned = batch.targets.iter().zip(&batch.weights).filter(|(_, weight)| **weight == 1.0);
        let ids: Vec<u32> = learned.map(|(id, _)| *id).collect();
        (longest, tokenizer.decode(&ids), ids.last().copied())
    };
    // Nine bytes after the token that begins a text.
    assert_eq!(learned(lines[0], 12), (9, "Me.".into(), tokenizer.eos()));
    assert_eq!(learned(lines[0], 8), (9, "Me.".into(), Some(u32::from(b'.') + 3)));
    let (_, text, last) = learned(lines[1], 200);
    assert_eq!((text.as_str(), last), ("B<|im_end|>\nD<|im_end|>\n", tokenizer.eos()));
}

/// Each pass has all examples, in an order of its own.
#[test]
fn passes_have_all_examples() {
    let folder = tempfile::tempdir().unwrap();
    let model = ModelFile::open(tiny(folder.path(), Format::F32)).unwrap();
    let path = folder.path().join("data.jsonl");
    let line =
        |i: usize| format!("{{\"prompt\": \"x\", \"completion\": \"{}\"}}\n", (b'a' + i as u8) as char);
    std::fs::write(&path, (0..6).map(line).collect::<String>()).unwrap();
    let examples = Examples::read(&path, model.tokenizer(), &template()).unwrap().fit(4, &path).unwrap();
    let mut shuffled = Shuffled::new(examples, 4, 2, 1);
    let mut pass = |number: usize| -> Vec<u32> {
        let of_step = |step| shuffled.batch(step).targets.chunks(4).map(|row| row[1]).collect::<Vec<_>>();
        (3 * number..3 * number + 3).flat_map(of_step).collect()
    };
    let (first, second) = (pass(0), pass(1));
    assert_ne!(first, second);
    assert_eq!(first, pass(0));
    for mut order in [first, second] {
        order.sort_unstable();
        assert_eq!(order, (0..6).map(|i| u32::from(b'a') + i + 3).collect::<Vec<_>>());
    }
}

#[test]
fn data_and_options_that_do_not_fit_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let model = ModelFile::open(tiny(folder.path(), Format::Q4_0)).unwrap();
    let at = |name: &str| folder.path().join(name);
    let refused = |name: &str, data: &str, options: FinetuneOptions, out: &Path| {
        std::fs::write(at(name), data).unwrap();
        match Finetuner::open(&model, &at(name), &template(), options, out, &Device::Cpu) {
            Ok(_) => panic!("it was taken"),
            Err(error) => error.to_string(),
        }
    };
    let out = at("adapter.gguf");
    for (data, says) in [
        ("", "data.jsonl: it has no examples"),
        ("\n{\"text\": 1}\n", "line 2: it has neither a list of messages nor"),
        ("{", "line 1: EOF"),
        ("{\"prompt\": \"a\", \"completion\": \"\"}", "line 1: the completion is empty"),
        ("{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}", "no message of the assistant"),
        ("{\"messages\": 3}", "line 1: "),
    ] {
        let error = refused("data.jsonl", data, options(4, 1), &out);
        assert!(error.contains(says), "{error}");
    }
    let long = format!("{{\"prompt\": \"{}\", \"completion\": \"b\"}}", "a".repeat(40));
    let error = refused("data.jsonl", &long, options(4, 1), &out);
    assert!(error.ends_with("no example has a token to learn within a context of 24"), "{error}");
    let error = refused("text.txt", "short", options(4, 1), &out);
    assert!(error.starts_with("the text has 7 tokens, at least 25"), "{error}");
    let text = TEXT.repeat(3);
    let with = |change: &dyn Fn(&mut FinetuneOptions)| {
        let mut options = options(4, 1);
        change(&mut options);
        refused("text.txt", &text, options, &out)
    };
    assert_eq!(
        with(&|o| o.context = Some(500)),
        "a context of 500 tokens was asked for; this model has 1 to 128"
    );
    assert_eq!(with(&|o| o.batch = 0), "batch: it must not be 0");
    assert_eq!(with(&|o| o.learning_rate = f64::NAN), "learning rate: NaN is not a positive number");
    assert!(with(&|o| o.lora.rank = 0).starts_with("rank: 0 is not from 1 to 64, which blk.0.attn_q.weight"));
    assert!(with(&|o| o.lora.rank = 65).starts_with("rank: 65 is not from 1 to 64"));
    assert_eq!(with(&|o| o.lora.targets = vec![]), "targets: there are none");
    assert_eq!(with(&|o| o.lora.alpha = 0.0), "alpha: 0 is not a positive number");
    let error = refused("text.txt", &text, options(4, 1), &at("none/adapter.gguf"));
    assert!(error.starts_with("cannot write "), "{error}");
    let error = refused("text.txt", &text, options(4, 1), &at("tiny-q4_0.gguf"));
    assert!(error.ends_with("tiny-q4_0.gguf is the model"), "{error}");
    let error = refused("text.txt", &text, options(4, 1), &at("text.txt"));
    assert!(error.ends_with("text.txt is the data"), "{error}");
    assert!(!out.exists());
}

/// A step's numbers that are none stop the training; the adapter before it remains.
#[test]
fn losses_that_are_no_numbers_stop_the_training() {
    let folder = tempfile::tempdir().unwrap();
    let model = ModelFile::open(tiny(folder.path(), Format::Q4_0)).unwrap();
    let (text, out) = (folder.path().join("text.txt"), folder.path().join("adapter.gguf"));
    std::fs::write(&text, TEXT.repeat(3)).unwrap();
    let options = FinetuneOptions { save_every: 2, ..options(4, 9) };
    let mut tuner = Finetuner::open(&model, &text, &template(), options.clone(), &out, &Device::Cpu).unwrap();
    assert!(matches!(tuner.data(), Data::Text(_)));
    let var = tuner.net().adapters().next().unwrap().vars()[0].clone();
    let bad = Tensor::full(f32::NAN, var.dims().to_vec(), &Device::Cpu).unwrap();
    let mut written = vec![];
    let result = tuner.run(&mut |progress| {
        if progress.step == 2 {
            written = std::fs::read(&out).unwrap();
            var.set(&bad).unwrap();
        }
        ControlFlow::Continue(())
    });
    let error = result.unwrap_err().to_string();
    assert!(error.starts_with("the loss of step 3 is not finite; the checkpoint of step 2 is"), "{error}");
    assert!(!written.is_empty() && written == std::fs::read(&out).unwrap());
    // The checkpoint of step 2 remains, too.
    let again = Finetuner::open(&model, &text, &template(), options, &out, &Device::Cpu).unwrap();
    assert_eq!(again.position(), (2, 9));
}
