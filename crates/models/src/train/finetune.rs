//! Fine-tuning: adapters on the frozen weights of a model file.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use serde_json::Value as Json;
use tallow::nn::optim::{AdamW, Optimizer, ParamsAdamW, Schedule};
use tallow::{Device, TrainStep};
use tallow_chat::Template;

use super::adapter_file::AdapterFile;
use super::checkpoint::{CHECKPOINT, CheckpointFile};
use super::compiled::{Compiled, Loss, StepOptions};
use super::corpus::{Corpus, Windows};
use super::data::Data;
use super::digest::digest;
use super::error::TrainError;
use super::examples::{Examples, Shuffled};
use super::frozen::{LoraConfig, Target};
use super::history::History;
use super::net::Net;
use super::training_loop::{Files, LoopOptions, Progress, TrainingLoop};
use crate::error::{Error, Result};
use crate::model::ModelFile;

/// The most tokens of a window, where the options name none.
const CONTEXT: usize = 512;
/// The most steps in which the learning rate grows, where the options name none.
const WARMUP: usize = 20;

/// How adapters are trained.
#[derive(Clone, Debug, PartialEq)]
pub struct FinetuneOptions {
    /// Size and beginning of the adapters.
    pub lora: LoraConfig,
    /// Steps; where absent, as many as `epochs` passes take.
    pub steps: Option<usize>,
    /// Passes over the data.
    pub epochs: f64,
    /// Windows or examples of a step.
    pub batch: usize,
    /// Tokens of a window; where absent, those of the longest example, or 512 of a text; at most the model's.
    pub context: Option<usize>,
    /// The largest learning rate; it falls to 0 along a cosine.
    pub learning_rate: f64,
    /// Steps in which it grows; where absent, 20 or a tenth of the steps, whichever is less.
    pub warmup: Option<usize>,
    /// AdamW's weight decay.
    pub weight_decay: f64,
    /// The largest norm of all gradients.
    pub clip: f64,
    /// The most bytes of activations and other intermediate values; where absent, what the device has left. Kernels run
    /// again to fit it.
    pub activation_memory: Option<u64>,
    /// Steps between two readings of the loss.
    pub log_every: usize,
    /// Steps between two writings of checkpoint and adapter.
    pub save_every: usize,
    /// Seed of windows or of the order of examples.
    pub seed: u64,
}

impl FinetuneOptions {
    /// One pass in steps of 4 windows, with a largest learning rate of 0.0002.
    pub fn new(lora: LoraConfig) -> FinetuneOptions {
        FinetuneOptions {
            seed: lora.seed,
            lora,
            steps: None,
            epochs: 1.0,
            batch: 4,
            context: None,
            learning_rate: 2e-4,
            warmup: None,
            weight_decay: 0.0,
            clip: 1.0,
            activation_memory: None,
            log_every: 10,
            save_every: 100,
        }
    }

    fn check(&self) -> Result<(), TrainError> {
        let positive = [
            ("batch", self.batch),
            ("steps", self.steps.unwrap_or(1)),
            ("context", self.context.unwrap_or(1)),
            ("log_every", self.log_every),
            ("save_every", self.save_every),
        ];
        if let Some((name, _)) = positive.into_iter().find(|(_, value)| *value == 0) {
            return Err(TrainError::Option { name, why: "it must not be 0".into() });
        }
        if self.batch > 1 << 20 {
            let why = format!("{} is more than this program takes", self.batch);
            return Err(TrainError::Option { name: "batch", why });
        }
        let above_zero = |value: f64| value > 0.0 && value.is_finite();
        let numbers = [
            ("epochs", self.epochs, above_zero(self.epochs), "a positive number"),
            ("learning rate", self.learning_rate, above_zero(self.learning_rate), "a positive number"),
            ("clip", self.clip, above_zero(self.clip), "a positive number"),
            (
                "weight decay",
                self.weight_decay,
                (0.0..1.0).contains(&self.weight_decay),
                "at least 0 and below 1",
            ),
        ];
        match numbers.into_iter().find(|(_, _, good, _)| !good) {
            Some((name, value, _, what)) => {
                Err(TrainError::Option { name, why: format!("{value} is not {what}") })
            }
            None => Ok(()),
        }
    }
}

/// Adapters being trained.
pub struct Finetuner {
    training: TrainingLoop,
    context: usize,
}

impl Finetuner {
    /// Reads the data, copies the model's weights to the device as they are, and compiles a step. `data` is a text, or
    /// examples in JSON lines (`.jsonl`), whose messages `template` renders. The adapter goes to `out`, and the checkpoint
    /// beside it. Where there is a checkpoint, goes on from it.
    ///
    /// # Errors
    /// When a file cannot be read or does not fit, the options make no sense, the device lacks memory, or the checkpoint is
    /// damaged or of another model, other data or options; the message names what differs. How often losses are read and
    /// files are written may differ.
    pub fn open(
        model: &ModelFile,
        data: &Path,
        template: &Template,
        options: FinetuneOptions,
        out: &Path,
        device: &Device,
    ) -> Result<Finetuner> {
        options.check()?;
        check_out(model, data, out)?;
        let (tokens, rows) = (model.tokenizer().vocab_size(), model.model_graph().vocabulary);
        if tokens > rows {
            return Err(TrainError::VocabularySize { tokenizer: tokens, model: rows }.into());
        }
        let (data, context) = read(data, model, template, &options)?;
        let loop_options = loop_options(&options, &data);
        let file = CheckpointFile {
            path: beside(out),
            key: "tallow.finetune",
            common: common(model, &data, context, &options).into_iter().collect(),
            origin: "this run has",
            advice: "; remove it to start over",
        };
        let restored = file.path.exists().then(|| file.load()).transpose()?;
        let net = Net::adapted(model, &options.lora, device)?;
        let params = ParamsAdamW {
            lr: options.learning_rate,
            weight_decay: options.weight_decay,
            ..ParamsAdamW::default()
        };
        let adam = AdamW::new(net.trained().into_iter().map(|(_, var)| var).collect(), params)?;
        let (clip, activation_memory) = (options.clip, options.activation_memory);
        let step =
            StepOptions { shape: (options.batch, context), loss: Loss::Weighted, clip, activation_memory };
        let compiled = Compiled::new(net, adam, step)?;
        device.release_staging();
        let architecture = model.model_graph().config.architecture.name();
        let adapter = AdapterFile { path: out.into(), architecture, lora: options.lora };
        let files = Files { checkpoint: file, adapter: Some(adapter) };
        let training = TrainingLoop::new(loop_options, compiled, data, None, files, restored)?;
        Ok(Finetuner { training, context })
    }

    /// The model with its adapters.
    pub fn net(&self) -> &Net {
        &self.training.compiled.net
    }

    /// The compiled step.
    pub fn train_step(&self) -> &TrainStep {
        &self.training.compiled.step
    }

    /// What steps take.
    pub fn data(&self) -> &Data {
        &self.training.data
    }

    /// The losses that were read so far.
    pub fn history(&self) -> &History {
        self.training.history()
    }

    /// Tokens of a window.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Steps done, and steps of the whole training.
    pub fn position(&self) -> (usize, usize) {
        self.training.position()
    }

    /// The path of the checkpoint: that of the adapter with `.checkpoint.safetensors` added.
    pub fn checkpoint(&self) -> &Path {
        self.training.checkpoint()
    }

    /// Takes the steps that are left. Each is submitted without waiting; losses are read every few steps, which checks
    /// them. Writes checkpoint and adapter every few steps and at the end. `tell` is called after each step and stops the
    /// training, with both written, if it breaks.
    ///
    /// # Errors
    /// When a loss or gradient is not finite, the device fails, or a file cannot be written.
    pub fn run(&mut self, tell: &mut dyn FnMut(&Progress) -> ControlFlow<()>) -> Result<()> {
        self.training.run(tell)
    }

    /// Writes checkpoint and adapter.
    ///
    /// # Errors
    /// As [`Finetuner::run`].
    pub fn save(&mut self) -> Result<()> {
        self.training.save()
    }
}

/// Reads a text, or examples where the file's name ends in `.jsonl` or `.json`; gives the tokens of a window too. They are
/// at most the model's context.
fn read(
    path: &Path,
    model: &ModelFile,
    template: &Template,
    options: &FinetuneOptions,
) -> Result<(Data, usize)> {
    let (tokenizer, most) = (model.tokenizer(), model.model_graph().config.context);
    let wanted = |longest: usize| match options.context {
        Some(requested) if requested > most => Err(Error::Context { requested, max: most }),
        Some(requested) => Ok(requested),
        None => Ok(longest.clamp(1, most)),
    };
    if Data::is_examples(path) {
        let examples = Examples::read(path, tokenizer, template)?;
        let context = wanted(examples.longest())?;
        let examples = examples.fit(context, path)?;
        return Ok((Data::Examples(Shuffled::new(examples, context, options.batch, options.seed)), context));
    }
    let context = wanted(CONTEXT)?;
    let corpus = Corpus::read(&[path.into()], tokenizer)?;
    // A text shorter than the default is one window.
    let all = corpus.tokens.len().saturating_sub(1).max(1);
    let context = if options.context.is_none() { context.min(all) } else { context };
    Ok((Data::Text(Windows::new(corpus, context, options.batch, options.seed)?), context))
}

/// The checkpoint's path.
fn beside(out: &Path) -> PathBuf {
    let mut name = out.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{CHECKPOINT}"));
    out.with_file_name(name)
}

/// All that decides what an adapter becomes.
fn common(model: &ModelFile, data: &Data, context: usize, options: &FinetuneOptions) -> [(String, Json); 15] {
    let LoopOptions { steps, .. } = loop_options(options, data);
    let LoraConfig { rank, alpha, targets, adapter_type, seed } = &options.lora;
    let targets = Target::ALL.into_iter().filter(|target| targets.contains(target));
    let targets = targets.map(Target::name).collect::<Vec<_>>().join(",");
    let all: [(&str, Json); 15] = [
        ("model", digest(model.file.bytes()).into()),
        ("rank", (*rank).into()),
        ("alpha", (*alpha).into()),
        ("targets", targets.into()),
        ("adapter type", adapter_type.format().to_string().into()),
        ("context", context.into()),
        ("batch", options.batch.into()),
        // Chat template and pre-tokenizer are in it.
        ("data (as tokens)", data.digest().into()),
        ("steps", steps.into()),
        ("warmup", warmup(options, steps).into()),
        ("learning rate", options.learning_rate.into()),
        ("weight decay", options.weight_decay.into()),
        ("clip", options.clip.into()),
        ("seed", options.seed.into()),
        ("seed of the adapters", (*seed).into()),
    ];
    all.map(|(name, value)| (name.to_owned(), value))
}

/// Steps in which the learning rate grows.
fn warmup(options: &FinetuneOptions, steps: usize) -> usize {
    options.warmup.unwrap_or(WARMUP.min(steps / 10))
}

/// How long, and how often what is done.
fn loop_options(options: &FinetuneOptions, data: &Data) -> LoopOptions {
    let steps = data.steps(options.steps, options.epochs, options.batch);
    let schedule =
        Schedule::Cosine { lr: options.learning_rate, warmup: warmup(options, steps), steps, floor: 0.0 };
    let (log_every, save_every) = (options.log_every, options.save_every);
    LoopOptions { steps, schedule, seed: options.seed, log_every, save_every }
}

/// Checks, before any work, that the adapter can be written and overwrites nothing that is read.
fn check_out(model: &ModelFile, data: &Path, out: &Path) -> Result<()> {
    let folder = out.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let failed = |source| TrainError::Write { path: out.into(), source };
    if !std::fs::metadata(folder).map_err(failed)?.is_dir() || out.is_dir() {
        return Err(failed(std::io::ErrorKind::NotADirectory.into()).into());
    }
    let same = |path: &Path| matches!((path.canonicalize(), out.canonicalize()), (Ok(a), Ok(b)) if a == b);
    let what = match model.file.shards().any(|shard| same(&shard.path)) {
        true => "model",
        false if same(data) => "data",
        false => return Ok(()),
    };
    Err(TrainError::Option { name: "out", why: format!("{} is the {what}", out.display()) }.into())
}
