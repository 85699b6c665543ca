//! A training step as one function: forward pass, gradients, clipping and update.

use crate::compile::{Function, Input, compile};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::nn::optim::{Optimizer, clip_grad_norm};
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
    function: Function,
    clips: bool,
}

/// What a training step does besides.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TrainOptions {
    /// The largest norm of all gradients together; larger ones are scaled down.
    pub clip_norm: Option<f64>,
}

impl TrainOptions {
    /// With a largest norm of the gradients.
    pub fn clip_norm(self, norm: f64) -> TrainOptions {
        TrainOptions { clip_norm: Some(norm) }
    }
}

/// What a training step tells. Reading a number waits for the step; a loop that reads few of them keeps the device busy.
#[derive(Clone, Debug)]
pub struct StepResult {
    /// The loss before the step, rank 0.
    pub loss: Tensor,
    /// The norm of the gradients before clipping, rank 0; where they are clipped.
    pub norm: Option<Tensor>,
}

/// Compiles a training step: `loss` of a batch, its gradients with respect to `vars`, and what `optimizer` makes of them.
/// The learning rate can be set between runs ([`Optimizer::set_learning_rate`]).
///
/// # Errors
/// When `loss` fails or is no float of rank 0, has no gradient, depends on none of `vars`, or compiling fails.
pub fn train_step<O: Optimizer>(
    device: &Device,
    inputs: &[Input],
    vars: &[Var],
    optimizer: &mut O,
    options: TrainOptions,
    loss: impl FnOnce(&[Tensor]) -> Result<Tensor>,
) -> Result<TrainStep> {
    let function = compile(device, inputs, |batch| {
        let loss = loss(batch)?;
        if loss.rank() != 0 {
            let (got, shape) = (loss.rank(), loss.sym_shape().clone());
            return Err(Error::UnexpectedNumberOfDims { op: "train_step", expected: 0, got, shape });
        }
        let mut grads = loss.backward()?;
        if vars.iter().all(|var| grads.get(var).is_none()) {
            let why = "the loss depends on none of the variables".into();
            return Err(Error::InvalidArgument { op: "train_step", why });
        }
        let norm = options.clip_norm.map(|norm| clip_grad_norm(&mut grads, vars, norm)).transpose()?;
        optimizer.step(&grads)?;
        Ok([loss].into_iter().chain(norm).collect())
    })?;
    Ok(TrainStep { function, clips: options.clip_norm.is_some() })
}

impl TrainStep {
    /// Takes a step.
    ///
    /// # Errors
    /// As [`Function::run`].
    pub fn run(&self, batch: &[&Tensor]) -> Result<StepResult> {
        let mut results = self.function.run(batch)?.into_iter();
        let none = || Error::InvalidArgument { op: "train_step", why: "the function has no loss".into() };
        let loss = results.next().ok_or_else(none)?;
        Ok(StepResult { loss, norm: results.next().filter(|_| self.clips) })
    }

    /// The function, with its graph and its plan.
    pub fn function(&self) -> &Function {
        &self.function
    }
}
