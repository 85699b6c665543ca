//! Perplexity: how well a model predicts a text, as the number of equally likely tokens that it would have to
//! choose from at each position to do as badly.
//!
//! The method is that of llama.cpp's tool of this name, so that figures can be compared: the text is cut into
//! disjoint chunks, what is left over at its end is dropped, each chunk starts with an empty cache and with
//! the model's begin token in place of its first one, and only tokens that have at least half a chunk before
//! them count. In a chunk of `n`, these are the tokens at `n/2 + 1 .. n`, each predicted at the position before.

use std::num::NonZero;

use crate::error::{Error, Result};
use crate::score::Scorer;

/// The fewest tokens of a chunk: two of them are scored, which a standard error needs.
pub const MIN_CHUNK: usize = 5;

/// How a text is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PerplexityOptions {
    /// Tokens of a chunk.
    pub chunk: usize,
    /// The most chunks to take, from the start of the text; all of them where not given.
    pub chunks: Option<NonZero<usize>>,
    /// The token that each chunk begins with, in place of its own first one.
    pub bos: Option<u32>,
}

impl PerplexityOptions {
    /// How many chunks a text of `tokens` tokens gives.
    ///
    /// # Errors
    /// When the chunks are too short, or the text has not a single one.
    pub fn count(&self, tokens: usize) -> Result<usize> {
        if self.chunk < MIN_CHUNK {
            return Err(Error::ChunkTooShort { chunk: self.chunk, min: MIN_CHUNK });
        }
        match (tokens / self.chunk).min(self.chunks.map_or(usize::MAX, NonZero::get)) {
            0 => Err(Error::TextTooShort { tokens, chunk: self.chunk }),
            count => Ok(count),
        }
    }
}

/// The sum over the tokens scored so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Perplexity {
    /// Chunks taken.
    pub chunks: usize,
    /// Tokens scored.
    pub tokens: usize,
    sum: f64,
    squares: f64,
}

impl Perplexity {
    /// Adds the logarithm of one token's probability.
    fn add(&mut self, log_probability: f64) {
        self.tokens += 1;
        self.sum -= log_probability;
        self.squares += log_probability * log_probability;
    }

    /// The mean of `-log p` over the tokens scored, in nats.
    pub fn mean(&self) -> f64 {
        self.sum / self.tokens as f64
    }

    /// `e` to the mean.
    pub fn value(&self) -> f64 {
        self.mean().exp()
    }

    /// The standard error of [`Perplexity::value`]: that of the mean, as if tokens were drawn independently,
    /// times the derivative of `e^mean`, which is the value again.
    pub fn standard_error(&self) -> f64 {
        let variance = self.squares / self.tokens as f64 - self.mean().powi(2);
        // Equal numbers may leave a variance just below 0.
        (variance.max(0.0) / (self.tokens as f64 - 1.0)).sqrt() * self.value()
    }
}

/// Measures `tokens`, a whole text. `on_chunk` sees the sums after each chunk.
///
/// # Errors
/// When the text is shorter than a chunk, a chunk does not fit the scorer's context, a token is not in the
/// vocabulary, a probability is NaN, or the device fails.
pub fn perplexity(
    scorer: &mut Scorer,
    tokens: &[u32],
    options: &PerplexityOptions,
    on_chunk: &mut dyn FnMut(&Perplexity),
) -> Result<Perplexity> {
    let count = options.count(tokens.len())?;
    let first = options.chunk / 2;
    let mut sums = Perplexity::default();
    for (index, text) in tokens.chunks_exact(options.chunk).take(count).enumerate() {
        let mut head = text[..first].to_vec();
        head[0] = options.bos.unwrap_or(head[0]);
        scorer.reset();
        scorer.feed(&head)?;
        // Nothing follows the last token.
        let scores = scorer.score(&text[first..options.chunk - 1], &text[first + 1..])?;
        for (score, place) in scores.into_iter().zip(first + 1..) {
            if score.is_nan() {
                return Err(Error::NanProbability { position: index * options.chunk + place });
            }
            sums.add(f64::from(score));
        }
        sums.chunks += 1;
        on_chunk(&sums);
    }
    Ok(sums)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_those_of_a_sample() {
        let mut sums = Perplexity::default();
        for p in [0.5f64, 0.25, 0.125, 0.25] {
            sums.add(p.ln());
        }
        // -log2 of them is 1, 2, 3, 2: the mean is 2, the variance 1/2 of 4 values, the error sqrt(1/2 / 3).
        assert!((sums.value() - 4.0).abs() < 1e-12);
        let expected = (0.5f64 / 3.0).sqrt() * std::f64::consts::LN_2 * 4.0;
        assert!((sums.standard_error() - expected).abs() < 1e-12);
    }

    #[test]
    fn equal_probabilities_have_no_error() {
        let mut sums = Perplexity::default();
        for _ in 0..1000 {
            sums.add(0.1f64.ln());
        }
        assert!((sums.value() - 10.0).abs() < 1e-9 && sums.standard_error() < 1e-6);
    }

    #[test]
    fn chunks_are_whole_and_long_enough() {
        let options = |chunk, chunks| PerplexityOptions { chunk, chunks: NonZero::new(chunks), bos: None };
        assert_eq!(options(10, 0).count(39).unwrap(), 3);
        assert_eq!(options(10, 2).count(39).unwrap(), 2);
        assert!(matches!(options(10, 0).count(9), Err(Error::TextTooShort { tokens: 9, chunk: 10 })));
        assert!(matches!(options(4, 0).count(100), Err(Error::ChunkTooShort { chunk: 4, min: 5 })));
    }
}
