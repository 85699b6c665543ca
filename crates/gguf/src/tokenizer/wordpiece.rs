//! WordPiece (`tokenizer.ggml.model` = `bert`): a word is spelled with the longest tokens from left to right.
//!
//! Files mark the begin of a word with `▁` (U+2581) in place of the published `##` inside of words. BERT's
//! normalization and its splitting into words are those of the `tokenizers` crate. Its WordPiece is not used:
//! it tries all lengths of a word, which takes quadratic time on a long one.

use tokenizers::normalizers::bert::BertNormalizer;
use tokenizers::pre_tokenizers::bert::BertPreTokenizer;
use tokenizers::{
    NormalizedString, Normalizer as _, OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer as _,
};

use super::vocab::Vocab;
use crate::{GgufError, Metadata, optional};

/// The encoder.
pub struct WordPiece {
    normalizer: BertNormalizer,
    unknown: Option<u32>,
    /// Bytes of the longest token.
    longest: usize,
}

impl WordPiece {
    /// Builds the encoder; `tokenizer.ggml.normalizer.*` say whether case and accents count.
    pub fn from_metadata(
        metadata: &Metadata,
        vocab: &Vocab,
        unknown: Option<u32>,
    ) -> Result<WordPiece, GgufError> {
        let flag = |name: &str| optional(metadata.get_bool(&format!("tokenizer.ggml.normalizer.{name}")));
        let lowercase = flag("lowercase")?.unwrap_or(true);
        let remove_accents = flag("strip_accents")?.unwrap_or(lowercase);
        Ok(WordPiece {
            normalizer: BertNormalizer::new(true, true, Some(remove_accents), lowercase),
            unknown,
            longest: vocab.iter().map(|(_, text, _)| text.len()).max().unwrap_or(0),
        })
    }

    /// Appends the ids of a text without special tokens.
    pub fn encode(&self, text: &str, vocab: &Vocab, ids: &mut Vec<u32>) -> Result<(), GgufError> {
        let mut normalized = NormalizedString::from(text);
        self.normalizer.normalize(&mut normalized).map_err(|e| GgufError::Tokenizer(e.to_string()))?;
        let mut words = PreTokenizedString::from(normalized);
        BertPreTokenizer.pre_tokenize(&mut words).map_err(|e| GgufError::Tokenizer(e.to_string()))?;
        for (word, _, _) in words.get_splits(OffsetReferential::Normalized, OffsetType::None) {
            let start = ids.len();
            if !self.spell(&format!("\u{2581}{word}"), vocab, ids) {
                ids.truncate(start);
                let unknown =
                    || GgufError::Tokenizer(format!("no tokens for {word:?}, and no unknown token"));
                ids.push(self.unknown.ok_or_else(unknown)?);
            }
        }
        Ok(())
    }

    /// Appends the longest tokens from left to right; false if some part is none.
    fn spell(&self, word: &str, vocab: &Vocab, ids: &mut Vec<u32>) -> bool {
        const MARK: &str = "\u{2581}";
        let mut start = 0;
        while start < word.len() {
            // The mark in front belongs to the first token and is none alone; elsewhere it is only text, which
            // must not be taken for a mark.
            let is_token =
                |end: usize| if start == 0 { end > MARK.len() } else { !word[start..].starts_with(MARK) };
            let limit = (start + self.longest).min(word.len());
            let mut ends = (start + 1..=limit).rev().filter(|&end| word.is_char_boundary(end));
            let id = |end: usize| vocab.ordinary_id(&word[start..end]).filter(|_| is_token(end));
            match ends.find_map(|end| Some((end, id(end)?))) {
                Some((end, id)) => {
                    ids.push(id);
                    start = end;
                }
                None => return false,
            }
        }
        true
    }
}
