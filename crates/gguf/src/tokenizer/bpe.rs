//! BPE (`tokenizer.ggml.model` = `gpt2` or `gemma4`): a pre-tokenizer cuts the text into pieces, and merges
//! join a piece's characters in the order of their ranks. In most vocabularies each byte is a character.

use std::collections::HashSet;

use tokenizers::Model as _;
use tokenizers::models::bpe::BPE;

use super::byte_level::byte_char;
use super::pre::{PreTokenizer, Spelling};
use super::split::Splitter;
use super::vocab::{TokenSpelling, Vocab};
use crate::{GgufError, Metadata, optional};

/// The encoder.
pub struct Bpe {
    model: BPE,
    splitter: Splitter,
    pre: &'static PreTokenizer,
    /// Bytes for which there is no token, and which would be dropped without a word.
    missing: Vec<u8>,
    /// `<0x00>` to `<0xFF>`, if the vocabulary has them all.
    has_byte_tokens: bool,
}

impl Bpe {
    /// Builds the encoder from `tokenizer.ggml.merges`.
    pub fn from_metadata(
        metadata: &Metadata,
        vocab: &Vocab,
        pre: &'static PreTokenizer,
    ) -> Result<Bpe, GgufError> {
        let ids: tokenizers::models::bpe::Vocab =
            vocab.iter().map(|(id, text, _)| (text.to_owned(), id)).collect();
        let missing =
            (0..=u8::MAX).filter(|&b| vocab.id(byte_char(b).encode_utf8(&mut [0; 4])).is_none()).collect();
        let model = BPE::builder()
            .vocab_and_merges(ids, merges(metadata, pre)?)
            .byte_fallback(pre.traits.spelling == Spelling::Escaped)
            .build()
            .map_err(|e| GgufError::Tokenizer(e.to_string()))?;
        Ok(Bpe {
            model,
            splitter: Splitter::new(pre.patterns)?,
            pre,
            missing,
            has_byte_tokens: vocab.byte_ids().iter().all(Option::is_some),
        })
    }

    /// Appends the ids of a text without special tokens.
    pub fn encode(&self, text: &str, vocab: &Vocab, ids: &mut Vec<u32>) -> Result<(), GgufError> {
        let escaped;
        let text = match self.pre.traits.spelling {
            Spelling::Bytes | Spelling::Plain => text,
            Spelling::Escaped => {
                escaped = text.replace(' ', "\u{2581}");
                &escaped
            }
        };
        let mut spelled = String::new();
        for piece in self.splitter.split(text) {
            let piece = &text[piece];
            let word = match self.pre.traits.spelling {
                Spelling::Bytes => {
                    // Bytes without a token are left out, as llama.cpp does; nothing merges across them.
                    let known = piece.as_bytes().split(|byte| self.missing.contains(byte));
                    for part in known.filter(|part| !part.is_empty()) {
                        spelled.clear();
                        spelled.extend(part.iter().map(|&byte| byte_char(byte)));
                        self.encode_word(&spelled, vocab, ids)?;
                    }
                    continue;
                }
                Spelling::Escaped => {
                    self.check_characters(piece, vocab)?;
                    piece
                }
                Spelling::Plain if piece.chars().all(char::is_whitespace) && vocab.id(piece).is_none() => {
                    continue;
                }
                Spelling::Plain => {
                    self.check_characters(piece, vocab)?;
                    piece
                }
            };
            self.encode_word(word, vocab, ids)?;
        }
        Ok(())
    }

    fn encode_word(&self, word: &str, vocab: &Vocab, ids: &mut Vec<u32>) -> Result<(), GgufError> {
        let newlines = self.pre.traits.newline_runs && word.bytes().all(|byte| byte == b'\n');
        if (self.pre.traits.ignore_merges || newlines)
            && let Some(id) = vocab.ordinary_id(word)
        {
            ids.push(id);
            return Ok(());
        }
        let tokens = self.model.tokenize(word).map_err(|e| GgufError::Tokenizer(e.to_string()))?;
        ids.extend(tokens.into_iter().map(|token| token.id));
        Ok(())
    }

    fn check_characters(&self, piece: &str, vocab: &Vocab) -> Result<(), GgufError> {
        let missing = |c: &char| vocab.id(c.encode_utf8(&mut [0; 4])).is_none();
        match piece.chars().find(|c| !self.has_byte_tokens && missing(c)) {
            Some(c) => Err(GgufError::Tokenizer(format!("the vocabulary has no token for {c:?}"))),
            None => Ok(()),
        }
    }
}

/// How tokens of a pre-tokenizer's vocabulary are decoded.
pub fn token_spelling(pre: &PreTokenizer) -> TokenSpelling {
    match pre.traits.spelling {
        Spelling::Bytes => TokenSpelling::Bytes,
        Spelling::Escaped | Spelling::Plain => TokenSpelling::Escaped,
    }
}

/// The pairs of `tokenizer.ggml.merges`; of a pair that comes twice, the first counts.
fn merges(metadata: &Metadata, pre: &PreTokenizer) -> Result<Vec<(String, String)>, GgufError> {
    let key = "tokenizer.ggml.merges";
    let merges = match optional(metadata.get_strs(key))? {
        Some(merges) => merges,
        None if pre.traits.no_merges => &[],
        None => return Err(GgufError::MissingKey(key.to_owned())),
    };
    let mut seen = HashSet::with_capacity(merges.len());
    let mut pairs = Vec::with_capacity(merges.len());
    for merge in merges.iter().filter(|merge| seen.insert(merge.as_str())) {
        // The first character may itself be a space.
        let first = merge.chars().next().map_or(0, char::len_utf8);
        match merge[first..].split_once(' ') {
            Some((a, b)) => pairs.push((merge[..first + a.len()].to_owned(), b.to_owned())),
            None => return Err(GgufError::Tokenizer(format!("merge {merge:?} is not two tokens"))),
        }
    }
    Ok(pairs)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The words that a kind cuts a text into.
    fn words(name: &str, text: &str) -> Vec<String> {
        let (_, pre) = super::super::pre::find(name).unwrap();
        let pieces = Splitter::new(pre.patterns).unwrap().split(text);
        pieces.into_iter().map(|piece| text[piece].to_owned()).collect()
    }

    #[test]
    fn each_kind_cuts_words_as_published() {
        // Expected words by Python's regex module, another engine.
        let cases: [(&str, &str, &[&str]); 12] = [
            (
                "gpt-2",
                "I'LL say it's 12345 times,  don't\n\n  you?",
                &[
                    "I", "'", "LL", " say", " it", "'s", " 12345", " times", ",", " ", " don", "'t", "\n\n ",
                    " you", "?",
                ],
            ),
            (
                "gpt-2",
                "x=[1];\r\n\tif (a != b)  {}   ",
                &["x", "=[", "1", "];", "\r\n", "\t", "if", " (", "a", " !=", " b", ")", " ", " {}", "   "],
            ),
            ("gpt-2", "日本語 ½ café's ...\n", &["日本語", " ½", " café", "'s", " ...", "\n"]),
            (
                "gpt-2",
                "a\u{a0}b\u{3000} c 1e-5",
                &["a", "\u{a0}", "b", "\u{3000}", " c", " 1", "e", "-", "5"],
            ),
            (
                "llama-bpe",
                "I'LL say it's 12345 times,  don't\n\n  you?",
                &[
                    "I", "'LL", " say", " it", "'s", " ", "123", "45", " times", ",", " ", " don", "'t",
                    "\n\n", " ", " you", "?",
                ],
            ),
            (
                "llama-bpe",
                "x=[1];\r\n\tif (a != b)  {}   ",
                &["x", "=[", "1", "];\r\n", "\tif", " (", "a", " !=", " b", ")", " ", " {}", "   "],
            ),
            ("llama-bpe", "日本語 ½ café's ...\n", &["日本語", " ", "½", " café", "'s", " ...\n"]),
            (
                "llama-bpe",
                "a\u{a0}b\u{3000} c 1e-5",
                &["a", "\u{a0}b", "\u{3000}", " c", " ", "1", "e", "-", "5"],
            ),
            (
                "qwen2",
                "I'LL say it's 12345 times,  don't\n\n  you?",
                &[
                    "I", "'LL", " say", " it", "'s", " ", "1", "2", "3", "4", "5", " times", ",", " ",
                    " don", "'t", "\n\n", " ", " you", "?",
                ],
            ),
            (
                "qwen2",
                "x=[1];\r\n\tif (a != b)  {}   ",
                &["x", "=[", "1", "];\r\n", "\tif", " (", "a", " !=", " b", ")", " ", " {}", "   "],
            ),
            ("qwen2", "日本語 ½ café's ...\n", &["日本語", " ", "½", " café", "'s", " ...\n"]),
            (
                "qwen2",
                "a\u{a0}b\u{3000} c 1e-5",
                &["a", "\u{a0}b", "\u{3000}", " c", " ", "1", "e", "-", "5"],
            ),
        ];
        for (name, text, expected) in cases {
            assert_eq!(words(name, text), expected, "{name}: {text:?}");
        }
    }
}
