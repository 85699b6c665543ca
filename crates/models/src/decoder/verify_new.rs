//! The short form of [`Decoder::verify`]: kernels that a driver has not computed before.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tallow::{KernelCheck, VerifiedKernels, VerifyOptions};

use super::Decoder;
use super::verify::VerifiedStep;
use crate::error::Result;
use crate::model_graph::{POS, SEQ, TOKENS};

/// Tokens of the prompt: tiles of 16, 32, 64 and 128 rows, and the last one not full.
const PROMPT: usize = 200;

/// A kernel that computes something else than the interpreter.
#[derive(Clone, Debug, PartialEq)]
pub struct WrongKernel {
    /// The step that it is from.
    pub step: VerifiedStep,
    /// How it differs.
    pub check: KernelCheck,
}

impl Decoder {
    /// Compares the kernels of the two steps that were compiled with the model with the interpreter, as [`Decoder::verify`],
    /// but only those that are not in `verified`, and adds those that are right
    /// ([`Executable::verify_new`](tallow::Executable::verify_new)). Ends at the first that is wrong. Does nothing if there
    /// are no new kernels, and on the CPU, which has none.
    ///
    /// The text is empty afterwards; else the model is as before. Steps for shorter prompts, which are compiled when a prompt
    /// first needs them, are not compared.
    ///
    /// # Errors
    /// When the device fails.
    pub fn verify_new(
        &mut self,
        verified: &mut VerifiedKernels,
        options: &VerifyOptions,
        visit: &mut dyn FnMut(VerifiedStep, &KernelCheck),
    ) -> Result<Option<WrongKernel>> {
        self.reset();
        self.included = None;
        if self.new_kernels(verified) == 0 {
            return Ok(None);
        }
        let (decode, prefill) = (self.decode.1.executable(), self.prefill.longest());
        let mut random = StdRng::seed_from_u64(0);
        let vocabulary = self.vocabulary as u32;
        let mut token = || random.random_range(0..vocabulary.max(1));
        // The prompt fills the cache for the token after it.
        let count = PROMPT.min(self.chunk).min(self.context - 1);
        let prompt: Vec<u8> = (0..count).flat_map(|_| token().to_le_bytes()).collect();
        let next = token().to_le_bytes();
        let (filled, position) = ([(POS, 0), (SEQ, count as u64)], [(POS, count as u64)]);
        let steps = [
            (VerifiedStep::Prefill, prefill, &filled[..], &prompt[..]),
            (VerifiedStep::Decode, decode, &position[..], &next[..]),
        ];
        for (step, executable, symbols, tokens) in steps {
            if tokens.is_empty() {
                continue;
            }
            let inputs = [(TOKENS, tokens)];
            let mut visit = |check: &KernelCheck| visit(step, check);
            let wrong = executable.verify_new(symbols, &inputs, options, verified, &mut visit)?;
            if let Some(check) = wrong {
                return Ok(Some(WrongKernel { step, check }));
            }
        }
        Ok(None)
    }

    /// How many kernels [`Decoder::verify_new`] would compare.
    pub fn new_kernels(&self, verified: &VerifiedKernels) -> usize {
        let mut new = self.decode.1.executable().new_kernels(verified);
        new.append(&mut self.prefill.longest().new_kernels(verified));
        new.len()
    }
}
