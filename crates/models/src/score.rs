//! A model that is asked how probable a given text is, instead of what follows it.

use tallow::{Device, ExecStats, Executable};

use crate::decoder::{Source, states, upload};
use crate::error::{Error, Result};
use crate::fit::Fit;
use crate::memory::{Purpose, steps};
use crate::model::ModelFile;
use crate::model_graph::{LOG_PROBABILITIES, NEXT, POS, SEQ, TOKENS};
use crate::options::{LoadOptions, Progress};
use crate::step_graphs::with_cache;
use crate::tokens::{check_tokens, f32s, to_bytes};

/// A model on a device that scores text: weights resident, two graphs compiled, a cache.
///
/// The logits, one for each token of the vocabulary at each position, stay on the device.
#[derive(Debug)]
pub struct Scorer {
    vocabulary: usize,
    context: usize,
    chunk: usize,
    prefill: Executable,
    score: Executable,
    /// Tokens in the cache.
    position: usize,
}

impl Scorer {
    /// Copies the weights to the device and compiles the graphs.
    ///
    /// # Errors
    /// When the options do not fit the model, it does not fit the memory ([`Error::DoesNotFit`]), or compiling fails.
    pub fn load(
        file: &ModelFile,
        device: &Device,
        options: &LoadOptions,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Scorer> {
        let host_layers = Fit::check(&file.model, device, options, Purpose::Score)?;
        let source = Source { file: &file.file, host_layers };
        let context = file.context(options)?;
        let chunk = options.chunk_within(&file.model.config, context);
        let model = with_cache(&file.model, options)?;
        let [prefill, score] = steps(&file.model, device.caps(), options, Purpose::Score)?;
        let weights = upload(source, &model, device, &score, progress)?;
        let states = states(&model, device, context)?;
        progress(Progress::Compile { graph: "prefill" });
        let prefill = device.compile(&prefill, &weights, &states)?;
        progress(Progress::Compile { graph: "score" });
        let score = device.compile(&score, &weights, &states)?;
        Ok(Scorer { vocabulary: file.model.vocabulary, context, chunk, prefill, score, position: 0 })
    }

    /// Forgets the text.
    pub fn reset(&mut self) {
        // Rows beyond the position are never read, so the cache need not be cleared.
        self.position = 0;
    }

    /// Positions of the cache.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Tokens that the cache holds.
    pub fn position(&self) -> usize {
        self.position
    }

    /// Continues the text by `tokens` without scoring them.
    ///
    /// # Errors
    /// When there are none, they do not fit the context or the vocabulary, or the device fails.
    pub fn feed(&mut self, tokens: &[u32]) -> Result<()> {
        check_tokens(tokens, self.position, self.context, self.vocabulary)?;
        for part in tokens.chunks(self.chunk) {
            let symbols = [(POS, self.position as u64), (SEQ, part.len() as u64)];
            self.prefill.run(&symbols, &[(TOKENS, &to_bytes(part))])?;
            self.position += part.len();
        }
        Ok(())
    }

    /// Continues the text by `tokens` and gives, for each of them, the natural logarithm of the probability that
    /// the token at the same place of `next` follows it and all before. A text is scored by giving it twice,
    /// the second time without its first token.
    ///
    /// # Errors
    /// When there are none, not as many of one as of the other, they do not fit the context or the vocabulary,
    /// or the device fails.
    pub fn score(&mut self, tokens: &[u32], next: &[u32]) -> Result<Vec<f32>> {
        check_tokens(tokens, self.position, self.context, self.vocabulary)?;
        if tokens.len() != next.len() {
            return Err(Error::UnequalTokens { tokens: tokens.len(), next: next.len() });
        }
        // They are no positions of their own.
        check_tokens(next, 0, self.context, self.vocabulary)?;
        let mut scores = Vec::with_capacity(tokens.len());
        for (part, next) in tokens.chunks(self.chunk).zip(next.chunks(self.chunk)) {
            let symbols = [(POS, self.position as u64), (SEQ, part.len() as u64)];
            let inputs = [(TOKENS, to_bytes(part)), (NEXT, to_bytes(next))];
            let outputs =
                self.score.run(&symbols, &inputs.each_ref().map(|(name, b)| (*name, b.as_slice())))?;
            let found = outputs.into_iter().find(|o| o.name == LOG_PROBABILITIES);
            scores.extend(f32s(&found.ok_or(Error::NoLogits)?.bytes));
            self.position += part.len();
        }
        Ok(scores)
    }

    /// Figures of the graph that scores.
    pub fn stats(&self) -> ExecStats {
        self.score.stats()
    }

    /// The device.
    pub fn device(&self) -> &Device {
        self.score.device()
    }
}
