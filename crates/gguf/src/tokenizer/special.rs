//! Cutting the special tokens out of a text.
//!
//! Where several special tokens overlap, the longest wins wherever it stands, as in llama.cpp: the text is
//! cut at all places of the longest token first, then what is left at those of the next.

use std::collections::BTreeSet;

use aho_corasick::AhoCorasick;

use super::vocab::{TokenKind, Vocab};
use crate::GgufError;

/// A stretch of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fragment<'t> {
    /// Text for the encoder; never empty.
    Text(&'t str),
    /// A special token that was spelled out.
    Special(u32),
}

/// Which whitespace around a token belongs to it and is dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrimSpace {
    /// Whitespace before the token.
    pub left: bool,
    /// Whitespace after the token.
    pub right: bool,
}

/// The tokens that are found in a text before it is encoded.
pub struct SpecialTokens {
    /// Longest first.
    tokens: Vec<Special>,
    /// Finds which of them occur at all, so that a text is searched for few of what may be thousands.
    automaton: AhoCorasick,
}

struct Special {
    text: String,
    id: u32,
    /// Found also where control tokens are not wanted.
    ordinary: bool,
    trim_space: TrimSpace,
}

impl SpecialTokens {
    /// Collects control, unknown and user-defined tokens.
    pub fn new(vocab: &Vocab, trim_space: impl Fn(u32) -> TrimSpace) -> Result<SpecialTokens, GgufError> {
        let mut tokens = Vec::new();
        for (id, text, kind) in vocab.iter() {
            let ordinary = match kind {
                TokenKind::Control | TokenKind::Unknown => false,
                TokenKind::UserDefined => true,
                TokenKind::Normal | TokenKind::Unused | TokenKind::Byte => continue,
            };
            tokens.push(Special { text: text.to_owned(), id, ordinary, trim_space: trim_space(id) });
        }
        tokens.sort_by_key(|token| std::cmp::Reverse(token.text.len()));
        let automaton = AhoCorasick::new(tokens.iter().map(|token| &token.text))
            .map_err(|e| GgufError::Tokenizer(format!("special tokens: {e}")))?;
        Ok(SpecialTokens { tokens, automaton })
    }

    /// Cuts at all special tokens.
    pub fn split<'t>(&self, text: &'t str) -> Vec<Fragment<'t>> {
        self.cut(text, |_| true)
    }

    /// Cuts at user-defined tokens only.
    pub fn split_ordinary<'t>(&self, text: &'t str) -> Vec<Fragment<'t>> {
        self.cut(text, |token| token.ordinary)
    }

    fn cut<'t>(&self, text: &'t str, wanted: impl Fn(&Special) -> bool) -> Vec<Fragment<'t>> {
        let found: BTreeSet<usize> = self
            .automaton
            .find_overlapping_iter(text)
            .map(|found| found.pattern().as_usize())
            .filter(|&pattern| wanted(&self.tokens[pattern]))
            .collect();
        let mut fragments = Vec::new();
        if !text.is_empty() {
            fragments.push(Fragment::Text(text));
        }
        for pattern in found {
            let token = &self.tokens[pattern];
            let mut cut = Vec::with_capacity(fragments.len());
            for fragment in fragments {
                match fragment {
                    Fragment::Text(text) => token.cut(text, &mut cut),
                    Fragment::Special(_) => cut.push(fragment),
                }
            }
            fragments = cut;
        }
        fragments
    }
}

impl Special {
    /// Cuts a text at all places of this token.
    fn cut<'t>(&self, text: &'t str, fragments: &mut Vec<Fragment<'t>>) {
        let mut rest = text;
        while let Some(at) = rest.find(&self.text) {
            let mut before = &rest[..at];
            if self.trim_space.left {
                before = before.trim_end_matches(is_space);
            }
            if !before.is_empty() {
                fragments.push(Fragment::Text(before));
            }
            fragments.push(Fragment::Special(self.id));
            rest = &rest[at + self.text.len()..];
            if self.trim_space.right {
                rest = rest.trim_start_matches(is_space);
            }
        }
        if !rest.is_empty() {
            fragments.push(Fragment::Text(rest));
        }
    }
}

/// C's `isspace`.
fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t'..='\r')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Array, Metadata, Value};

    fn special(trim_space: TrimSpace) -> SpecialTokens {
        let mut metadata = Metadata::new();
        let tokens = ["<a>", "<ab>", "b><cd", "<u>", "x"].map(str::to_owned).to_vec();
        metadata.insert("tokenizer.ggml.tokens", Value::Array(Array::String(tokens)));
        metadata.insert("tokenizer.ggml.token_type", Value::Array(Array::I32(vec![3, 4, 2, 4, 1])));
        let vocab = Vocab::from_metadata(&metadata).unwrap();
        SpecialTokens::new(&vocab, |id| if id == 3 { trim_space } else { TrimSpace::default() }).unwrap()
    }

    #[test]
    fn the_longest_token_wins_wherever_it_stands() {
        use Fragment::{Special, Text};
        let tokens = special(TrimSpace::default());
        assert_eq!(tokens.split("x<a><ab>x"), [Text("x"), Special(0), Special(1), Text("x")]);
        assert_eq!(tokens.split("<ab><cd>"), [Text("<a"), Special(2), Text(">")]);
        assert_eq!(tokens.split("<ab><c>"), [Special(1), Text("<c>")]);
        // Control and unknown tokens are ordinary text where they are not wanted.
        assert_eq!(tokens.split_ordinary("<a><ab><cd"), [Text("<a>"), Special(1), Text("<cd")]);
        assert_eq!(tokens.split(""), []);
    }

    #[test]
    fn whitespace_goes_with_the_tokens_that_take_it() {
        use Fragment::{Special, Text};
        let text = "x \t<u>\n\u{b} x<u>  ";
        let split = |left, right| special(TrimSpace { left, right }).split(text);
        assert_eq!(split(true, false), [Text("x"), Special(3), Text("\n\u{b} x"), Special(3), Text("  ")]);
        assert_eq!(split(false, true), [Text("x \t"), Special(3), Text("x"), Special(3)]);
        assert_eq!(split(true, true), [Text("x"), Special(3), Text("x"), Special(3)]);
    }
}
