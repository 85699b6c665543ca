//! Fine-tuning that stops and goes on: the same bytes in the end, and checkpoints that are refused.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use tallow::Device;
use tallow_chat::Template;
use tallow_gguf::Format;
use tallow_models::ModelFile;
use tallow_models::train::{AdapterType, FinetuneOptions, Finetuner, Target};

use crate::finetuning::{options, template};
use crate::tiny::tiny;
use crate::training::{TEXT, devices};

const EXAMPLES: &str = r#"{"prompt": "Who? ", "completion": "Me."}
{"prompt": "Why? ", "completion": "Well."}
{"messages": [{"role": "user", "content": "A"}, {"role": "assistant", "content": "B"}]}
"#;

/// A model and its data in a folder.
struct Files {
    folder: tempfile::TempDir,
    model: ModelFile,
    data: PathBuf,
}

impl Files {
    fn new(name: &str, data: &str) -> Files {
        let folder = tempfile::tempdir().unwrap();
        let model = ModelFile::open(tiny(folder.path(), Format::Q4_0)).unwrap();
        let path = folder.path().join(name);
        std::fs::write(&path, data).unwrap();
        Files { folder, model, data: path }
    }

    /// `adapter.gguf` in a folder of its own, as the file names itself.
    fn out(&self, name: &str) -> PathBuf {
        std::fs::create_dir_all(self.folder.path().join(name)).unwrap();
        self.folder.path().join(name).join("adapter.gguf")
    }

    fn open(
        &self,
        options: &FinetuneOptions,
        out: &Path,
        device: &Device,
    ) -> tallow_models::Result<Finetuner> {
        Finetuner::open(&self.model, &self.data, &template(), options.clone(), out, device)
    }

    /// Trains between two numbers of steps done; at the second it is told to stop.
    fn train(
        &self,
        options: &FinetuneOptions,
        out: &Path,
        device: &Device,
        (from, until): (usize, usize),
    ) -> Finetuner {
        let mut tuner = self.open(options, out, device).unwrap();
        assert_eq!(tuner.position().0, from);
        let stop = |step| if step >= until { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
        tuner.run(&mut |progress| stop(progress.step)).unwrap();
        tuner
    }
}

fn checkpoint(out: &Path) -> PathBuf {
    out.with_file_name("adapter.gguf.checkpoint.safetensors")
}

fn refused(result: tallow_models::Result<Finetuner>) -> String {
    match result {
        Ok(_) => panic!("it was taken"),
        Err(error) => error.to_string(),
    }
}

/// However often a training stops and whenever its losses are read, adapter and checkpoint are the same to the bit.
#[test]
fn a_resumed_finetuning_is_the_same() {
    for device in devices() {
        for (name, data, adapter_type) in [
            ("data.txt", TEXT.repeat(3).as_str(), AdapterType::F32),
            ("data.jsonl", EXAMPLES, AdapterType::BF16),
        ] {
            let files = Files::new(name, data);
            // Examples have the context of the longest.
            let context = (name == "data.txt").then_some(24);
            let mut options = FinetuneOptions { context, ..options(4, 12) };
            options.lora.adapter_type = adapter_type;
            let (whole, parts) = (files.out("whole"), files.out("parts"));
            let steps = files.train(&options, &whole, &device, (0, 12)).history().losses.clone();
            assert_eq!(steps.len(), 12);
            let often = FinetuneOptions { log_every: 1, save_every: 3, ..options.clone() };
            for range in [(0, 2), (2, 3), (3, 10), (10, 12)] {
                let tuner = files.train(&often, &parts, &device, range);
                assert_eq!(tuner.position(), (range.1, 12));
                assert_eq!(tuner.checkpoint(), checkpoint(&parts));
            }
            let same = |a: &Path, b: &Path| std::fs::read(a).unwrap() == std::fs::read(b).unwrap();
            assert!(same(&whole, &parts), "{device:?} {name}");
            assert!(same(&checkpoint(&whole), &checkpoint(&parts)), "{device:?} {name}");
            // Without a step to take, what was lost is written again.
            std::fs::remove_file(&parts).unwrap();
            assert_eq!(files.train(&often, &parts, &device, (12, 12)).history().losses, steps);
            assert!(same(&whole, &parts));
        }
    }
}

/// A device that fails in the middle leaves the last checkpoint, from which another device goes on.
#[test]
fn a_device_that_is_gone_leaves_the_last_checkpoint() {
    let Ok(device) = Device::best_vulkan() else { return };
    let files = Files::new("data.txt", &TEXT.repeat(3));
    let (options, out) =
        (FinetuneOptions { save_every: 5, log_every: 2, ..options(4, 14) }, files.out("run"));
    let mut tuner = files.open(&options, &out, &device).unwrap();
    let result = tuner.run(&mut |progress| {
        if progress.step == 8 {
            device.close().unwrap();
        }
        ControlFlow::Continue(())
    });
    assert!(result.unwrap_err().to_string().contains("the device was closed"));
    drop(tuner);
    let tuner = files.train(&options, &out, &Device::Cpu, (5, 14));
    assert!(tuner.history().losses.iter().all(|loss| loss.is_finite()));
}

/// What decides the adapter must agree with the checkpoint; the first difference is named, and nothing is written.
#[test]
fn checkpoints_of_other_trainings_are_refused() {
    let files = Files::new("data.jsonl", EXAMPLES);
    // The chat is cut off by a context of 24.
    let (plain, out) = (FinetuneOptions { context: Some(70), ..options(4, 6) }, files.out("run"));
    files.train(&plain, &out, &Device::Cpu, (0, 2));
    let before = std::fs::read(checkpoint(&out)).unwrap();
    let with = |change: &dyn Fn(&mut FinetuneOptions)| {
        let mut options = plain.clone();
        change(&mut options);
        let error = refused(files.open(&options, &out, &Device::Cpu));
        let start = format!("{}: it was written with ", checkpoint(&out).display());
        let end = "; remove it to start over";
        error.strip_prefix(&start).and_then(|rest| rest.strip_suffix(end)).unwrap_or(&error).to_owned()
    };
    assert_eq!(with(&|o| o.lora.rank = 8), "rank 4, this run has 8");
    assert_eq!(with(&|o| o.lora.alpha = 9.5), "alpha 8.0, this run has 9.5");
    let some = [Target::V, Target::Q];
    assert_eq!(with(&|o| o.lora.targets = some.to_vec()), "targets q,k,v,o,gate,up,down, this run has q,v");
    assert_eq!(with(&|o| o.lora.adapter_type = AdapterType::BF16), "adapter type f32, this run has bf16");
    assert_eq!(with(&|o| o.context = Some(69)), "context 70, this run has 69");
    assert_eq!(with(&|o| o.batch = 3), "batch 2, this run has 3");
    assert_eq!(with(&|o| o.steps = Some(7)), "steps 6, this run has 7");
    assert_eq!(with(&|o| o.warmup = Some(0)), "warmup 3, this run has 0");
    assert_eq!(with(&|o| o.learning_rate = 0.03), "learning rate 0.02, this run has 0.03");
    assert_eq!(with(&|o| o.weight_decay = 0.1), "weight decay 0.0, this run has 0.1");
    assert_eq!(with(&|o| o.clip = 2.0), "clip 1.0, this run has 2.0");
    assert_eq!(with(&|o| o.seed = 2), "seed 1, this run has 2");
    assert_eq!(with(&|o| o.lora.seed = 2), "seed of the adapters 1, this run has 2");

    // Another chat template gives other tokens, another line of data does; the name of the file is nothing.
    let zephyr = Template::builtin("zephyr").unwrap();
    let opened = Finetuner::open(&files.model, &files.data, &zephyr, plain.clone(), &out, &Device::Cpu);
    assert!(refused(opened).contains("it was written with data (as tokens) sha256:"));
    let moved = files.folder.path().join("moved.jsonl");
    std::fs::write(&moved, EXAMPLES).unwrap();
    Finetuner::open(&files.model, &moved, &template(), plain.clone(), &out, &Device::Cpu).unwrap();
    std::fs::write(&moved, EXAMPLES.replace("Me.", "Us.")).unwrap();
    let opened = Finetuner::open(&files.model, &moved, &template(), plain.clone(), &out, &Device::Cpu);
    assert!(refused(opened).contains("data (as tokens) sha256:"));
    // Another model of the same sizes.
    let other = ModelFile::open(tiny(files.folder.path(), Format::Q8_0)).unwrap();
    let opened = Finetuner::open(&other, &files.data, &template(), plain.clone(), &out, &Device::Cpu);
    assert!(refused(opened).contains("it was written with model sha256:"));
    assert!(before == std::fs::read(checkpoint(&out)).unwrap());
    // How often files are written may change.
    let seldom = FinetuneOptions { save_every: 1000, log_every: 3, ..plain };
    assert_eq!(files.open(&seldom, &out, &Device::Cpu).unwrap().position(), (2, 6));
}

/// A safetensors file, changed and written again.
fn changed(
    bytes: &[u8],
    metadata: impl FnOnce(&mut HashMap<String, String>),
    tensors: impl Fn(&str, Dtype, &mut Vec<usize>, &mut Vec<u8>) -> bool,
) -> Vec<u8> {
    let (_, head) = SafeTensors::read_metadata(bytes).unwrap();
    let mut texts = head.metadata().clone().unwrap();
    metadata(&mut texts);
    let mut all = vec![];
    for (name, view) in SafeTensors::deserialize(bytes).unwrap().tensors() {
        let (mut shape, mut data) = (view.shape().to_vec(), view.data().to_vec());
        if tensors(&name, view.dtype(), &mut shape, &mut data) {
            all.push((name, view.dtype(), shape, data));
        }
    }
    let views = all
        .iter()
        .map(|(name, dtype, shape, data)| (name, TensorView::new(*dtype, shape.clone(), data).unwrap()));
    safetensors::serialize(views, Some(texts)).unwrap()
}

/// Checkpoints that are damaged or none are errors in a line, and remain as they are.
#[test]
fn damaged_checkpoints_are_refused() {
    const KEY: &str = "tallow.finetune";
    const A: &str = "blk.0.attn_q.weight.lora_a";
    let files = Files::new("data.jsonl", EXAMPLES);
    let (options, out) = (options(4, 6), files.out("run"));
    files.train(&options, &out, &Device::Cpu, (0, 2));
    let whole = std::fs::read(checkpoint(&out)).unwrap();
    let keep = |_: &str, _: Dtype, _: &mut Vec<usize>, _: &mut Vec<u8>| true;
    let replaced = |from: &str, to: &str| {
        changed(&whole, |texts| *texts.get_mut(KEY).unwrap() = texts[KEY].replace(from, to), keep)
    };
    let says = |bytes: &[u8], why: &str| {
        std::fs::write(checkpoint(&out), bytes).unwrap();
        let error = refused(files.open(&options, &out, &Device::Cpu));
        let start = format!("{}: ", checkpoint(&out).display());
        assert!(error.starts_with(&start) && error.contains(why) && !error.contains('\n'), "{why}: {error}");
        assert!(error.ends_with("; remove it to start over"), "{error}");
        assert!(bytes == std::fs::read(checkpoint(&out)).unwrap());
    };
    // Every beginning of the head, and some of the rest.
    for length in (0..600).step_by(29).chain([whole.len() / 2, whole.len() - 1]) {
        says(&whole[..length], "");
    }
    says(&changed(&whole, |texts| drop(texts.remove(KEY)), keep), "the metadata has no key tallow.finetune");
    says(&changed(&whole, |texts| *texts.get_mut(KEY).unwrap() = "[]".into(), keep), "invalid type");
    says(&replaced("\"rank\":4", "\"rang\":4"), "it does not say rank");
    says(&replaced("\"rank\":4", "\"rank\":\"4\\n\""), "it was written with rank \"4\\n\", this run has 4");
    says(&replaced("\"step\":2", "\"step\":-2"), "it does not say how many steps are done");
    says(&replaced("\"step\":2", "\"step\":3"), "it has 2 losses of 3 steps");
    let without = |name: &str, _: Dtype, _: &mut Vec<usize>, _: &mut Vec<u8>| name != A;
    says(&changed(&whole, |_| {}, without), "blk.0.attn_q.weight.lora_a is missing");
    let turned = |_: &str, _: Dtype, shape: &mut Vec<usize>, _: &mut Vec<u8>| {
        shape.reverse();
        true
    };
    says(&changed(&whole, |_| {}, turned), "has shape [64, 4], not [4, 64]");
    std::fs::write(checkpoint(&out), &whole).unwrap();
    assert_eq!(files.open(&options, &out, &Device::Cpu).unwrap().position(), (2, 6));
}
