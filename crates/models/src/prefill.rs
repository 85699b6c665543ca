//! Prefill steps for prompts of different lengths.
//!
//! Kernels are chosen for the most rows that a step may have: tiles of many rows leave most of a GPU idle for a prompt of
//! a few tokens. So there is a step for each limit of [`SHORT`], compiled when a prompt first needs it.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use tallow::{Device, Executable};

use crate::error::{Error, Result};

/// Most tokens of the steps for short prompts: from the rows of the smallest tile on, twice as many each.
const SHORT: [usize; 5] = [16, 32, 64, 128, 256];

/// The most tokens of the step that computes `tokens` tokens, of a model whose longest step takes up to `chunk`.
pub fn prefill_limit(tokens: usize, chunk: usize) -> usize {
    SHORT.into_iter().find(|limit| tokens <= *limit).map_or(chunk, |limit| limit.min(chunk))
}

/// The prefill steps of a model, each of which takes up to so many tokens.
#[derive(Debug)]
pub(crate) struct Prefill {
    /// The step for chunks of long prompts, compiled with the model.
    longest: Executable,
    /// Steps for fewer tokens, by the most that each takes; `None` where memory did not suffice.
    shorter: HashMap<usize, Option<Executable>>,
    chunk: usize,
}

impl Prefill {
    /// `longest` takes up to `chunk` tokens.
    pub(crate) fn new(longest: Executable, chunk: usize) -> Prefill {
        Prefill { longest, shorter: HashMap::new(), chunk }
    }

    /// The step for chunks of long prompts.
    pub(crate) fn longest(&self) -> &Executable {
        &self.longest
    }

    /// The step for `tokens` tokens; `compile` makes the step of up to as many tokens as it is given. Where memory does not
    /// suffice for it, the longest serves. The interpreter needs no other: it does the work of the rows that there are.
    pub(crate) fn step(
        &mut self,
        tokens: usize,
        compile: impl FnOnce(usize) -> Result<Executable>,
    ) -> Result<&Executable> {
        let limit = prefill_limit(tokens, self.chunk);
        if limit == self.chunk || matches!(self.longest.device(), Device::Cpu) {
            return Ok(&self.longest);
        }
        let step = match self.shorter.entry(limit) {
            Entry::Occupied(step) => step.into_mut(),
            Entry::Vacant(none) => none.insert(match compile(limit) {
                Ok(step) => Some(step),
                Err(Error::Tensor(tallow::Error::OutOfMemory { .. })) => None,
                Err(error) => return Err(error),
            }),
        };
        Ok(step.as_ref().unwrap_or(&self.longest))
    }
}
