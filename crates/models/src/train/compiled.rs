//! The compiled step of a training, with the model and the optimizer that it changes.

use tallow::nn::optim::AdamW;
use tallow::{DType, Input, Remat, StepResult, Tensor, TrainOptions, TrainStep, Var, train_step};

use super::examples::Batch;
use super::net::Net;
use crate::error::Result;

/// What a step of `batch` windows takes: tokens, the tokens after each, and how much each of those counts.
pub(super) fn inputs(batch: usize, context: usize) -> [Input; 3] {
    [("tokens", DType::U32), ("targets", DType::U32), ("weights", DType::F32)]
        .map(|(name, dtype)| Input::new(name, dtype, (batch, context)))
}

/// What a step learns.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Loss {
    /// All tokens alike; activations are dropped with this probability.
    Mean {
        /// It.
        dropout: f64,
    },
    /// Tokens as much as their weights say.
    Weighted,
}

/// What a step is besides its model.
#[derive(Clone, Copy, Debug)]
pub(super) struct StepOptions {
    /// Windows and their tokens.
    pub shape: (usize, usize),
    pub loss: Loss,
    /// The largest norm of all gradients.
    pub clip: f64,
    /// The most bytes of intermediate values; where absent, what the device has left.
    pub activation_memory: Option<u64>,
}

/// A model, its optimizer, and the function of their step.
pub(super) struct Compiled {
    pub net: Net,
    pub adam: AdamW,
    pub step: TrainStep,
    loss: Loss,
    /// Windows and their tokens.
    shape: (usize, usize),
}

impl Compiled {
    /// Compiles a step.
    ///
    /// # Errors
    /// When compiling fails, or memory runs out.
    pub fn new(net: Net, mut adam: AdamW, options: StepOptions) -> Result<Compiled> {
        let StepOptions { shape, loss, clip, activation_memory } = options;
        let vars: Vec<Var> = net.trained().into_iter().map(|(_, var)| var).collect();
        let inputs = inputs(shape.0, shape.1);
        let remat = activation_memory.map_or(Remat::Auto, Remat::Budget);
        let options = TrainOptions::default().clip_norm(clip).remat(remat);
        let step =
            train_step(
                net.device(),
                &inputs[..loss.inputs()],
                &vars,
                &mut adam,
                options,
                |batch| match loss {
                    Loss::Mean { dropout } => net.loss(&batch[0], &batch[1], dropout),
                    Loss::Weighted => net.weighted_loss(&batch[0], &batch[1], &batch[2]),
                },
            )?;
        Ok(Compiled { net, adam, step, loss, shape })
    }

    /// Submits a step.
    ///
    /// # Errors
    /// When the batch is of another shape, or the device fails.
    pub fn run(&self, batch: Batch) -> Result<StepResult> {
        let (shape, device) = (self.shape, self.net.device());
        let Batch { tokens, targets, weights } = batch;
        let mut tensors =
            vec![Tensor::from_vec(tokens, shape, device)?, Tensor::from_vec(targets, shape, device)?];
        match self.loss {
            Loss::Mean { .. } => {}
            Loss::Weighted => tensors.push(Tensor::from_vec(weights, shape, device)?),
        }
        Ok(self.step.run(&tensors.iter().collect::<Vec<_>>())?)
    }

    /// All that a step changes, by the names in checkpoints.
    pub fn variables(&self) -> Vec<(String, Var)> {
        let trained = self.net.trained();
        // The optimizer numbers its parameters, matrices first.
        let (matrices, vectors): (Vec<_>, Vec<_>) = trained.iter().partition(|(_, var)| var.rank() >= 2);
        let order: Vec<&str> = matrices.iter().chain(&vectors).map(|(name, _)| name.as_str()).collect();
        let states = self.adam.state().into_iter().map(|(state, var)| {
            let numbered = state.split_once('.').and_then(|(kind, number)| {
                let name = order.get(number.parse::<usize>().ok()?)?;
                (kind != "step").then(|| format!("optimizer.{kind}.{name}"))
            });
            (numbered.unwrap_or_else(|| format!("optimizer.{state}")), var)
        });
        let states: Vec<_> = states.collect();
        trained.into_iter().chain(states).collect()
    }
}

impl Loss {
    /// How many of [`inputs`] it takes.
    fn inputs(self) -> usize {
        match self {
            Loss::Mean { .. } => 2,
            Loss::Weighted => 3,
        }
    }
}
