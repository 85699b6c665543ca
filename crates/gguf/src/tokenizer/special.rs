//! Cutting the special tokens out of a text.

use super::vocab::{TokenKind, Vocab};

/// A stretch of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fragment<'t> {
    /// Text for the encoder; never empty.
    Text(&'t str),
    /// A special token that was spelled out.
    Special(u32),
}

/// The tokens that are found in a text before it is encoded.
pub struct SpecialTokens {
    /// Tokens by the first byte of their texts, the longest first.
    by_first: Vec<Vec<Special>>,
}

struct Special {
    text: String,
    id: u32,
    /// Found also where control tokens are not wanted.
    ordinary: bool,
}

impl SpecialTokens {
    /// Collects control, unknown and user-defined tokens.
    pub fn new(vocab: &Vocab) -> SpecialTokens {
        let mut by_first: Vec<Vec<Special>> = (0..256).map(|_| Vec::new()).collect();
        for (id, text, kind) in vocab.iter() {
            let ordinary = match kind {
                TokenKind::Control | TokenKind::Unknown => false,
                TokenKind::UserDefined => true,
                TokenKind::Normal | TokenKind::Unused | TokenKind::Byte => continue,
            };
            if let Some(&first) = text.as_bytes().first() {
                by_first[usize::from(first)].push(Special { text: text.to_owned(), id, ordinary });
            }
        }
        for tokens in &mut by_first {
            tokens.sort_by_key(|token| std::cmp::Reverse(token.text.len()));
        }
        SpecialTokens { by_first }
    }

    /// Cuts at all special tokens; of several that start at one place the longest counts.
    pub fn split<'t>(&self, text: &'t str) -> Vec<Fragment<'t>> {
        self.cut(text, |_| true)
    }

    /// Cuts at user-defined tokens only.
    pub fn split_ordinary<'t>(&self, text: &'t str) -> Vec<Fragment<'t>> {
        self.cut(text, |token| token.ordinary)
    }

    fn cut<'t>(&self, text: &'t str, wanted: impl Fn(&Special) -> bool) -> Vec<Fragment<'t>> {
        let mut fragments = Vec::new();
        let mut start = 0;
        let mut at = 0;
        while at < text.len() {
            let candidates = &self.by_first[usize::from(text.as_bytes()[at])];
            // A token's text is whole characters, so a match starts and ends between characters.
            let found = candidates
                .iter()
                .find(|token| wanted(token) && text.as_bytes()[at..].starts_with(token.text.as_bytes()));
            match found {
                Some(token) => {
                    if start < at {
                        fragments.push(Fragment::Text(&text[start..at]));
                    }
                    fragments.push(Fragment::Special(token.id));
                    at += token.text.len();
                    start = at;
                }
                None => at += 1,
            }
        }
        if start < text.len() {
            fragments.push(Fragment::Text(&text[start..]));
        }
        fragments
    }
}
