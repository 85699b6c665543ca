//! Fine-tuning: adapters on the frozen weights of a model file.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use tallow::nn::optim::{AdamW, Optimizer, ParamsAdamW, Schedule};
use tallow::{DType, Device, Input, StepResult, Tensor, TrainOptions, TrainStep, Var, train_step};
use tallow_chat::Template;

use super::atomic::write_atomically;
use super::corpus::{Corpus, Windows};
use super::error::TrainError;
use super::examples::{Batch, Examples, Shuffled};
use super::frozen::LoraConfig;
use super::history::History;
use super::net::Net;
use super::trainer::Progress;
use crate::error::{Error, Result};
use crate::lora::write_adapter;
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
    /// Steps between two readings of the loss.
    pub log_every: usize,
    /// Steps between two writings of the adapter.
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

/// What steps take.
#[derive(Clone, Debug)]
pub enum Data {
    /// Windows of a text, of which every token is learned.
    Text(Windows),
    /// Examples, of which completions are learned.
    Examples(Shuffled),
}

impl Data {
    /// Reads a text, or examples where the file's name ends in `.jsonl` or `.json`; gives the tokens of a window too.
    /// `most` is the model's context.
    ///
    /// # Errors
    /// When the file cannot be read, has nothing to learn, or does not fit the context.
    fn read(
        path: &Path,
        model: &ModelFile,
        template: &Template,
        options: &FinetuneOptions,
    ) -> Result<(Data, usize)> {
        let (tokenizer, most) = (model.tokenizer(), model.llama().config.context);
        let wanted = |longest: usize| match options.context {
            Some(requested) if requested > most => Err(Error::Context { requested, max: most }),
            Some(requested) => Ok(requested),
            None => Ok(longest.clamp(1, most)),
        };
        let data = if Data::is_examples(path) {
            let examples = Examples::read(path, tokenizer, template)?;
            let context = wanted(examples.longest())?;
            let examples = examples.fit(context, path)?;
            (Data::Examples(Shuffled::new(examples, context, options.batch, options.seed)), context)
        } else {
            let context = wanted(CONTEXT)?;
            let corpus = Corpus::read(&[path.into()], tokenizer)?;
            // A text shorter than the default is one window.
            let all = corpus.tokens.len().saturating_sub(1).max(1);
            let context = if options.context.is_none() { context.min(all) } else { context };
            (Data::Text(Windows::new(corpus, context, options.batch, options.seed)?), context)
        };
        Ok(data)
    }

    /// Whether a file has examples, by its name.
    pub fn is_examples(path: &Path) -> bool {
        path.extension().is_some_and(|end| end == "jsonl" || end == "json")
    }

    /// Tokens of all the data.
    pub fn tokens(&self) -> usize {
        match self {
            Data::Text(windows) => windows.tokens(),
            Data::Examples(examples) => examples.examples().tokens(),
        }
    }

    /// Steps of a pass.
    fn steps_of_pass(&self, batch: usize) -> f64 {
        match self {
            Data::Text(windows) => windows.tokens() as f64 / windows.step_tokens() as f64,
            Data::Examples(examples) => examples.examples().count() as f64 / batch as f64,
        }
    }

    /// What step number `step` takes.
    pub fn batch(&mut self, step: usize) -> Batch {
        match self {
            Data::Text(windows) => {
                let [tokens, targets] = windows.batch(step);
                let weights = vec![1.0; tokens.len()];
                Batch { tokens, targets, weights }
            }
            Data::Examples(examples) => examples.batch(step),
        }
    }
}

/// Adapters being trained.
pub struct Finetuner {
    options: FinetuneOptions,
    device: Device,
    architecture: &'static str,
    out: PathBuf,
    net: Net,
    adam: AdamW,
    train: TrainStep,
    schedule: Schedule,
    data: Data,
    context: usize,
    steps: usize,
    step: usize,
    /// Results that were not read yet.
    pending: Vec<StepResult>,
    history: History,
    saved_step: usize,
}

impl Finetuner {
    /// Reads the data, copies the model's weights to the device as they are, and compiles a step. `data` is a text, or
    /// examples in JSON lines (`.jsonl`), whose messages `template` renders. The adapter goes to `out`.
    ///
    /// # Errors
    /// When a file cannot be read or does not fit, the options make no sense, or the device lacks memory.
    pub fn open(
        model: &ModelFile,
        data: &Path,
        template: &Template,
        options: FinetuneOptions,
        out: &Path,
        device: &Device,
    ) -> Result<Finetuner> {
        options.check()?;
        check_out(model, out)?;
        let (tokens, rows) = (model.tokenizer().vocab_size(), model.llama().vocabulary);
        if tokens > rows {
            return Err(TrainError::VocabularySize { tokenizer: tokens, model: rows }.into());
        }
        let (data, context) = Data::read(data, model, template, &options)?;
        let by_epochs = (options.epochs * data.steps_of_pass(options.batch)).ceil();
        let steps = options.steps.unwrap_or(by_epochs as usize).max(1);
        let net = Net::adapted(model, &options.lora, device)?;
        let vars: Vec<Var> = net.adapters().flat_map(|adapter| adapter.vars()).cloned().collect();
        let params = ParamsAdamW {
            lr: options.learning_rate,
            weight_decay: options.weight_decay,
            ..ParamsAdamW::default()
        };
        let mut adam = AdamW::new(vars.clone(), params)?;
        let shape = (options.batch, context);
        let inputs = [("tokens", DType::U32), ("targets", DType::U32), ("weights", DType::F32)]
            .map(|(name, dtype)| Input::new(name, dtype, shape));
        let clipped = TrainOptions::default().clip_norm(options.clip);
        let train = train_step(device, &inputs, &vars, &mut adam, clipped, |batch| {
            net.weighted_loss(&batch[0], &batch[1], &batch[2])
        })?;
        device.release_staging();
        let warmup = options.warmup.unwrap_or(WARMUP.min(steps / 10));
        Ok(Finetuner {
            schedule: Schedule::Cosine { lr: options.learning_rate, warmup, steps, floor: 0.0 },
            device: device.clone(),
            architecture: model.llama().config.architecture.name(),
            out: out.into(),
            options,
            net,
            adam,
            train,
            data,
            context,
            steps,
            step: 0,
            pending: vec![],
            history: History::default(),
            saved_step: 0,
        })
    }

    /// The model with its adapters.
    pub fn net(&self) -> &Net {
        &self.net
    }

    /// The compiled step.
    pub fn train_step(&self) -> &TrainStep {
        &self.train
    }

    /// What steps take.
    pub fn data(&self) -> &Data {
        &self.data
    }

    /// The losses that were read so far.
    pub fn history(&self) -> &History {
        &self.history
    }

    /// Tokens of a window.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Steps done, and steps of the whole training.
    pub fn position(&self) -> (usize, usize) {
        (self.step, self.steps)
    }

    /// Takes the steps that are left. Each is submitted without waiting; losses are read every few steps, which checks
    /// them. Writes the adapter every few steps and at the end. `tell` is called after each step and stops the
    /// training, with the adapter written, if it breaks.
    ///
    /// # Errors
    /// When a loss or gradient is not finite, the device fails, or the adapter cannot be written.
    pub fn run(&mut self, tell: &mut dyn FnMut(&Progress) -> ControlFlow<()>) -> Result<()> {
        while self.step < self.steps {
            self.take_step()?;
            let is_due = |every: usize| self.step.is_multiple_of(every) || self.step == self.steps;
            let saves = is_due(self.options.save_every);
            if is_due(self.options.log_every) || saves {
                self.collect()?;
            }
            if saves {
                self.save()?;
            }
            let loss = self.history.losses.last().copied();
            if tell(&Progress { step: self.step, steps: self.steps, loss, validation: None }).is_break() {
                return self.save();
            }
        }
        Ok(())
    }

    /// Submits a step.
    fn take_step(&mut self) -> Result<()> {
        self.adam.set_learning_rate(self.schedule.lr(self.step));
        let Batch { tokens, targets, weights } = self.data.batch(self.step);
        let shape = (self.options.batch, self.context);
        let tokens = Tensor::from_vec(tokens, shape, &self.device)?;
        let targets = Tensor::from_vec(targets, shape, &self.device)?;
        let weights = Tensor::from_vec(weights, shape, &self.device)?;
        self.pending.push(self.train.run(&[&tokens, &targets, &weights])?);
        self.step += 1;
        Ok(())
    }

    /// Waits for the steps that were submitted, and reads and checks their losses.
    fn collect(&mut self) -> Result<()> {
        let first = self.history.losses.len() + 1;
        for (step, result) in (first..).zip(std::mem::take(&mut self.pending)) {
            let loss = result.loss.to_scalar::<f32>()?;
            let norm = result.norm.map(|norm| norm.to_scalar::<f32>()).transpose()?;
            for (what, value) in [("loss", Some(loss)), ("gradient", norm)] {
                if value.is_some_and(|value| !value.is_finite()) {
                    return Err(TrainError::NotFinite { what, step, checkpoint: self.saved_step }.into());
                }
            }
            self.history.losses.push(loss);
        }
        Ok(())
    }

    /// Writes the adapter.
    ///
    /// # Errors
    /// As [`Finetuner::run`].
    pub fn save(&mut self) -> Result<()> {
        self.collect()?;
        let pairs = self.net.adapters().map(|adapter| adapter.pair()).collect::<tallow::Result<Vec<_>>>()?;
        let LoraConfig { alpha, adapter_type, .. } = self.options.lora;
        let name = self.out.file_stem().map_or("adapter".into(), |name| name.to_string_lossy());
        let mut bytes = vec![];
        write_adapter(&mut bytes, self.architecture, &name, alpha as f32, adapter_type.format(), &pairs)?;
        let write = |source| TrainError::Write { path: self.out.clone(), source };
        write_atomically(&self.out, |file| file.write_all(&bytes)).map_err(write)?;
        self.saved_step = self.step;
        Ok(())
    }
}

/// Checks, before any work, that the adapter can be written.
fn check_out(model: &ModelFile, out: &Path) -> Result<()> {
    let folder = out.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let failed = |source| TrainError::Write { path: out.into(), source };
    if !std::fs::metadata(folder).map_err(failed)?.is_dir() || out.is_dir() {
        return Err(failed(std::io::ErrorKind::NotADirectory.into()).into());
    }
    let same = |path: &Path| matches!((path.canonicalize(), out.canonicalize()), (Ok(a), Ok(b)) if a == b);
    if model.file.shards().any(|shard| same(&shard.path)) {
        let why = format!("{} is the model", out.display());
        return Err(TrainError::Option { name: "out", why }.into());
    }
    Ok(())
}
