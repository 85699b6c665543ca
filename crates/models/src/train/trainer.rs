//! Training of whole models: what a plan names is read and compiled, and the result is exported.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::PathBuf;

use serde_json::{Value as Json, json};
use tallow::nn::optim::{AdamW, ParamGroup, ParamsAdamW, Schedule};
use tallow::{Device, Tensor, TrainStep};
use tallow_gguf::Metadata;

use super::atomic::write_atomically;
use super::checkpoint::{self, CHECKPOINT, Checkpoint, CheckpointFile};
use super::compiled::{Compiled, Loss, StepOptions};
use super::config::{Options, Plan};
use super::corpus::{Corpus, Windows};
use super::data::Data;
use super::error::TrainError;
use super::gguf::to_gguf;
use super::history::History;
use super::net::Net;
use super::tokenizer::TokenizerFile;
use super::training_loop::{Files, LoopOptions, Progress, TrainingLoop};
use super::validation::Validation;
use crate::error::Result;

/// Name of the exported model in the output folder.
pub const EXPORTED: &str = "model.gguf";
/// The most steps in which the learning rate grows, where the configuration names none.
const WARMUP: usize = 150;

/// A model being trained.
pub struct Trainer {
    plan: Plan,
    tokenizer: Metadata,
    training: TrainingLoop,
}

impl Trainer {
    /// Reads texts and tokenizer, makes or restores the weights, and compiles a step. With `resume`, goes on from the
    /// checkpoint in the output folder, if there is one. This and each step with dropout set the process's sequence of
    /// random draws ([`Device::set_seed`]); no other thread may draw from it meanwhile.
    ///
    /// # Errors
    /// When a file cannot be read or does not fit, a text is too short, the output folder has a checkpoint and `resume` is
    /// false, or the device lacks memory.
    pub fn open(plan: Plan, device: &Device, resume: bool) -> Result<Trainer> {
        let Options { seed, batch, context, dropout, clip, .. } = plan.options;
        let file = checkpoint_file(&plan);
        let restored = match (file.path.exists(), resume) {
            (true, false) => return Err(TrainError::CheckpointExists(plan.out).into()),
            (true, true) => Some(file.load()?),
            (false, _) => None,
        };
        let TokenizerFile { tokenizer, metadata } = TokenizerFile::open(&plan.tokenizer)?;
        if tokenizer.vocab_size() != plan.net.vocab_size {
            let (tokenizer, model) = (tokenizer.vocab_size(), plan.net.vocab_size);
            return Err(TrainError::VocabularySize { tokenizer, model }.into());
        }
        let (corpus, tail) = texts(&plan, &tokenizer)?;
        let data = Data::Text(Windows::new(corpus, context, batch, seed)?);
        let options = loop_options(&plan.options, &data);
        let make_folder = std::fs::create_dir_all(&plan.out);
        make_folder.map_err(|source| TrainError::Write { path: plan.out.clone(), source })?;
        let net = initial(&plan, device, restored.as_ref())?.computing_in(plan.options.precision.dtype());
        let adam = optimizer(&plan.options, &net)?;
        let activation_memory = plan.options.activation_memory;
        let step =
            StepOptions { shape: (batch, context), loss: Loss::Mean { dropout }, clip, activation_memory };
        let compiled = Compiled::new(net, adam, step)?;
        let validation = tail.map(|tail| Validation::new(tail, &plan.options, &compiled.net)).transpose()?;
        let files = Files { checkpoint: file, adapter: None };
        let training = TrainingLoop::new(options, compiled, data, validation, files, restored)?;
        Ok(Trainer { plan, tokenizer: metadata, training })
    }

    /// The model.
    pub fn net(&self) -> &Net {
        &self.training.compiled.net
    }

    /// The compiled step.
    pub fn train_step(&self) -> &TrainStep {
        &self.training.compiled.step
    }

    /// The losses that were read so far.
    pub fn history(&self) -> &History {
        self.training.history()
    }

    /// Tokens of a step.
    pub fn step_tokens(&self) -> usize {
        self.plan.options.batch * self.plan.options.context
    }

    /// Tokens of the text.
    pub fn text_tokens(&self) -> usize {
        self.training.data.tokens()
    }

    /// Steps done, and steps of the whole training.
    pub fn position(&self) -> (usize, usize) {
        self.training.position()
    }

    /// Takes the steps that are left. Each is submitted without waiting; losses are read every few steps, which checks them.
    /// Writes checkpoints, the last one at the end. `tell` is called after each step and stops the training, with a
    /// checkpoint, if it breaks.
    ///
    /// # Errors
    /// When a loss or gradient is not finite, the device fails, or a checkpoint cannot be written.
    pub fn run(&mut self, tell: &mut dyn FnMut(&Progress) -> ControlFlow<()>) -> Result<()> {
        self.training.run(tell)
    }

    /// Writes a checkpoint.
    ///
    /// # Errors
    /// As [`Trainer::run`].
    pub fn save(&mut self) -> Result<()> {
        self.training.save()
    }

    /// Writes the model as a GGUF file into the output folder, and gives its path.
    ///
    /// # Errors
    /// When weights cannot be read from the device, or the file cannot be written.
    pub fn export(&self) -> Result<PathBuf> {
        let path = self.plan.out.join(EXPORTED);
        let name = self.plan.out.file_name().map_or("model".into(), |name| name.to_string_lossy());
        let mut bytes = vec![];
        to_gguf(self.net(), &self.tokenizer, &name, self.plan.export, &mut bytes)?;
        write_atomically(&path, |out| out.write_all(&bytes))
            .map_err(|source| TrainError::Write { path: path.clone(), source })?;
        Ok(path)
    }
}

/// How long, and how often what is done.
fn loop_options(options: &Options, data: &Data) -> LoopOptions {
    let steps = data.steps(options.steps, options.epochs, options.batch);
    let schedule = Schedule::Cosine {
        lr: options.learning_rate,
        warmup: options.warmup.unwrap_or(WARMUP.min(steps / 10)),
        steps,
        floor: options.learning_rate * options.min_learning_rate,
    };
    let (log_every, save_every) = (options.log_every, options.checkpoint_every);
    LoopOptions { steps, schedule, seed: options.seed, log_every, save_every }
}

/// The checkpoint of a plan. Settings that are not in it may change when a training goes on.
fn checkpoint_file(plan: &Plan) -> CheckpointFile {
    let Options { seed, batch, context, precision, .. } = plan.options;
    let common = [
        ("seed", seed.into()),
        ("batch", batch.into()),
        ("context", context.into()),
        ("precision", json!(precision)),
        ("model", json!(plan.net)),
    ];
    CheckpointFile {
        path: plan.out.join(CHECKPOINT),
        key: "tallow.train",
        common: common.map(|(name, value): (&str, Json)| (name.to_owned(), value)).into_iter().collect(),
        origin: "the configuration says",
        advice: "",
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
