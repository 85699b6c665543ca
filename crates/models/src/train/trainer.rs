//! The loop: steps, losses, validations, checkpoints.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::PathBuf;

use tallow::nn::optim::{AdamW, Optimizer, ParamGroup, ParamsAdamW, Schedule};
use tallow::{DType, Device, Function, Input, StepResult, Tensor, TrainOptions, TrainStep, Var};
use tallow::{compile, train_step};
use tallow_gguf::Metadata;

use super::atomic::write_atomically;
use super::checkpoint::{self, CHECKPOINT, Checkpoint, Counters};
use super::config::{Options, Plan};
use super::corpus::{Corpus, Windows};
use super::error::TrainError;
use super::gguf::to_gguf;
use super::history::History;
use super::net::Net;
use super::tokenizer::TokenizerFile;
use crate::error::Result;

/// Name of the exported model in the output folder.
pub const EXPORTED: &str = "model.gguf";
/// The most steps in which the learning rate grows, where the configuration names none.
const WARMUP: usize = 150;

/// How far a training is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Progress {
    /// Steps done.
    pub step: usize,
    /// Steps of the whole training.
    pub steps: usize,
    /// The loss that was read last.
    pub loss: Option<f32>,
    /// The loss on the validation text, if it was measured after this step.
    pub validation: Option<f32>,
}

/// The validation text as windows that follow one another, and the function of their loss.
struct Validation {
    loss: Function,
    corpus: Corpus,
    /// Windows of a run.
    count: usize,
    /// Windows of a validation.
    windows: usize,
}

/// A model being trained.
pub struct Trainer {
    plan: Plan,
    device: Device,
    net: Net,
    adam: AdamW,
    train: TrainStep,
    schedule: Schedule,
    windows: Windows,
    validation: Option<Validation>,
    tokenizer: Metadata,
    steps: usize,
    step: usize,
    /// Results that were not read yet.
    pending: Vec<StepResult>,
    history: History,
    checkpoint_step: usize,
}

impl Trainer {
    /// Reads texts and tokenizer, makes or restores the weights, and compiles a step. With `resume`, goes on from the
    /// checkpoint in the output folder, if there is one. This and each step set the process's sequence of random draws
    /// ([`Device::set_seed`]); no other thread may draw from it meanwhile.
    ///
    /// # Errors
    /// When a file cannot be read or does not fit, a text is too short, the output folder has a checkpoint and `resume` is
    /// false, or the device lacks memory.
    pub fn open(plan: Plan, device: &Device, resume: bool) -> Result<Trainer> {
        let Options { seed, batch, context, .. } = plan.options;
        let found = plan.out.join(CHECKPOINT);
        let restored = match (found.exists(), resume) {
            (true, false) => return Err(TrainError::CheckpointExists(plan.out).into()),
            (true, true) => Some(checkpoint::load(&found)?),
            (false, _) => None,
        };
        if let Some(why) = restored.as_ref().and_then(|restored| restored.counters.mismatch(&plan)) {
            return Err(TrainError::Weights { path: found, why }.into());
        }
        let TokenizerFile { tokenizer, metadata } = TokenizerFile::open(&plan.tokenizer)?;
        if tokenizer.vocab_size() != plan.net.vocab_size {
            let (tokenizer, model) = (tokenizer.vocab_size(), plan.net.vocab_size);
            return Err(TrainError::VocabularySize { tokenizer, model }.into());
        }
        let (corpus, tail) = texts(&plan, &tokenizer)?;
        let windows = Windows::new(corpus, context, batch, seed)?;
        let by_epochs = (plan.options.epochs * windows.tokens() as f64 / windows.step_tokens() as f64).ceil();
        let steps = plan.options.steps.unwrap_or(by_epochs as usize).max(1);
        let make_folder = std::fs::create_dir_all(&plan.out);
        make_folder.map_err(|source| TrainError::Write { path: plan.out.clone(), source })?;
        let net = initial(&plan, device, restored.as_ref())?;
        let mut adam = optimizer(&plan.options, &net)?;
        let train = compile_step(&plan.options, &net, &mut adam)?;
        let validation = tail.map(|tail| Validation::new(tail, &plan.options, &net)).transpose()?;
        let schedule = Schedule::Cosine {
            lr: plan.options.learning_rate,
            warmup: plan.options.warmup.unwrap_or(WARMUP.min(steps / 10)),
            steps,
            floor: plan.options.learning_rate * plan.options.min_learning_rate,
        };
        let mut trainer = Trainer {
            device: device.clone(),
            net,
            adam,
            train,
            schedule,
            windows,
            validation,
            tokenizer: metadata,
            steps,
            step: 0,
            pending: vec![],
            history: History::default(),
            checkpoint_step: 0,
            plan,
        };
        if let Some(restored) = restored {
            trainer.restore(restored)?;
        }
        Ok(trainer)
    }

    /// The model.
    pub fn net(&self) -> &Net {
        &self.net
    }

    /// The compiled step.
    pub fn train_step(&self) -> &TrainStep {
        &self.train
    }

    /// The losses that were read so far.
    pub fn history(&self) -> &History {
        &self.history
    }

    /// Tokens of a step.
    pub fn step_tokens(&self) -> usize {
        self.windows.step_tokens()
    }

    /// Tokens of the text.
    pub fn text_tokens(&self) -> usize {
        self.windows.tokens()
    }

    /// Steps done, and steps of the whole training.
    pub fn position(&self) -> (usize, usize) {
        (self.step, self.steps)
    }

    /// Takes the steps that are left. Each is submitted without waiting; losses are read every few steps, which checks them.
    /// Writes checkpoints, the last one at the end. `tell` is called after each step and stops the training, with a
    /// checkpoint, if it breaks.
    ///
    /// # Errors
    /// When a loss or gradient is not finite, the device fails, or a checkpoint cannot be written.
    pub fn run(&mut self, tell: &mut dyn FnMut(&Progress) -> ControlFlow<()>) -> Result<()> {
        let Options { log_every, validate_every, checkpoint_every, .. } = self.plan.options;
        while self.step < self.steps {
            self.take_step()?;
            let is_due = |every: usize| self.step.is_multiple_of(every) || self.step == self.steps;
            let (validates, saves) = (is_due(validate_every), is_due(checkpoint_every));
            // With a validation, so that the two losses told are of the same step.
            if is_due(log_every) || validates {
                self.collect()?;
            }
            let validation = if validates { self.validate()? } else { None };
            if saves {
                self.save()?;
            }
            let loss = self.history.losses.last().copied();
            let progress = Progress { step: self.step, steps: self.steps, loss, validation };
            if tell(&progress).is_break() {
                return self.save();
            }
        }
        Ok(())
    }

    /// Submits a step.
    fn take_step(&mut self) -> Result<()> {
        self.adam.set_learning_rate(self.schedule.lr(self.step));
        let Options { seed, batch, context, .. } = self.plan.options;
        // Each step has draws of its own, so that what it drops depends on its number alone.
        self.device.set_seed(seed)?;
        self.device.next_draws((self.step as u32).wrapping_mul(self.train.function().draws()));
        let [x, y] = self.windows.batch(self.step);
        let upload = |tokens: Vec<u32>| Tensor::from_vec(tokens, (batch, context), &self.device);
        self.pending.push(self.train.run(&[&upload(x)?, &upload(y)?])?);
        self.step += 1;
        Ok(())
    }

    /// Waits for the steps that were submitted, and reads and checks their losses.
    fn collect(&mut self) -> Result<()> {
        let first = self.history.losses.len() + 1;
        for (step, result) in (first..).zip(std::mem::take(&mut self.pending)) {
            let loss = result.loss.to_scalar::<f32>()?;
            let norm = result.norm.map(|norm| norm.to_scalar::<f32>()).transpose()?;
            let checkpoint = self.checkpoint_step;
            if !loss.is_finite() {
                return Err(TrainError::NotFinite { what: "loss", step, checkpoint }.into());
            }
            // Its update makes the weights NaN, so no checkpoint may follow.
            if norm.is_some_and(|norm| !norm.is_finite()) {
                return Err(TrainError::NotFinite { what: "gradient", step, checkpoint }.into());
            }
            self.history.losses.push(loss);
        }
        Ok(())
    }

    /// The mean loss on the validation text, if there is one.
    fn validate(&mut self) -> Result<Option<f32>> {
        let Some(validation) = &self.validation else { return Ok(None) };
        let loss = validation.loss(self.plan.options.context, &self.device)?;
        self.history.validation.push((self.step, loss));
        Ok(Some(loss))
    }

    /// Writes a checkpoint.
    ///
    /// # Errors
    /// As [`Trainer::run`].
    pub fn save(&mut self) -> Result<()> {
        self.collect()?;
        let Options { seed, batch, context, .. } = self.plan.options;
        let counters = Counters { step: self.step, seed, batch, context, model: self.plan.net.clone() };
        checkpoint::save(&self.plan.out.join(CHECKPOINT), &counters, &self.variables(), &self.history)?;
        self.checkpoint_step = self.step;
        Ok(())
    }

    /// Writes the model as a GGUF file into the output folder, and gives its path.
    ///
    /// # Errors
    /// When weights cannot be read from the device, or the file cannot be written.
    pub fn export(&self) -> Result<PathBuf> {
        let path = self.plan.out.join(EXPORTED);
        let name = self.plan.out.file_name().map_or("model".into(), |name| name.to_string_lossy());
        let mut bytes = vec![];
        to_gguf(&self.net, &self.tokenizer, &name, self.plan.export, &mut bytes)?;
        write_atomically(&path, |out| out.write_all(&bytes))
            .map_err(|source| TrainError::Write { path: path.clone(), source })?;
        Ok(path)
    }

    /// All that a step changes, by the names in checkpoints.
    fn variables(&self) -> Vec<(String, Var)> {
        let weights = self.net.vars().map(|(name, var)| (name.to_owned(), var.clone()));
        // The optimizer numbers its parameters, matrices first.
        let (matrices, vectors): (Vec<_>, Vec<_>) = self.net.vars().partition(|(_, var)| var.rank() >= 2);
        let order: Vec<&str> = matrices.iter().chain(&vectors).map(|(name, _)| *name).collect();
        let states = self.adam.state().into_iter().map(|(state, var)| {
            let numbered = state.split_once('.').and_then(|(kind, number)| {
                let name = order.get(number.parse::<usize>().ok()?)?;
                (kind != "step").then(|| format!("optimizer.{kind}.{name}"))
            });
            (numbered.unwrap_or_else(|| format!("optimizer.{state}")), var)
        });
        weights.chain(states).collect()
    }

    /// Sets everything to what a checkpoint says.
    fn restore(&mut self, restored: Checkpoint) -> Result<()> {
        let invalid = |why| TrainError::Weights { path: self.plan.out.join(CHECKPOINT), why };
        for (name, var) in self.variables() {
            let found = restored.tensors.get(&name).ok_or_else(|| invalid(format!("{name} is missing")))?;
            if found.dims() != var.dims() {
                let why = format!("{name} has shape {:?}, not {:?}", found.dims(), var.dims());
                return Err(invalid(why).into());
            }
            var.set(&found.to_device(&self.device)?)?;
        }
        let step = restored.counters.step;
        if restored.history.losses.len() != step {
            let why = format!("it has {} losses of {step} steps", restored.history.losses.len());
            return Err(invalid(why).into());
        }
        (self.step, self.checkpoint_step, self.history) = (step, step, restored.history);
        Ok(())
    }
}

/// The tokens to train on, and those to validate on where they are enough for a window.
fn texts(plan: &Plan, tokenizer: &tallow_gguf::Tokenizer) -> Result<(Corpus, Option<Corpus>)> {
    let context = plan.options.context;
    let corpus = Corpus::read(&plan.text, tokenizer)?;
    match &plan.validation {
        Some(path) => {
            let tail = Corpus::read(std::slice::from_ref(path), tokenizer)?;
            tail.check("the validation text", context)?;
            Ok((corpus, Some(tail)))
        }
        None if corpus.tokens.len() / 20 > context => {
            let (corpus, tail) = corpus.split();
            Ok((corpus, Some(tail)))
        }
        None => Ok((corpus, None)),
    }
}

/// The weights to begin with. Those of a checkpoint are set later, with the moments.
fn initial(plan: &Plan, device: &Device, restored: Option<&Checkpoint>) -> Result<Net> {
    match (&plan.weights, restored) {
        (Some(path), None) => {
            let invalid =
                |error: tallow::Error| TrainError::Weights { path: path.clone(), why: error.to_string() };
            let tensors: HashMap<String, Tensor> = checkpoint::load_weights(path)?;
            Ok(Net::from_tensors(&plan.net, &tensors, device).map_err(invalid)?)
        }
        (_, _) => Ok(Net::new(&plan.net, plan.options.seed, device)?),
    }
}

fn optimizer(options: &Options, net: &Net) -> Result<AdamW> {
    let params = ParamsAdamW {
        lr: options.learning_rate,
        beta1: options.beta1,
        beta2: options.beta2,
        eps: 1e-8,
        weight_decay: options.weight_decay,
    };
    let vars = net.vars().map(|(_, var)| var.clone()).collect();
    Ok(AdamW::with_groups(ParamGroup::by_rank(vars), params)?)
}

fn inputs(count: usize, context: usize) -> [Input; 2] {
    ["tokens", "targets"].map(|name| Input::new(name, DType::U32, (count, context)))
}

fn compile_step(options: &Options, net: &Net, adam: &mut AdamW) -> Result<TrainStep> {
    let vars: Vec<Var> = net.vars().map(|(_, var)| var.clone()).collect();
    let inputs = inputs(options.batch, options.context);
    let clipped = TrainOptions::default().clip_norm(options.clip);
    let step = train_step(net.device(), &inputs, &vars, adam, clipped, |batch| {
        net.loss(&batch[0], &batch[1], options.dropout)
    })?;
    Ok(step)
}

impl Validation {
    fn new(corpus: Corpus, options: &Options, net: &Net) -> Result<Validation> {
        let most = options.validation_windows.unwrap_or(usize::MAX).max(1);
        let windows = corpus.block_count(options.context).min(most);
        let count = options.batch.min(windows);
        let loss = compile(net.device(), &inputs(count, options.context), |batch| {
            Ok(vec![net.loss(&batch[0], &batch[1], 0.0)?])
        })?;
        Ok(Validation { loss, corpus, count, windows: windows / count * count })
    }

    /// The mean loss.
    fn loss(&self, context: usize, device: &Device) -> Result<f32> {
        let mut losses = vec![];
        for from in (0..self.windows).step_by(self.count) {
            let [x, y] = self.corpus.blocks(context, from, self.count);
            let upload = |tokens: Vec<u32>| Tensor::from_vec(tokens, (self.count, context), device);
            losses.extend(self.loss.run(&[&upload(x)?, &upload(y)?])?);
        }
        let mut sum = 0.0;
        for loss in &losses {
            sum += f64::from(loss.to_scalar::<f32>()?);
        }
        Ok((sum / losses.len().max(1) as f64) as f32)
    }
}
