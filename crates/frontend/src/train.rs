//! A training step as one function: forward pass, gradients, clipping and update. With accumulation it is two functions,
//! for the passes and for the update (docs/decisions/0053-accumulated-gradients.md).

use std::sync::{Mutex, PoisonError};

use crate::backward::GradStore;
use crate::compile::{Function, Input, compile, compile_with};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::nn::optim::{Ema, GradAccumulator, LossScale, LossScaler, Optimizer, clip_grad_norm};
use crate::remat::{CompileOptions, Remat};
use crate::tensor::Tensor;
use crate::variable::Var;

/// A compiled training step. Parameters and moments stay on the device; a run takes a batch and gives the loss.
///
/// ```
/// use tallow::nn::optim::{AdamW, Optimizer};
/// use tallow::{DType, Device, Input, Tensor, TrainOptions, Var, train_step};
///
/// let device = Device::Cpu;
/// let w = Var::zeros((1, 2), DType::F32, &device)?;
/// let mut adam = AdamW::new_lr(vec![w.clone()], 0.1)?;
/// let inputs = [Input::new("x", DType::F32, (4, 2)), Input::new("y", DType::F32, (4, 1))];
/// let step = train_step(&device, &inputs, &[w.clone()], &mut adam, TrainOptions::default(), |batch| {
///     batch[0].matmul(&w.t()?)?.sub(&batch[1])?.sqr()?.mean_all()
/// })?;
/// let x = Tensor::new([[1f32, 0.0], [0.0, 1.0], [1.0, 1.0], [2.0, -1.0]], &device)?;
/// let y = Tensor::new([[3f32], [-1.0], [2.0], [7.0]], &device)?;
/// let first = step.run(&[&x, &y])?.loss.to_scalar::<f32>()?;
/// for _ in 0..200 {
///     step.run(&[&x, &y])?;
/// }
/// let last = step.run(&[&x, &y])?.loss.to_scalar::<f32>()?;
/// assert!(last < 1e-3 * first, "{last} of {first}");
/// # Ok::<(), tallow::Error>(())
/// ```
#[derive(Debug)]
pub struct TrainStep {
    /// Forward pass and gradients, and the update where each pass has one.
    pass: Function,
    /// The update after several passes.
    update: Option<Function>,
    options: TrainOptions,
    /// Passes since the last update.
    passes: Mutex<usize>,
    scaler: Option<LossScaler>,
    ema: Option<Ema>,
}

/// What a training step does besides.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TrainOptions {
    /// The largest norm of all gradients together; larger ones are scaled down.
    pub clip_norm: Option<f64>,
    /// Runs, each with a batch, whose mean gradients make one update.
    pub accumulate: usize,
    /// Scales the loss, for passes in f16. A run with gradients that are infinite or NaN changes no variable.
    pub loss_scale: Option<LossScale>,
    /// The decay of [averages](Ema) of the parameters.
    pub ema: Option<f64>,
    /// What the step computes again to take less memory.
    pub remat: Remat,
}

impl Default for TrainOptions {
    /// One batch an update, nothing besides.
    fn default() -> Self {
        TrainOptions { clip_norm: None, accumulate: 1, loss_scale: None, ema: None, remat: Remat::Off }
    }
}

impl TrainOptions {
    /// With a largest norm of the gradients.
    pub fn clip_norm(self, norm: f64) -> TrainOptions {
        TrainOptions { clip_norm: Some(norm), ..self }
    }

    /// With an update after each `runs` runs, by the mean of their gradients.
    pub fn accumulate(self, runs: usize) -> TrainOptions {
        TrainOptions { accumulate: runs, ..self }
    }

    /// With a scaled loss.
    pub fn loss_scale(self, scale: LossScale) -> TrainOptions {
        TrainOptions { loss_scale: Some(scale), ..self }
    }

    /// With averages of the parameters.
    pub fn ema(self, decay: f64) -> TrainOptions {
        TrainOptions { ema: Some(decay), ..self }
    }

    /// With values computed again to take less memory.
    pub fn remat(self, remat: Remat) -> TrainOptions {
        TrainOptions { remat, ..self }
    }
}

/// What a training step tells. Reading a number waits for the step; a loop that reads few of them keeps the device busy.
#[derive(Clone, Debug)]
pub struct StepResult {
    /// The loss before the step, rank 0. With accumulation, the mean of the losses since the last update (f32).
    pub loss: Tensor,
    /// The norm of the gradients before clipping, rank 0; where they are clipped and there was an update.
    pub norm: Option<Tensor>,
    /// Whether the optimizer had its turn: after each run, or with accumulation after the last of them.
    pub updated: bool,
}

/// Compiles a training step: `loss` of a batch, its gradients with respect to `vars`, and what `optimizer` makes of them.
/// The learning rate can be set between runs ([`Optimizer::set_learning_rate`]).
///
/// # Errors
/// When `loss` fails or is no float of rank 0, has no gradient, depends on none of `vars`, an option is out of range, or
/// compiling fails.
pub fn train_step<O: Optimizer>(
    device: &Device,
    inputs: &[Input],
    vars: &[Var],
    optimizer: &mut O,
    options: TrainOptions,
    loss: impl FnOnce(&[Tensor]) -> Result<Tensor>,
) -> Result<TrainStep> {
    let scaler = options.loss_scale.map(|scale| LossScaler::new(scale, device)).transpose()?;
    let ema = options.ema.map(|decay| Ema::new(vars, decay)).transpose()?;
    let mut rest =
        Rest { vars, optimizer, clip_norm: options.clip_norm, scaler: scaler.as_ref(), ema: ema.as_ref() };
    let of_step = CompileOptions { remat: options.remat };
    let (pass, update) = if options.accumulate == 1 {
        let pass = compile_with(device, inputs, of_step, |batch| {
            let (loss, mut grads) = rest.gradients(loss(batch)?)?;
            Ok([loss].into_iter().chain(rest.update(&mut grads)?).collect())
        })?;
        (pass, None)
    } else {
        let mut sum = GradAccumulator::new(vars, options.accumulate)?;
        let pass = compile_with(device, inputs, of_step, |batch| {
            let (loss, grads) = rest.gradients(loss(batch)?)?;
            Ok(vec![sum.add(&loss, &grads)?])
        })?;
        let update = compile(device, &[], |_| {
            let mut grads = sum.gradients()?;
            Ok(rest.update(&mut grads)?.into_iter().collect())
        })?;
        (pass, Some(update))
    };
    Ok(TrainStep { pass, update, options, passes: Mutex::new(0), scaler, ema })
}

/// What follows the loss.
struct Rest<'a, O> {
    vars: &'a [Var],
    optimizer: &'a mut O,
    clip_norm: Option<f64>,
    scaler: Option<&'a LossScaler>,
    ema: Option<&'a Ema>,
}

impl<O: Optimizer> Rest<'_, O> {
    /// The gradients of a loss.
    fn gradients(&self, loss: Tensor) -> Result<(Tensor, GradStore)> {
        if loss.rank() != 0 {
            let (got, shape) = (loss.rank(), loss.sym_shape().clone());
            return Err(Error::UnexpectedNumberOfDims { op: "train_step", expected: 0, got, shape });
        }
        let grads = match self.scaler {
            None => loss.backward()?,
            Some(scaler) => {
                loss.floats("backward")?;
                let mut grads = scaler.scaled(&loss)?.backward()?;
                scaler.unscale(&mut grads, self.vars)?;
                grads
            }
        };
        if self.vars.iter().all(|var| grads.get(var).is_none()) {
            let why = "the loss depends on none of the variables".into();
            return Err(Error::InvalidArgument { op: "train_step", why });
        }
        Ok((loss, grads))
    }

    /// Clips gradients and changes the variables; gives the norm of gradients that are clipped.
    fn update(&mut self, grads: &mut GradStore) -> Result<Option<Tensor>> {
        let norm = self.clip_norm.map(|norm| clip_grad_norm(grads, self.vars, norm)).transpose()?;
        let (optimizer, ema) = (&mut *self.optimizer, self.ema);
        let mut step = |grads: &GradStore| {
            optimizer.step(grads)?;
            ema.map_or(Ok(()), Ema::update)
        };
        match self.scaler {
            Some(scaler) => scaler.update(grads, self.vars, norm.as_ref(), step)?,
            None => step(grads)?,
        }
        Ok(norm)
    }
}

impl TrainStep {
    /// Takes a step, or with accumulation one of the passes of a step, and the update after the last of them.
    ///
    /// # Errors
    /// As [`Function::run`].
    pub fn run(&self, batch: &[&Tensor]) -> Result<StepResult> {
        // One run after the other: passes count in their order.
        let mut passes = self.passes.lock().unwrap_or_else(PoisonError::into_inner);
        let mut results = self.pass.run(batch)?.into_iter();
        let none = || Error::InvalidArgument { op: "train_step", why: "the function has no loss".into() };
        let loss = results.next().ok_or_else(none)?;
        *passes += 1;
        if let Some(update) = &self.update {
            if *passes < self.options.accumulate {
                return Ok(StepResult { loss, norm: None, updated: false });
            }
            results = update.run(&[])?.into_iter();
        }
        *passes = 0;
        let norm = results.next().filter(|_| self.options.clip_norm.is_some());
        Ok(StepResult { loss, norm, updated: true })
    }

    /// The function of a pass, with its graph and its plan: the whole step, or without the update where gradients are
    /// accumulated.
    pub fn function(&self) -> &Function {
        &self.pass
    }

    /// The function of the update, where gradients are accumulated.
    pub fn update_function(&self) -> Option<&Function> {
        self.update.as_ref()
    }

    /// The scale of the loss, with the number of skipped steps; where it is scaled.
    pub fn loss_scaler(&self) -> Option<&LossScaler> {
        self.scaler.as_ref()
    }

    /// Averages of the parameters, where [`TrainOptions::ema`] asks for them.
    pub fn ema(&self) -> Option<&Ema> {
        self.ema.as_ref()
    }
}
