//! What the steps of a training take: windows of a text, or examples.

use std::path::Path;

use super::corpus::Windows;
use super::digest::digest;
use super::examples::{Batch, Shuffled};

/// What steps take.
#[derive(Clone, Debug)]
pub enum Data {
    /// Windows of a text, of which every token is learned.
    Text(Windows),
    /// Examples, of which completions are learned.
    Examples(Shuffled),
}

impl Data {
    /// Whether a file has examples, by its name.
    pub fn is_examples(path: &Path) -> bool {
        path.extension().is_some_and(|end| end == "jsonl" || end == "json")
    }

    /// Tokens of all the data.
    pub fn tokens(&self) -> usize {
        match self {
            Data::Text(windows) => windows.tokens(),
            Data::Examples(examples) => examples.examples().tokens(),
        }
    }

    /// How many steps of `batch` windows or examples a training has: those that were asked for, or as many as `epochs`
    /// passes take.
    pub(super) fn steps(&self, requested: Option<usize>, epochs: f64, batch: usize) -> usize {
        let of_pass = match self {
            Data::Text(windows) => windows.tokens() as f64 / windows.step_tokens() as f64,
            Data::Examples(examples) => examples.examples().count() as f64 / batch as f64,
        };
        requested.unwrap_or((epochs * of_pass).ceil() as usize).max(1)
    }

    /// A digest of all tokens, and of which of them are learned.
    pub(super) fn digest(&self) -> String {
        let bytes = |tokens: &[u32]| tokens.iter().flat_map(|token| token.to_le_bytes()).collect::<Vec<u8>>();
        match self {
            Data::Text(windows) => digest([bytes(&windows.corpus().tokens)]),
            Data::Examples(examples) => digest(examples.examples().rows().map(|(tokens, is_learned)| {
                // With its length, so that no two lists of examples are the same bytes.
                let length = (tokens.len() as u64).to_le_bytes().to_vec();
                let learned = is_learned.iter().map(|learned| u8::from(*learned)).collect();
                [length, bytes(tokens), learned].concat()
            })),
        }
    }

    /// What step number `step` takes.
    pub fn batch(&mut self, step: usize) -> Batch {
        match self {
            Data::Text(windows) => {
                let [tokens, targets] = windows.batch(step);
                let weights = vec![1.0; tokens.len()];
                Batch { tokens, targets, weights }
            }
            Data::Examples(examples) => examples.batch(step),
        }
    }
}
