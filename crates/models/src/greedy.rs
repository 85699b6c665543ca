//! Decode steps whose tokens the device chooses, submitted ahead of the host ([`crate::in_flight`]): while the host
//! looks at a token, the device is at the next one, which it took from memory of its own.

use std::collections::HashMap;
use std::ops::ControlFlow;

use tallow::{Device, Executable, GraphState, Outputs, Pending, Prepared, Weight};

use crate::error::{Error, Result};
use crate::in_flight::{self, MAX_IN_FLIGHT, Steps};
use crate::model_graph::{BEST, BEST_LOGIT, CHOSEN, POS, TOKENS};
use crate::options::Decode;

/// A decode step, as one executable or several that take turns.
#[derive(Debug)]
pub(crate) struct DecodeStep {
    first: Executable,
    /// For runs ahead of those of the first, of steps that choose.
    others: Vec<Executable>,
}

impl DecodeStep {
    pub(crate) fn new(
        prepared: &Prepared,
        what: Decode,
        weights: &HashMap<String, Weight>,
        states: &HashMap<String, GraphState>,
    ) -> Result<DecodeStep> {
        let first = prepared.bind(weights, states)?;
        let in_flight = match what {
            Decode::Logits => 1,
            // A run of the interpreter is done when it has started.
            Decode::Token if matches!(first.device(), Device::Cpu) => 1,
            // Polling wants each token as soon as it is ready: one step ahead is enough, and wake-ups are not batched.
            Decode::Token if first.device().polls() => 2,
            Decode::Token => MAX_IN_FLIGHT,
        };
        // As many as there is memory for; without any, steps wait for each other.
        let others = (1..in_flight).map_while(|_| prepared.bind(weights, states).ok()).collect();
        Ok(DecodeStep { first, others })
    }

    pub(crate) fn executable(&self) -> &Executable {
        &self.first
    }

    /// Whether steps are submitted before it is known that the text goes on.
    pub(crate) fn is_pipelined(&self) -> bool {
        !self.others.is_empty()
    }

    /// The token after `token`, which is at `position`.
    pub(crate) fn once(&self, token: u32, position: usize) -> Result<u32> {
        chosen(&start(&self.first, token, position)?.wait()?)
    }

    /// The tokens after `token`, which is at `position`: `count` of them, or until `on_token` breaks.
    ///
    /// Where steps were submitted that nobody wants, they have written rows of the cache behind the last one that counts,
    /// which are not read before they are written again. States of a recurrent model include them
    /// ([`DecodeStep::is_pipelined`]).
    pub(crate) fn follow(
        &self,
        token: u32,
        position: usize,
        count: usize,
        on_token: &mut dyn FnMut(u32) -> ControlFlow<()>,
    ) -> Result<()> {
        in_flight::follow(&mut Text { step: self, token, position }, count, on_token)
    }
}

/// The steps that continue a text by `token`, at `position`, and what is chosen from there on.
struct Text<'a> {
    step: &'a DecodeStep,
    token: u32,
    position: usize,
}

impl Steps for Text<'_> {
    type Run = Pending;
    type Output = u32;
    type Error = Error;

    fn most(&self) -> usize {
        1 + self.step.others.len()
    }

    fn submit(&mut self, index: usize) -> Result<Pending> {
        let executable = match index % self.most() {
            0 => &self.step.first,
            other => &self.step.others[other - 1],
        };
        let token = if index == 0 { self.token } else { CHOSEN };
        start(executable, token, self.position + index)
    }

    fn wait(&mut self, run: Pending) -> Result<u32> {
        chosen(&run.wait()?)
    }
}

/// Submits the step of one token.
fn start(executable: &Executable, token: u32, position: usize) -> Result<Pending> {
    Ok(executable.run_async(&[(POS, position as u64)], &[(TOKENS, &token.to_le_bytes())])?)
}

/// What the device chose.
fn chosen(outputs: &Outputs) -> Result<u32> {
    let word = |name| {
        let found = outputs.iter().find(|o| o.name == name);
        found.and_then(|o| o.bytes.first_chunk::<4>()).copied().ok_or(Error::NoLogits)
    };
    let best = u32::from_le_bytes(word(BEST)?);
    match f32::from_le_bytes(word(BEST_LOGIT)?).is_nan() {
        true => Err(Error::NanLogit { token: best as usize }),
        false => Ok(best),
    }
}
