//! The loss on a text that is not trained on.

use tallow::{Device, Function, Tensor, compile};

use super::compiled::inputs;
use super::config::Options;
use super::corpus::Corpus;
use super::net::Net;
use crate::error::Result;

/// A text as windows that follow one another, and the function of their loss.
pub(super) struct Validation {
    /// Steps between two validations.
    pub every: usize,
    loss: Function,
    corpus: Corpus,
    /// Tokens of a window.
    context: usize,
    /// Windows of a run.
    count: usize,
    /// Windows of a validation.
    windows: usize,
}

impl Validation {
    /// Compiles the loss of the windows that the options allow. The text must have one.
    ///
    /// # Errors
    /// When compiling fails.
    pub fn new(corpus: Corpus, options: &Options, net: &Net) -> Result<Validation> {
        let most = options.validation_windows.unwrap_or(usize::MAX).max(1);
        let context = options.context;
        let windows = corpus.block_count(context).min(most);
        let count = options.batch.min(windows);
        let [tokens, targets, _] = inputs(count, context);
        let loss = compile(net.device(), &[tokens, targets], |batch| {
            Ok(vec![net.loss(&batch[0], &batch[1], 0.0)?])
        })?;
        let every = options.validate_every;
        Ok(Validation { every, loss, corpus, context, count, windows: windows / count * count })
    }

    /// The mean loss, in nats a token.
    ///
    /// # Errors
    /// When the device fails.
    pub fn loss(&self, device: &Device) -> Result<f32> {
        let mut losses = vec![];
        for from in (0..self.windows).step_by(self.count) {
            let [x, y] = self.corpus.blocks(self.context, from, self.count);
            let upload = |tokens: Vec<u32>| Tensor::from_vec(tokens, (self.count, self.context), device);
            losses.extend(self.loss.run(&[&upload(x)?, &upload(y)?])?);
        }
        let mut sum = 0.0;
        for loss in &losses {
            sum += f64::from(loss.to_scalar::<f32>()?);
        }
        Ok((sum / losses.len().max(1) as f64) as f32)
    }
}
