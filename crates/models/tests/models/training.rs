//! Training: the decoder against stored logits, what a few steps do, and that a resumed training is the same to the bit.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use serde_json::json;
use tallow::{DType, Device, Tensor};
use tallow_gguf::GgufFile;
use tallow_models::generate::{GenerateOptions, generate};
use tallow_models::train::{CHECKPOINT, EXPORTED, Net, Plan, Trainer, from_gguf};
use tallow_models::{LoadOptions, ModelFile, SamplingOptions};

use crate::support::{MAX_NMSE, expected, nmse, nmse_of_logits};

/// The sequence of random draws is the process's, so one training runs at a time.
static ALONE: Mutex<()> = Mutex::new(());

/// A text that repeats itself, so that few steps learn something.
pub const TEXT: &str =
    "Once upon a time there was a miller who had three sons, a mill, a donkey and a cat.\n";

/// Writes a tokenizer whose tokens are the bytes, and three control tokens.
pub fn write_tokenizer(path: &Path) {
    // As in GPT-2: printable bytes are themselves, the others are the characters from 256 on.
    let printable = |byte: u32| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    let mut others = 256..;
    let mut vocab = serde_json::Map::new();
    for byte in 0..256u32 {
        let code = if printable(byte) { byte } else { others.next().unwrap() };
        vocab.insert(char::from_u32(code).unwrap().to_string(), (byte + 3).into());
    }
    let control = ["<|begin_of_text|>", "<|end_of_text|>", "<|pad|>"];
    let added: Vec<_> =
        control.iter().enumerate().map(|(id, text)| json!({"id": id, "content": text})).collect();
    let model = json!({"type": "BPE", "vocab": vocab, "merges": []});
    let file = json!({
        "added_tokens": added, "model": model, "normalizer": null, "pre_tokenizer": {"type": "ByteLevel"},
    });
    std::fs::write(path, file.to_string()).unwrap();
}

/// A training of the smallest preset in `folder`; `more` are lines of its table `training`.
pub fn plan(folder: &Path, out: &str, more: &str) -> Plan {
    write_tokenizer(&folder.join("tokenizer.json"));
    std::fs::write(folder.join("text.txt"), TEXT.repeat(40)).unwrap();
    let text = format!(
        "preset = \"test\"\ntext = \"text.txt\"\ntokenizer = \"tokenizer.json\"\nout = \"{out}\"\n\
         [model]\nvocab_size = 259\n\
         [training]\nbatch = 2\ncontext = 24\nsteps = 30\nvalidate_every = 10\nvalidation_windows = 2\n{more}\n"
    );
    Plan::parse(&text, folder).unwrap()
}

fn go_on(_: &tallow_models::train::Progress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// Trains to the end, or to a step, after which it stops with a checkpoint.
fn train(plan: Plan, device: &Device, resume: bool, until: usize) -> Trainer {
    let mut trainer = Trainer::open(plan, device, resume).unwrap();
    let stop = |step| if step >= until { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
    trainer.run(&mut |progress| stop(progress.step)).unwrap();
    trainer
}

fn checkpoint(folder: &Path, out: &str) -> Vec<u8> {
    std::fs::read(folder.join(out).join(CHECKPOINT)).unwrap()
}

/// The interpreter and, where there is one, a Vulkan device.
pub fn devices() -> Vec<Device> {
    [Some(Device::Cpu), Device::best_vulkan().ok()].into_iter().flatten().collect()
}

/// In bfloat16, products are rounded, and losses are close to those in f32.
#[test]
fn losses_in_bf16_are_close() {
    let _alone = ALONE.lock();
    let folder = tempfile::tempdir().unwrap();
    let losses = |precision: &str| {
        let plan = plan(folder.path(), precision, &format!("precision = \"{precision}\""));
        let trainer = train(plan, &Device::Cpu, false, 12);
        let text = trainer.train_step().function().graph().to_string();
        assert_eq!(text.contains("bf16["), precision == "bf16");
        trainer.history().losses.clone()
    };
    let (single, half) = (losses("f32"), losses("bf16"));
    assert_ne!(single, half);
    for (single, half) in single.iter().zip(&half) {
        assert!((single - half).abs() < 0.01 * single, "{single} and {half}");
    }
}

/// With less memory for activations, kernels run again, and losses are the same.
#[test]
fn a_step_fits_the_memory_for_activations() {
    let _alone = ALONE.lock();
    let Some(device) = Device::best_vulkan().ok() else { return };
    let folder = tempfile::tempdir().unwrap();
    let text = |trainer: &Trainer| trainer.train_step().function().explain().unwrap();
    // Windows of so many tokens that activations take more than gradients.
    let of = |out: &str, more: &str| {
        let mut plan = plan(folder.path(), out, more);
        (plan.options.batch, plan.options.context) = (6, 96);
        plan
    };
    let once = train(of("once", ""), &device, false, 2);
    let arena = text(&once)
        .lines()
        .find_map(|line| line.strip_prefix("arena: ")?.split(' ').next()?.parse::<u64>().ok());
    let budget = arena.unwrap() / 4 * 3;
    let more = format!("activation_memory = \"{budget} B\"");
    let fitted = train(of("fitted", &more), &device, false, 2);
    assert!(text(&fitted).contains(&format!("for a budget of {budget} B: ")), "{}", text(&fitted));
    for (a, b) in once.history().losses.iter().zip(&fitted.history().losses) {
        assert!((a - b).abs() < 1e-4, "{:?} and {:?}", once.history(), fitted.history());
    }
    let tight = of("tight", "activation_memory = \"10 KiB\"");
    let error = Trainer::open(tight, &device, false).err().unwrap().to_string();
    assert!(error.contains("more than the budget of 10240"), "{error}");
}

/// The weights of a GGUF file give the logits that its own graph does.
#[test]
fn logits_are_those_of_the_inference_graph() {
    let file = GgufFile::open(tallow_testmodels::model("storyteller-nano-f16")).unwrap();
    let (config, tensors) = from_gguf(&file).unwrap();
    let net = Net::from_tensors(&config, &tensors, &Device::Cpu).unwrap();
    for row in expected("storyteller-nano-f16").iter().take(2) {
        let tokens = Tensor::from_vec(row.tokens.clone(), (1, row.tokens.len()), &Device::Cpu).unwrap();
        let logits = net.logits(&tokens, 0.0).unwrap();
        let last = logits.narrow(0, row.tokens.len() - 1, 1).unwrap().flatten_all().unwrap();
        assert!(nmse_of_logits(&last.to_vec1::<f32>().unwrap(), row) < MAX_NMSE, "{}", row.prompt);
    }
}

/// Thirty steps learn something, and the exported file is the model that was trained.
#[test]
fn a_trained_model_generates() {
    let _alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    for device in devices() {
        let folder = tempfile::tempdir().unwrap();
        let mut plan = plan(folder.path(), "run", "learning_rate = 0.01\nwarmup = 3");
        plan.export = tallow_models::train::ExportType::F32;
        let mut trainer = Trainer::open(plan, &device, false).unwrap();
        trainer.run(&mut go_on).unwrap();
        let losses = trainer.history().losses.clone();
        // Before it learned anything, each of the 259 tokens is as likely.
        assert!((losses[0] - 259f32.ln()).abs() < 0.1, "{losses:?}");
        assert!(losses[29] < 0.7 * losses[0], "{losses:?}");
        let validation = &trainer.history().validation;
        assert_eq!(validation.iter().map(|(step, _)| *step).collect::<Vec<_>>(), [10, 20, 30]);
        assert!(validation[2].1 < 0.7 * losses[0], "{validation:?}");
        let path: PathBuf = trainer.export().unwrap();
        assert_eq!(path, folder.path().join("run").join(EXPORTED));

        let file = ModelFile::open(&path).unwrap();
        let prompt = file.tokenizer().encode("Once upon", true).unwrap();
        assert_eq!(prompt.len(), 10);
        let mut model = file.load(&Device::Cpu, &LoadOptions::default(), &mut |_| {}).unwrap();
        let logits = model.feed(&prompt).unwrap();
        let tokens = Tensor::from_vec(prompt.clone(), (1, 10), &device).unwrap();
        let own = trainer.net().logits(&tokens, 0.0).unwrap().narrow(0, 9, 1).unwrap();
        assert!(nmse(&logits, &own.flatten_all().unwrap().to_vec1::<f32>().unwrap()) < 1e-5);
        model.reset();
        let options = GenerateOptions { max_tokens: 5, sampling: SamplingOptions::default() };
        let story = generate(&mut model, &prompt, &options, &mut |_| ControlFlow::Continue(())).unwrap();
        assert_eq!(story.prompt_tokens, 10);
    }
}

/// However often a training stops and whenever its losses are read, weights, moments and losses are the same to the bit.
#[test]
fn a_resumed_training_is_the_same() {
    let _alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    for device in devices() {
        let folder = tempfile::tempdir().unwrap();
        let of = |out: &str, more: &str| plan(folder.path(), out, &format!("{more}\ndropout = 0.1"));
        train(of("whole", "log_every = 7"), &device, false, 30);
        for (resume, until) in [(false, 4), (true, 5), (true, 19), (true, 30)] {
            train(of("parts", "log_every = 1"), &device, resume, until);
        }
        // Validations are at the same steps, so the files are equal.
        assert!(checkpoint(folder.path(), "whole") == checkpoint(folder.path(), "parts"), "{device:?}");
        let again = train(of("parts", ""), &device, true, 30);
        assert_eq!(again.position(), (30, 30));
    }
}

fn refused(plan: Plan, resume: bool) -> String {
    match Trainer::open(plan, &Device::Cpu, resume) {
        Ok(_) => panic!("it was taken"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let _alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let folder = tempfile::tempdir().unwrap();
    let of = |more: &str| plan(folder.path(), "run", more);
    train(of(""), &Device::Cpu, false, 1);
    let before = checkpoint(folder.path(), "run");
    let error = refused(of(""), false);
    assert!(error.ends_with("run has a checkpoint already: resume it, or choose another folder"), "{error}");
    let mut wide = of("");
    wide.net.n_embd = 72;
    let error = refused(wide, true);
    assert!(error.ends_with("it was written with n_embd 64, the configuration says 72"), "{error}");
    let mut seeded = of("");
    seeded.options.seed = 2;
    let error = refused(seeded, true);
    assert!(error.ends_with("it was written with seed 1, the configuration says 2"), "{error}");
    assert!(before == checkpoint(folder.path(), "run"));
    // Half of a file is no checkpoint.
    std::fs::write(folder.path().join("run").join(CHECKPOINT), &before[..before.len() / 2]).unwrap();
    let error = refused(of(""), true);
    assert!(error.contains("checkpoint.safetensors: "), "{error}");

    let mut fresh = plan(folder.path(), "other", "");
    fresh.net.vocab_size = 8192;
    let error = refused(fresh.clone(), false);
    assert_eq!(error, "the tokenizer has 259 tokens, the model's vocab_size is 8192");
    fresh.net.vocab_size = 259;
    std::fs::write(folder.path().join("text.txt"), "").unwrap();
    let error = refused(fresh.clone(), false);
    assert!(error.starts_with("the text has 0 tokens, at least 25 are needed"), "{error}");
    std::fs::write(folder.path().join("text.txt"), b"\xff\xfe").unwrap();
    assert!(refused(fresh, false).starts_with("cannot read "));
}

/// A weight that is no number makes the loss none: the training stops, and the checkpoint before it remains.
#[test]
fn losses_that_are_no_numbers_stop_the_training() {
    let _alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let folder = tempfile::tempdir().unwrap();
    let mut trainer =
        Trainer::open(plan(folder.path(), "run", "log_every = 3"), &Device::Cpu, false).unwrap();
    let weight = trainer.net().vars().next().unwrap().1.clone();
    let bad = Tensor::full(f32::NAN, weight.dims().to_vec(), &Device::Cpu).unwrap();
    trainer.save().unwrap();
    let before = checkpoint(folder.path(), "run");
    let result = trainer.run(&mut |progress| {
        if progress.step == 4 {
            weight.set(&bad).unwrap();
        }
        ControlFlow::Continue(())
    });
    let error = result.unwrap_err().to_string();
    assert!(error.starts_with("the loss of step 5 is not finite; the checkpoint of step 0 is"), "{error}");
    assert!(before == checkpoint(folder.path(), "run"));
}

/// A device that fails in the middle stops the training with its error; the last checkpoint resumes on another device. A
/// closed device answers as a lost one does: nothing runs any more, and nothing can be read.
#[test]
fn a_device_that_is_gone_leaves_the_last_checkpoint() {
    let Ok(device) = Device::best_vulkan() else { return };
    let _alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let folder = tempfile::tempdir().unwrap();
    let of = || plan(folder.path(), "run", "checkpoint_every = 5\nlog_every = 2");
    let mut trainer = Trainer::open(of(), &device, false).unwrap();
    let result = trainer.run(&mut |progress| {
        if progress.step == 12 {
            device.close().unwrap();
        }
        ControlFlow::Continue(())
    });
    let error = result.unwrap_err().to_string();
    assert!(error.contains("the device was closed"), "{error}");
    drop(trainer);
    let resumed = Trainer::open(of(), &Device::Cpu, true).unwrap();
    assert_eq!(resumed.position(), (10, 30));
    drop(resumed);
    let again = train(of(), &Device::Cpu, true, 14);
    assert_eq!(again.position(), (14, 30));
    assert!(again.history().losses.iter().all(|loss| loss.is_finite()));
}

#[test]
fn weights_are_those_that_the_seed_gives() {
    let _alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let config = tallow_models::train::Preset::Test.net();
    let weights = |seed| {
        let net = Net::new(&config, seed, &Device::Cpu).unwrap();
        let read = |(name, var): (&str, &tallow::Var)| {
            assert_eq!(var.dtype(), DType::F32);
            (name.to_owned(), var.flatten_all().unwrap().to_vec1::<f32>().unwrap())
        };
        net.vars().map(read).collect::<HashMap<_, _>>()
    };
    let first = weights(3);
    assert_eq!(first, weights(3));
    assert_ne!(first, weights(4));
    let deviation = |name: &str| {
        let values = &first[name];
        (values.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / values.len() as f64).sqrt()
    };
    assert!((deviation("model.embed_tokens.weight") / 0.02 - 1.0).abs() < 0.01);
    // Two layers add four times to the residual stream.
    assert!((deviation("model.layers.1.mlp.down_proj.weight") / 0.01 - 1.0).abs() < 0.05);
    assert!(first["model.norm.weight"].iter().all(|x| *x == 1.0));
}

#[test]
fn configurations_are_checked() {
    let text =
        "preset = \"nano\"\ntext = [\"a\", \"b\"]\ntokenizer = \"t\"\nout = \"o\"\n[training]\nbatch = 4\n";
    let plan = Plan::parse(text, Path::new("/x")).unwrap();
    assert_eq!((plan.net.n_ff, plan.options.context, plan.options.learning_rate), (768, 1024, 3e-3));
    assert_eq!(plan.text, [PathBuf::from("/x/a"), PathBuf::from("/x/b")]);
    for (line, why) in [
        ("colour = 1", "line 7: unknown field `colour`"),
        ("steps = \"many\"", "line 7: invalid type"),
        ("context = 2000", "context 2000 is larger than n_ctx 1024"),
        ("steps = 0", "steps must not be 0"),
        ("dropout = 1.0", "dropout is 1, it must be at least 0 and below 1"),
        ("learning_rate = nan", "learning_rate is NaN, it must be a positive number"),
        ("[model]\nn_head = 3", "n_embd 256 is not divisible by twice n_head 3"),
        ("[model]\nn_head_kv = 3", "n_head 4 is not divisible by n_head_kv 3"),
        ("batch", "line 7: "),
    ] {
        let error = Plan::parse(&format!("{text}{line}\n"), Path::new("")).unwrap_err();
        assert!(error.starts_with(why), "{error}");
    }
}
