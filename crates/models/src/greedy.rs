//! Decode steps whose tokens the device chooses, one submitted ahead of the other: while the host looks at a token, the
//! device is at the next one, which it took from memory of its own. A host that sleeps meanwhile wakes too late for one
//! step, but in time for the one after it.

use std::collections::HashMap;
use std::ops::ControlFlow;

use tallow::{Device, Executable, Outputs, Pending, Prepared, State, Weight};

use crate::error::{Error, Result};
use crate::llama::{BEST, BEST_LOGIT, CHOSEN, POS, TOKENS};

/// A decode step as kernels, and one executable of it or two.
#[derive(Debug)]
pub(crate) struct Step {
    prepared: Prepared,
    first: Executable,
    /// For runs ahead of those of the first, once there were any.
    second: Option<Executable>,
}

/// Weights and states of a model, by name.
type Leaves<'a> = (&'a HashMap<String, Weight>, &'a HashMap<String, State>);

impl Step {
    pub(crate) fn new(prepared: Prepared, (weights, states): Leaves<'_>) -> Result<Step> {
        let first = prepared.bind(weights, states)?;
        Ok(Step { prepared, first, second: None })
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
        &mut self,
        (weights, states): Leaves<'_>,
        token: u32,
        position: usize,
        count: usize,
        on_token: &mut dyn FnMut(u32) -> ControlFlow<()>,
    ) -> Result<()> {
        if matches!(self.first.device(), Device::Cpu) {
            return self.one_by_one(token, position, count, on_token);
        }
        let second = match &mut self.second {
            Some(second) => second,
            none => none.insert(self.prepared.bind(weights, states)?),
        };
        let executables = [&self.first, &*second];
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

    /// [`Step::follow`] where a run is done when it has started.
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
