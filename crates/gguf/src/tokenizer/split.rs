//! Splitting a text into the pieces that BPE works on, as a list of regular expressions says.
//!
//! The published expressions look ahead, `\s+(?!\S)` above all, and a backtracking engine runs out of stack
//! or time on a megabyte of spaces. Every look-ahead of the table has an equivalent that needs none, so all
//! of them run on the automata of `regex-automata`, whose time is bounded. The tests compare the
//! equivalents with a backtracking engine.

use std::ops::Range;

use regex_automata::meta::Regex;

use crate::GgufError;

/// Digits in threes from the right, where the last one ends a word (`tiny_aya`).
pub const DIGIT_GROUPS: &str = r"\d{1,3}(?=(?:\d{3})*\b)";
/// Numeric characters in threes from the right (`afmoe`).
pub const NUMBER_GROUPS: &str = r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))";
/// The places with whole threes of digits after them; matches are empty (`superbpe`).
pub const DIGIT_CUTS: &str = r"(?=(\d{3})+(?!\d))";

/// Ends of expressions for the whitespace that no earlier alternative takes.
const WHITESPACE_TAIL: &str = r"|\s+(?!\S)|\s+";
/// The same with lengths that are powers of two (`jais-2`).
const WHITESPACE_CASCADE: &str = r"|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}";
const CASCADE_LENGTHS: [usize; 10] = [512, 256, 128, 64, 32, 16, 8, 4, 2, 1];

/// Compiled expressions, applied one after another.
pub struct Splitter {
    steps: Vec<Step>,
}

struct Step {
    regex: Regex,
    action: Action,
}

/// What happens with a match.
#[derive(Clone, Copy)]
enum Action {
    /// It is a piece.
    Isolate,
    /// It is a piece. A match of the second pattern is whitespace that leaves its last character to what
    /// follows; the rest of it is one piece, or pieces of the cascade's lengths.
    Whitespace { cascade: bool },
    /// It is cut into threes from the right. If not isolated, it stays together with what surrounds it.
    Threes { isolate: bool },
}

impl Splitter {
    /// Compiles the expressions.
    pub fn new(patterns: &[&str]) -> Result<Splitter, GgufError> {
        Ok(Splitter { steps: patterns.iter().map(|pattern| Step::new(pattern)).collect::<Result<_, _>>()? })
    }

    /// The pieces of a text, in order and without gaps.
    pub fn split(&self, text: &str) -> Vec<Range<usize>> {
        let mut pieces = Vec::new();
        if !text.is_empty() {
            pieces.push(0..text.len());
        }
        for step in &self.steps {
            let mut cut = Vec::with_capacity(pieces.len());
            for piece in pieces {
                let mut cuts = Cuts { start: piece.start, offset: piece.start, pieces: &mut cut };
                // Each piece is a text of its own: look-aheads and word boundaries end with it.
                step.cut(&text[piece.clone()], &mut cuts);
                cuts.until(piece.len());
            }
            pieces = cut;
        }
        pieces
    }
}

impl Step {
    fn new(pattern: &str) -> Result<Step, GgufError> {
        let (patterns, action) = match pattern {
            DIGIT_GROUPS => (vec![r"\d+\b"], Action::Threes { isolate: true }),
            NUMBER_GROUPS => (vec![r"\p{N}+"], Action::Threes { isolate: true }),
            DIGIT_CUTS => (vec![r"\d+"], Action::Threes { isolate: false }),
            _ => match (pattern.strip_suffix(WHITESPACE_TAIL), pattern.strip_suffix(WHITESPACE_CASCADE)) {
                (Some(words), _) => (vec![words, r"\s+"], Action::Whitespace { cascade: false }),
                (None, Some(words)) => (vec![words, r"\s+"], Action::Whitespace { cascade: true }),
                (None, None) => (vec![pattern], Action::Isolate),
            },
        };
        let regex = Regex::new_many(&patterns)
            .map_err(|e| GgufError::Tokenizer(format!("expression {pattern:?}: {e}")))?;
        Ok(Step { regex, action })
    }

    fn cut(&self, text: &str, cuts: &mut Cuts) {
        let mut at = 0;
        while let Some(found) = self.regex.find(regex_automata::Input::new(text).range(at..)) {
            let (start, end) = (found.start(), found.end());
            at = match self.action {
                Action::Isolate => {
                    cuts.until(start);
                    cuts.until(end);
                    end
                }
                Action::Whitespace { cascade } => {
                    cuts.until(start);
                    let trailing = found.pattern().as_usize() == 1;
                    let end = if trailing { whitespace_end(text, start, end) } else { end };
                    if trailing && cascade {
                        cut_cascade(&text[start..end], start, cuts);
                    }
                    cuts.until(end);
                    end
                }
                Action::Threes { isolate } => {
                    cut_threes(&text[start..end], start, isolate, cuts);
                    end
                }
            };
            if at == start {
                // No expression of the table matches nothing, but a loop must not depend on that.
                return;
            }
        }
    }
}

/// `\s+(?!\S)|\s+`: all of the whitespace at a text's end, else all but the last character, if there are
/// several.
fn whitespace_end(text: &str, start: usize, end: usize) -> usize {
    let last = text[start..end].char_indices().next_back();
    match last {
        Some((last, _)) if end < text.len() && last > 0 => start + last,
        Some(_) | None => end,
    }
}

/// Cuts whitespace into pieces of the largest lengths that fit.
fn cut_cascade(whitespace: &str, offset: usize, cuts: &mut Cuts) {
    let ends: Vec<usize> = whitespace.char_indices().map(|(i, c)| i + c.len_utf8()).collect();
    let mut done = 0;
    while let Some(length) = CASCADE_LENGTHS.iter().find(|&&length| length <= ends.len() - done) {
        done += length;
        cuts.until(offset + ends[done - 1]);
    }
}

/// Cuts in front of each whole three of characters from the right.
fn cut_threes(digits: &str, offset: usize, isolate: bool, cuts: &mut Cuts) {
    let starts: Vec<usize> = digits.char_indices().map(|(i, _)| i).collect();
    if isolate {
        cuts.until(offset);
    }
    for (i, start) in starts.iter().enumerate() {
        if (starts.len() - i).is_multiple_of(3) {
            cuts.until(offset + start);
        }
    }
    if isolate {
        cuts.until(offset + digits.len());
    }
}

/// The pieces found so far, and where the next one starts.
struct Cuts<'p> {
    start: usize,
    /// Where the text that is being cut lies in the whole.
    offset: usize,
    pieces: &'p mut Vec<Range<usize>>,
}

impl Cuts<'_> {
    /// Ends a piece at a place of the text that is being cut, unless it would be empty.
    fn until(&mut self, end: usize) {
        let end = self.offset + end;
        if self.start < end {
            self.pieces.push(self.start..end);
            self.start = end;
        }
    }
}
