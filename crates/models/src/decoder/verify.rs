//! The kernels of a model's steps compared with the interpreter.

use std::ops::ControlFlow;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tallow::{DType, GraphState, KernelCheck, VerifyOptions};

use super::Decoder;
use crate::error::Result;
use crate::model_graph::{POS, SEQ, TOKENS};

/// What [`Decoder::verify`] runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerifySteps {
    /// Tokens of the prompt, and the position of the token after it. More than one run takes count as so many. 0 leaves the
    /// prompt out, and the decode step is at position 16.
    ///
    /// Prompts of other lengths may have other kernels: there are plans for powers of two.
    pub tokens: usize,
    /// Seed of the tokens and of what is in the cache.
    pub seed: u64,
    /// Which dispatches are compared.
    pub kernels: VerifyOptions,
}

/// A step of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VerifiedStep {
    /// One token, after others.
    Decode,
    /// A prompt.
    Prefill,
}

impl VerifiedStep {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            VerifiedStep::Decode => "decode",
            VerifiedStep::Prefill => "prefill",
        }
    }
}

/// Elements of the random values that fill a state, over and over.
const PERIOD: usize = 1 << 16;

impl Decoder {
    /// Runs a decode step and a prompt of random tokens one kernel at a time, and compares each kernel with the interpreter
    /// ([`tallow::Executable::verify`]). The cache has random values before, also behind the position. Clears the text.
    ///
    /// # Errors
    /// On the CPU, which has no kernels, and when the device fails.
    pub fn verify(
        &mut self,
        steps: &VerifySteps,
        visit: &mut dyn FnMut(VerifiedStep, KernelCheck) -> ControlFlow<()>,
    ) -> Result<()> {
        self.reset();
        self.included = None;
        let mut random = StdRng::seed_from_u64(steps.seed);
        let mut states: Vec<_> = self.parts.states.iter().collect();
        states.sort_unstable_by_key(|(name, _)| *name);
        states.into_iter().try_for_each(|(_, state)| fill(state, &mut random))?;
        let vocabulary = self.vocabulary as u32;
        let mut token = || random.random_range(0..vocabulary.max(1));
        let mut more = ControlFlow::Continue(());

        let count = if steps.tokens == 0 { 16 } else { steps.tokens };
        let position = count.min(self.context - 1) as u64;
        let next = token().to_le_bytes();
        let decode = self.decode.1.executable();
        decode.verify(&[(POS, position)], &[(TOKENS, &next)], &steps.kernels, &mut |check| {
            more = visit(VerifiedStep::Decode, check);
            more
        })?;
        if steps.tokens > 0 && more.is_continue() {
            let count = steps.tokens.min(self.chunk);
            let prompt: Vec<u8> = (0..count).flat_map(|_| token().to_le_bytes()).collect();
            let parts = &self.parts;
            let prefill = self.prefill.step(count, |limit| parts.prefill(limit))?;
            let symbols = [(POS, 0), (SEQ, count as u64)];
            prefill.verify(&symbols, &[(TOKENS, &prompt)], &steps.kernels, &mut |check| {
                visit(VerifiedStep::Prefill, check)
            })?;
        }
        Ok(())
    }
}

/// Fills a state with random values of at most 1, as far as it has floats.
fn fill(state: &GraphState, random: &mut StdRng) -> Result<()> {
    let ty = state.ty();
    let elements = ty.shape.max_numel() as usize;
    let mut value = || random.random_range(-1.0f32..1.0);
    // Whole blocks, of any format.
    let some: Vec<f32> = (0..elements.min(PERIOD)).map(|_| value()).collect();
    let period: Vec<u8> = match ty.dtype {
        DType::F32 => some.iter().flat_map(|x| x.to_le_bytes()).collect(),
        DType::F16 => some.iter().flat_map(|x| half::f16::from_f32(*x).to_le_bytes()).collect(),
        DType::BF16 => some.iter().flat_map(|x| half::bf16::from_f32(*x).to_le_bytes()).collect(),
        DType::Block(format) if format.can_quantize() => tallow_quant::quantize(format, &some)
            .expect("invariant: a state has whole blocks, and so has the period"),
        // No cache has these.
        DType::Block(_)
        | DType::F8E4M3
        | DType::F64
        | DType::U8
        | DType::U32
        | DType::I16
        | DType::I32
        | DType::I64 => return Ok(()),
    };
    let bytes = match ty.dtype {
        DType::Block(format) => format.row_bytes(elements).expect("invariant: a state has whole blocks"),
        DType::F32
        | DType::F16
        | DType::BF16
        | DType::F8E4M3
        | DType::F64
        | DType::U8
        | DType::U32
        | DType::I16
        | DType::I32
        | DType::I64 => period.len() / some.len().max(1) * elements,
    };
    let all: Vec<u8> = period.iter().copied().cycle().take(bytes).collect();
    Ok(state.write_bytes(&all)?)
}
