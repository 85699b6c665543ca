//! Texts as tokens, and the windows of them that steps take.

use std::path::PathBuf;

use tallow_gguf::Tokenizer;

use super::error::TrainError;
use crate::error::Result;

/// The tokens of a text.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Corpus {
    /// They, one document after the other.
    pub tokens: Vec<u32>,
}

impl Corpus {
    /// Reads texts. A line that is the tokenizer's end token divides documents. Each document begins and ends with the
    /// tokenizer's tokens for that; other control tokens in it are text.
    ///
    /// # Errors
    /// When a file cannot be read, is not UTF-8, or has a character that the tokenizer cannot encode.
    pub fn read(paths: &[PathBuf], tokenizer: &Tokenizer) -> Result<Corpus> {
        let end = tokenizer.eos().and_then(|id| tokenizer.token_text(id));
        let divider = end.map(|end| format!("\n{end}\n"));
        let mut tokens = vec![];
        for path in paths {
            let text = std::fs::read_to_string(path)
                .map_err(|source| TrainError::Read { path: path.clone(), source })?;
            let documents: Vec<&str> = match &divider {
                Some(divider) => text.split(divider.as_str()).collect(),
                None => vec![&text],
            };
            for document in documents.into_iter().filter(|document| !document.is_empty()) {
                tokens.extend(tokenizer.bos());
                tokens.extend(tokenizer.encode_ordinary(document, false)?);
                tokens.extend(tokenizer.eos());
            }
        }
        Ok(Corpus { tokens })
    }

    /// Cuts the last twentieth off, to validate on.
    pub fn split(mut self) -> (Corpus, Corpus) {
        let at = self.tokens.len() - self.tokens.len() / 20;
        let tail = Corpus { tokens: self.tokens.split_off(at) };
        (self, tail)
    }

    /// Checks that there is a window of `context` tokens.
    ///
    /// # Errors
    /// When there is none; `what` names the text.
    pub fn check(&self, what: &'static str, context: usize) -> Result<()> {
        let (tokens, needed) = (self.tokens.len(), context + 1);
        if tokens < needed {
            return Err(TrainError::TooShort { what, tokens, needed }.into());
        }
        Ok(())
    }

    /// Windows number `from .. from + count` of those of `context` tokens that follow one another: the tokens, and the
    /// tokens after each.
    pub fn blocks(&self, context: usize, from: usize, count: usize) -> [Vec<u32>; 2] {
        let all = from * context..(from + count) * context;
        [all.clone(), all.start + 1..all.end + 1].map(|range| self.tokens[range].to_vec())
    }

    /// How many such windows there are.
    pub fn block_count(&self, context: usize) -> usize {
        self.tokens.len().saturating_sub(1) / context
    }
}

/// Windows of a text at random places. Which ones a step takes depends on the seed and its number alone.
#[derive(Clone, Debug)]
pub struct Windows {
    corpus: Corpus,
    context: usize,
    batch: usize,
    seed: u64,
}

impl Windows {
    /// `batch` windows of `context` tokens a step.
    ///
    /// # Errors
    /// When the text has no such window.
    pub fn new(corpus: Corpus, context: usize, batch: usize, seed: u64) -> Result<Windows> {
        corpus.check("the text", context)?;
        Ok(Windows { corpus, context, batch, seed })
    }

    /// The text.
    pub fn corpus(&self) -> &Corpus {
        &self.corpus
    }

    /// Tokens of the text.
    pub fn tokens(&self) -> usize {
        self.corpus.tokens.len()
    }

    /// Tokens of a step.
    pub fn step_tokens(&self) -> usize {
        self.batch * self.context
    }

    /// The windows of step number `step`, each `batch * context` numbers: the tokens, and the tokens after each.
    pub fn batch(&self, step: usize) -> [Vec<u32>; 2] {
        let places = (self.corpus.tokens.len() - self.context) as u128;
        let mut windows = [vec![], vec![]];
        for row in 0..self.batch {
            let counter = (step as u64).wrapping_mul(self.batch as u64).wrapping_add(row as u64);
            let drawn = mixed(mixed(self.seed) ^ counter);
            // The high half of the product is uniform below `places`, up to one part in 2^64 / places.
            let at = ((u128::from(drawn) * places) >> 64) as usize;
            windows[0].extend(&self.corpus.tokens[at..at + self.context]);
            windows[1].extend(&self.corpus.tokens[at + 1..at + 1 + self.context]);
        }
        windows
    }
}

/// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): a bijection whose outputs look random for successive inputs.
pub(super) fn mixed(counter: u64) -> u64 {
    let x = counter.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_all_places_and_depend_on_the_step_alone() {
        let corpus = Corpus { tokens: (0..14).collect() };
        let windows = Windows::new(corpus.clone(), 4, 5, 7).unwrap();
        let mut seen = [0; 14];
        for step in 0..200 {
            let [x, y] = windows.batch(step);
            assert_eq!([x.clone(), y.clone()], windows.batch(step));
            assert!(x.iter().zip(&y).all(|(x, y)| x + 1 == *y));
            x.iter().step_by(4).for_each(|at| seen[*at as usize] += 1);
        }
        // Ten places, 100 draws each.
        assert!(seen[..10].iter().all(|count| (60..140).contains(count)), "{seen:?}");
        assert_eq!(seen[10..], [0; 4]);
        assert_ne!(windows.batch(3), Windows::new(corpus.clone(), 4, 5, 8).unwrap().batch(3));
        let error = Windows::new(corpus, 14, 1, 0).unwrap_err().to_string();
        assert_eq!(
            error,
            "the text has 14 tokens, at least 15 are needed (a context and the token after it)"
        );
    }

    #[test]
    fn blocks_follow_one_another() {
        let corpus = Corpus { tokens: (0..10).collect() };
        assert_eq!(corpus.block_count(3), 3);
        assert_eq!(corpus.blocks(3, 1, 2), [(3..9).collect::<Vec<_>>(), (4..10).collect()]);
    }
}
