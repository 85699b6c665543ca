//! SentencePiece BPE (`tokenizer.ggml.model` = `llama`): of all neighbours whose join is a token, the
//! pair whose token has the highest score is joined, until there is none.
//!
//! The `tokenizers` crate has this only with ranked merges, which a file with scores does not carry
//! and which cannot express equal scores; it is short enough to be written out.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use super::vocab::Vocab;
use crate::{GgufError, Metadata};

/// The encoder.
pub struct SentencePiece {
    scores: Vec<f32>,
    /// The tokens `<0x00>` to `<0xFF>`.
    bytes: Vec<Option<u32>>,
    unknown: Option<u32>,
}

/// A stretch of the text; the symbols form a list, from which joined ones drop out.
struct Symbol {
    start: usize,
    /// Empty once the symbol has been joined to the one before.
    length: usize,
    previous: Option<usize>,
    next: Option<usize>,
}

/// Two neighbours that could be joined.
struct Pair {
    score: f32,
    left: usize,
    right: usize,
    /// Length of the join when it was found; if it has changed, one of the two has been joined since.
    length: usize,
}

impl Ord for Pair {
    /// The highest score first; of equal ones the leftmost.
    fn cmp(&self, other: &Pair) -> Ordering {
        self.score.total_cmp(&other.score).then(other.left.cmp(&self.left))
    }
}

impl PartialOrd for Pair {
    fn partial_cmp(&self, other: &Pair) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Pair {
    fn eq(&self, other: &Pair) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Pair {}

impl SentencePiece {
    /// Builds the encoder from `tokenizer.ggml.scores`.
    pub fn from_metadata(
        metadata: &Metadata,
        vocab: &Vocab,
        unknown: Option<u32>,
    ) -> Result<SentencePiece, GgufError> {
        Ok(SentencePiece {
            // Adding zero makes negative zero positive, which must not order before it.
            scores: vocab.scores(metadata)?.into_iter().map(|score| score + 0.0).collect(),
            bytes: vocab.byte_ids(),
            unknown,
        })
    }

    /// Appends the ids of a text without special tokens, with a space in front if so asked.
    pub fn encode(
        &self,
        text: &str,
        space_in_front: bool,
        vocab: &Vocab,
        ids: &mut Vec<u32>,
    ) -> Result<(), GgufError> {
        let mut escaped = String::with_capacity(text.len() + 3);
        if space_in_front {
            escaped.push('\u{2581}');
        }
        escaped.extend(text.chars().map(|c| if c == ' ' { '\u{2581}' } else { c }));
        for symbol in self.join(&escaped, vocab) {
            let piece = &escaped[symbol.start..symbol.start + symbol.length];
            match vocab.ordinary_id(piece) {
                Some(id) => ids.push(id),
                None => self.spell(piece, ids)?,
            }
        }
        Ok(())
    }

    /// Appends the bytes of a character that is no token.
    fn spell(&self, piece: &str, ids: &mut Vec<u32>) -> Result<(), GgufError> {
        let bytes: Option<Vec<u32>> = piece.bytes().map(|byte| self.bytes[usize::from(byte)]).collect();
        match (bytes, self.unknown) {
            (Some(bytes), _) => ids.extend(bytes),
            (None, Some(unknown)) => ids.push(unknown),
            (None, None) => {
                return Err(GgufError::Tokenizer(format!(
                    "the vocabulary has no token for {piece:?}, none for its bytes, and no unknown token"
                )));
            }
        }
        Ok(())
    }

    /// Joins characters while any join is a token; gives the symbols that remain.
    fn join(&self, text: &str, vocab: &Vocab) -> Vec<Symbol> {
        let mut symbols: Vec<Symbol> = text
            .char_indices()
            .enumerate()
            .map(|(i, (start, c))| Symbol {
                start,
                length: c.len_utf8(),
                previous: i.checked_sub(1),
                next: Some(i + 1),
            })
            .collect();
        if let Some(last) = symbols.last_mut() {
            last.next = None;
        }
        let mut pairs = BinaryHeap::new();
        for right in 1..symbols.len() {
            self.consider(text, vocab, &symbols, right - 1, right, &mut pairs);
        }
        while let Some(Pair { left, right, length, .. }) = pairs.pop() {
            let (l, r) = (&symbols[left], &symbols[right]);
            if l.length == 0 || r.length == 0 || l.length + r.length != length {
                continue;
            }
            let next = r.next;
            symbols[left].length = length;
            symbols[left].next = next;
            symbols[right].length = 0;
            if let Some(next) = next {
                symbols[next].previous = Some(left);
                self.consider(text, vocab, &symbols, left, next, &mut pairs);
            }
            if let Some(previous) = symbols[left].previous {
                self.consider(text, vocab, &symbols, previous, left, &mut pairs);
            }
        }
        symbols.retain(|symbol| symbol.length > 0);
        symbols
    }

    /// Notes two neighbours if their join is a token.
    fn consider(
        &self,
        text: &str,
        vocab: &Vocab,
        symbols: &[Symbol],
        left: usize,
        right: usize,
        pairs: &mut BinaryHeap<Pair>,
    ) {
        let start = symbols[left].start;
        let length = symbols[left].length + symbols[right].length;
        if let Some(id) = vocab.ordinary_id(&text[start..start + length]) {
            pairs.push(Pair { score: self.scores[id as usize], left, right, length });
        }
    }
}
