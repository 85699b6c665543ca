//! Decode steps whose tokens the device chooses, one submitted ahead of the other: while the host looks at a token, the
//! device is at the next one, which it took from memory of its own. A host that sleeps meanwhile wakes too late for one
//! step, but in time for the one after it.

use std::collections::HashMap;
use std::ops::ControlFlow;

use tallow::{Device, Executable, Outputs, Pending, Prepared, State, Weight};

use crate::error::{Error, Result};
use crate::llama::{BEST, BEST_LOGIT, CHOSEN, POS, TOKENS};
use crate::model::Decode;

/// A decode step, as one executable or two that take turns.
#[derive(Debug)]
pub(crate) struct Step {
    first: Executable,
    /// For runs ahead of those of the first, of steps that choose.
    second: Option<Executable>,
}

impl Step {
    pub(crate) fn new(
        prepared: &Prepared,
        what: Decode,
        weights: &HashMap<String, Weight>,
        states: &HashMap<String, State>,
    ) -> Result<Step> {
        let first = prepared.bind(weights, states)?;
        let second = match (what, first.device()) {
            // A run of the interpreter is done when it has started.
            (Decode::Logits, _) | (_, Device::Cpu) => None,
            // There may be memory for one alone; then steps wait for each other.
            (Decode::Token, _) => prepared.bind(weights, states).ok(),
        };
        Ok(Step { first, second })
    }

    pub(crate) fn executable(&self) -> &Executable {
        &self.first
    }

    /// The token after `token`, which is at `position`.
    pub(crate) fn once(&self, token: u32, position: usize) -> Result<u32> {
        chosen(&start(&self.first, token, position)?.wait()?)
    }

    /// The tokens after `token`, which is at `position`: `count` of them, at least 1, or until `on_token` breaks.
    ///
    /// Before a token is waited for, the step after it is submitted. Where that was one too many, it has written the row of
    /// the cache behind the last one that counts, which is not read before it is written again.
    pub(crate) fn follow(
        &self,
        token: u32,
        position: usize,
        count: usize,
        on_token: &mut dyn FnMut(u32) -> ControlFlow<()>,
    ) -> Result<()> {
        let Some(second) = &self.second else { return self.one_by_one(token, position, count, on_token) };
        let executables = [&self.first, second];
        let mut run = start(&self.first, token, position)?;
        let mut given = 0;
        loop {
            given += 1;
            let next = (given < count).then(|| start(executables[given % 2], CHOSEN, position + given));
            let token = run.wait().map_err(Error::from).and_then(|outputs| chosen(&outputs));
            let ended = token.map(|token| on_token(token).is_break());
            match next {
                Some(next) if matches!(ended, Ok(false)) => run = next?,
                unused => {
                    // Its executable takes no other run before it is done. Errors of the device come again with that.
                    if let Some(Ok(unused)) = unused {
                        let _ = unused.wait();
                    }
                    return ended.map(|_| ());
                }
            }
        }
    }

    /// [`Step::follow`] with one executable.
    fn one_by_one(
        &self,
        mut token: u32,
        position: usize,
        count: usize,
        on_token: &mut dyn FnMut(u32) -> ControlFlow<()>,
    ) -> Result<()> {
        for given in 0..count {
            token = self.once(token, position + given)?;
            if on_token(token).is_break() {
                break;
            }
        }
        Ok(())
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
