//! The training loop: steps, losses, validations, checkpoints. It is the same for whole models and for adapters.

use std::ops::ControlFlow;
use std::path::Path;

use tallow::StepResult;
use tallow::nn::optim::{Optimizer, Schedule};

use super::adapter_file::AdapterFile;
use super::checkpoint::{Checkpoint, CheckpointFile};
use super::compiled::Compiled;
use super::data::Data;
use super::error::TrainError;
use super::history::History;
use super::validation::Validation;
use crate::error::Result;

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

/// How long a training is, and when it reads losses and writes files.
#[derive(Clone, Copy, Debug)]
pub(super) struct LoopOptions {
    /// Steps of the whole training.
    pub steps: usize,
    /// The learning rate of each step.
    pub schedule: Schedule,
    /// Seed of what is dropped.
    pub seed: u64,
    /// Steps between two readings of the loss.
    pub log_every: usize,
    /// Steps between two writings of [`Files`].
    pub save_every: usize,
}

/// What is written every few steps.
pub(super) struct Files {
    /// What a later run goes on from.
    pub checkpoint: CheckpointFile,
    /// The adapter that is trained.
    pub adapter: Option<AdapterFile>,
}

/// A training: what its steps take and change, and what they left.
pub(super) struct TrainingLoop {
    pub options: LoopOptions,
    pub compiled: Compiled,
    pub data: Data,
    validation: Option<Validation>,
    files: Files,
    /// Steps done.
    step: usize,
    /// Results that were not read yet.
    pending: Vec<StepResult>,
    history: History,
    saved_step: usize,
}

impl TrainingLoop {
    /// A training before its first step, or where `restored` was written.
    ///
    /// # Errors
    /// When the checkpoint lacks a variable or has one of another shape, or memory runs out.
    pub fn new(
        options: LoopOptions,
        compiled: Compiled,
        data: Data,
        validation: Option<Validation>,
        files: Files,
        restored: Option<Checkpoint>,
    ) -> Result<TrainingLoop> {
        let (pending, history) = (vec![], History::default());
        let mut training = TrainingLoop {
            options,
            compiled,
            data,
            validation,
            files,
            step: 0,
            pending,
            history,
            saved_step: 0,
        };
        if let Some(restored) = restored {
            let device = training.compiled.net.device();
            for (name, var) in training.compiled.variables() {
                var.set(&restored.value(&name, &var)?.to_device(device)?)?;
            }
            let Checkpoint { step, history, .. } = restored;
            (training.step, training.saved_step, training.history) = (step, step, history);
        }
        Ok(training)
    }

    /// The losses that were read so far.
    pub fn history(&self) -> &History {
        &self.history
    }

    /// Steps done, and steps of the whole training.
    pub fn position(&self) -> (usize, usize) {
        (self.step, self.options.steps)
    }

    /// Takes the steps that are left. Each is submitted without waiting; losses are read every few steps, which checks them.
    /// Writes files every few steps and at the end. `tell` is called after each step and stops the training, with its
    /// files written, if it breaks.
    ///
    /// # Errors
    /// When a loss or gradient is not finite, the device fails, or a file cannot be written.
    pub fn run(&mut self, tell: &mut dyn FnMut(&Progress) -> ControlFlow<()>) -> Result<()> {
        let LoopOptions { steps, log_every, save_every, .. } = self.options;
        if self.step >= steps {
            // The last run may have ended between checkpoint and adapter.
            return self.write_adapter();
        }
        while self.step < steps {
            self.take_step()?;
            let is_due = |every: usize| self.step.is_multiple_of(every) || self.step == steps;
            let validates = self.validation.as_ref().is_some_and(|validation| is_due(validation.every));
            let saves = is_due(save_every);
            // With a validation, so that the two losses told are of the same step.
            if is_due(log_every) || validates {
                self.collect()?;
            }
            let validation = if validates { self.validate()? } else { None };
            if saves {
                self.save()?;
            }
            let loss = self.history.losses.last().copied();
            if tell(&Progress { step: self.step, steps, loss, validation }).is_break() {
                return if saves { Ok(()) } else { self.save() };
            }
        }
        Ok(())
    }

    /// Submits a step.
    fn take_step(&mut self) -> Result<()> {
        self.compiled.adam.set_learning_rate(self.options.schedule.lr(self.step));
        let draws = self.compiled.step.function().draws();
        if draws > 0 {
            // Each step has draws of its own, so that what it drops depends on its number alone.
            let device = self.compiled.net.device();
            device.set_seed(self.options.seed)?;
            device.next_draws((self.step as u32).wrapping_mul(draws));
        }
        self.pending.push(self.compiled.run(self.data.batch(self.step))?);
        self.step += 1;
        Ok(())
    }

    /// Waits for the steps that were submitted, and reads and checks their losses.
    fn collect(&mut self) -> Result<()> {
        let first = self.history.losses.len() + 1;
        for (step, result) in (first..).zip(std::mem::take(&mut self.pending)) {
            let loss = result.loss.to_scalar::<f32>()?;
            let norm = result.norm.map(|norm| norm.to_scalar::<f32>()).transpose()?;
            // A gradient that is not finite makes the weights NaN, so no checkpoint may follow.
            for (what, value) in [("loss", Some(loss)), ("gradient", norm)] {
                if value.is_some_and(|value| !value.is_finite()) {
                    return Err(TrainError::NotFinite { what, step, checkpoint: self.saved_step }.into());
                }
            }
            self.history.losses.push(loss);
        }
        Ok(())
    }

    /// The mean loss on the validation text, if there is one.
    fn validate(&mut self) -> Result<Option<f32>> {
        let Some(validation) = &self.validation else { return Ok(None) };
        let loss = validation.loss(self.compiled.net.device())?;
        self.history.validation.push((self.step, loss));
        Ok(Some(loss))
    }

    /// Writes the files.
    ///
    /// # Errors
    /// As [`TrainingLoop::run`].
    pub fn save(&mut self) -> Result<()> {
        self.collect()?;
        self.files.checkpoint.save(self.step, &self.compiled.variables(), &self.history)?;
        self.saved_step = self.step;
        self.write_adapter()
    }

    /// The checkpoint's path.
    pub fn checkpoint(&self) -> &Path {
        &self.files.checkpoint.path
    }

    fn write_adapter(&self) -> Result<()> {
        self.files.adapter.as_ref().map_or(Ok(()), |adapter| adapter.write(&self.compiled.net))
    }
}
