//! Names of what the graphs of a model take and give, and of what they share.

/// Input and output of the graph that [`crate::probe`] measures.
pub(crate) const PROBE: &str = "x";

/// Name of the weight that holds rope's frequencies, which is computed and not in the file.
pub const ROPE_WEIGHT: &str = "rope.frequencies";
/// As [`ROPE_WEIGHT`], of layers with a window, where they have frequencies of their own.
pub const LOCAL_ROPE_WEIGHT: &str = "rope.frequencies.local";
/// Name of the graphs' input: token ids, u32.
pub const TOKENS: &str = "tokens";
/// Name of the output of prefill and decode: one logit per token of the vocabulary, after the last input token.
pub const LOGITS: &str = "logits";
/// What [`TOKENS`] is given to a step of the greedy graph that takes the token which the step before chose.
pub const CHOSEN: u32 = u32::MAX;
/// Name of the state that holds what a step of the greedy graph chose; u32 of one element.
pub const LAST: &str = "last";
/// Name of the greedy graph's first output: the token with the largest logit, the first of equals; u32.
pub const BEST: &str = "best";
/// Name of the greedy graph's other output: the logit of [`BEST`], NaN if any is.
pub const BEST_LOGIT: &str = "best_logit";
/// Name of the score graph's other input: for each input token the id of the one that follows, u32.
pub const NEXT: &str = "next";
/// Name of the score graph's output: the logarithm of the probability of each token of [`NEXT`].
pub const LOG_PROBABILITIES: &str = "log_probabilities";
/// Name of the embedding graph's output: the embedding of the text, or that of each token.
pub const EMBEDDING: &str = "embedding";
/// Name of an input of the graph that embeds several texts: the number of the text of each token, u32.
pub const TEXT_OF_ROW: &str = "text_of_row";
/// Name of another one: the row of each text's first token, u32.
pub const FIRST_ROWS: &str = "first_rows";
/// Name of another one: the row of each text's last token, u32. Without pooling, and where the first rows are the
/// embeddings, the graph has no such input.
pub const LAST_ROWS: &str = "last_rows";
/// Name of the symbol that counts the texts of that graph.
pub const TEXTS: &str = "texts";
/// Name of the symbol that counts the input tokens of the prefill, score and embedding graphs.
pub const SEQ: &str = "seq";
/// Name of the symbol that holds the position of the first input token.
pub const POS: &str = "pos";

/// How many tokens a graph takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    /// From 1 to this many, as symbol [`SEQ`].
    UpTo(usize),
    /// One.
    One,
}
