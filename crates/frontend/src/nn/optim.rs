//! Optimizers: what a step makes of parameters and their gradients.
//!
//! Moments, the number of the step and the learning rate are [variables](crate::Var), and a step is an expression. So the
//! same code runs step by step, where all parameters are computed in one plan, and in a function that
//! [`crate::compile`] or [`crate::train_step`] records once, where nothing but data crosses the bus.

mod accumulate;
mod adamw;
mod clip;
mod ema;
mod groups;
mod lion;
mod loss_scale;
mod muon;
mod round;
mod schedule;
mod sgd;

pub use accumulate::GradAccumulator;
pub use adamw::{AdamW, ParamsAdamW};
pub use clip::clip_grad_norm;
pub use ema::Ema;
pub use groups::ParamGroup;
pub use lion::{Lion, ParamsLion};
pub use loss_scale::{LossScale, LossScaler};
pub use muon::{Muon, ParamsMuon};
pub use round::round_stochastically;
pub use schedule::Schedule;
pub use sgd::{ParamsSgd, SGD, Sgd};

use crate::backward::GradStore;
use crate::error::Result;
use crate::tensor::Tensor;
use crate::variable::Var;

/// What changes variables by their gradients.
pub trait Optimizer: Sized {
    /// Its settings.
    type Config: Sized;

    /// An optimizer of these variables; those that hold no floats are left out.
    ///
    /// # Errors
    /// When memory runs out.
    fn new(vars: Vec<Var>, config: Self::Config) -> Result<Self>;

    /// Changes the variables that have a gradient.
    ///
    /// # Errors
    /// When a gradient is not of its variable's shape, type and device.
    fn step(&mut self, grads: &GradStore) -> Result<()>;

    /// The learning rate.
    fn learning_rate(&self) -> f64;

    /// Sets the learning rate, also of functions that were compiled with this optimizer.
    fn set_learning_rate(&mut self, lr: f64);

    /// An optimizer of nothing yet.
    ///
    /// # Errors
    /// As [`Optimizer::new`].
    fn empty(config: Self::Config) -> Result<Self> {
        Self::new(vec![], config)
    }

    /// A step by the gradients of a loss.
    ///
    /// # Errors
    /// As [`Optimizer::step`] and [`Tensor::backward`].
    fn backward_step(&mut self, loss: &Tensor) -> Result<()> {
        let grads = loss.backward()?;
        self.step(&grads)
    }

    /// An optimizer of these variables.
    ///
    /// # Errors
    /// As [`Optimizer::new`].
    fn from_slice(vars: &[&Var], config: Self::Config) -> Result<Self> {
        Self::new(vars.iter().map(|var| (*var).clone()).collect(), config)
    }
}
