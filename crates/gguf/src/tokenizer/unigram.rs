//! SentencePiece's unigram model (`tokenizer.ggml.model` = `t5`): of all ways to spell a text, the one whose
//! tokens have the highest sum of scores. The search is that of the `tokenizers` crate.

use tokenizers::Model as _;
use tokenizers::models::unigram::Unigram as Model;

use super::charsmap::Charsmap;
use super::vocab::{TokenKind, Vocab};
use crate::{GgufError, Metadata, optional};

/// The encoder.
pub struct Unigram {
    model: Model,
    /// Ids by the model's own numbers: it holds only tokens that text may contain.
    ids: Vec<Option<u32>>,
    charsmap: Option<Charsmap>,
    add_space_prefix: bool,
    merge_spaces: bool,
}

impl Unigram {
    /// Builds the encoder from `tokenizer.ggml.scores` and the keys of its normalization.
    pub fn from_metadata(
        metadata: &Metadata,
        vocab: &Vocab,
        unknown: Option<u32>,
        add_space_prefix: bool,
    ) -> Result<Unigram, GgufError> {
        let scores = vocab.scores(metadata)?;
        // Number zero is the unknown token, under a text that matches nothing.
        let mut ids = vec![unknown];
        let mut tokens = vec![(String::new(), 0.0)];
        for (id, text, kind) in vocab.iter() {
            let score = match kind {
                TokenKind::Normal | TokenKind::Unused => f64::from(scores[id as usize]),
                // Scores are logarithms of probabilities: nothing is likelier than zero.
                TokenKind::UserDefined => 0.0,
                TokenKind::Control | TokenKind::Unknown | TokenKind::Byte => continue,
            };
            ids.push(Some(id));
            tokens.push((text.to_owned(), score));
        }
        let merge_spaces = optional(metadata.get_bool("tokenizer.ggml.remove_extra_whitespaces"))?;
        Ok(Unigram {
            model: Model::from(tokens, Some(0), false).map_err(|e| GgufError::Tokenizer(e.to_string()))?,
            ids,
            charsmap: Charsmap::from_metadata(metadata)?,
            add_space_prefix,
            merge_spaces: merge_spaces.unwrap_or(false),
        })
    }

    /// Appends the ids of a text without special tokens.
    pub fn encode(&self, text: &str, ids: &mut Vec<u32>) -> Result<(), GgufError> {
        let normalized = self.normalize(text)?;
        if normalized.is_empty() {
            return Ok(());
        }
        let tokens = self.model.tokenize(&normalized).map_err(|e| GgufError::Tokenizer(e.to_string()))?;
        for token in tokens {
            let id = self.ids.get(token.id as usize).copied().flatten();
            ids.push(id.ok_or_else(|| {
                GgufError::Tokenizer(format!("no tokens for {:?}, and no unknown token", token.value))
            })?);
        }
        Ok(())
    }

    /// Applies the character map, and turns spaces into `▁` (U+2581): one in front if so asked, and one in
    /// place of several.
    fn normalize(&self, text: &str) -> Result<String, GgufError> {
        const SPACE: char = '\u{2581}';
        let mut normalized = String::with_capacity(text.len() + SPACE.len_utf8());
        let (mut prefixed, mut in_word) = (false, false);
        let mut push = |c: char| {
            if c != ' ' {
                if !in_word && (self.merge_spaces || (self.add_space_prefix && !prefixed)) {
                    normalized.push(SPACE);
                    prefixed = true;
                }
                normalized.push(c);
            } else if !self.merge_spaces {
                normalized.push(SPACE);
            }
            in_word = c != ' ';
        };
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            let replaced = match &self.charsmap {
                Some(charsmap) => charsmap.replace(rest)?,
                None => None,
            };
            match replaced {
                Some((length, replacement)) => {
                    replacement.chars().for_each(&mut push);
                    rest = &rest[length..];
                }
                None => {
                    push(first);
                    rest = &rest[first.len_utf8()..];
                }
            }
        }
        Ok(normalized)
    }
}
