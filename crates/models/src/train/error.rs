//! Why a model cannot be trained.

use std::path::PathBuf;

/// What is wrong with a training: its configuration, its files or its numbers.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// A file cannot be read.
    #[error("cannot read {}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// A file cannot be written. What was there before is as it was.
    #[error("cannot write {}", .path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// The configuration is no TOML, has unknown keys or values that make no sense.
    #[error("{}: {why}", .path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// What is wrong, with the line where it is known.
        why: String,
    },
    /// A model with other layers than those that can be trained.
    #[error("a model of architecture {0} cannot be fine-tuned")]
    Architecture(String),
    /// An option makes no sense.
    #[error("{name}: {why}")]
    Option {
        /// Its name.
        name: &'static str,
        /// What is wrong.
        why: String,
    },
    /// A line of examples is no example, or none of them can be learned.
    #[error("{}: {why}", .path.display())]
    Data {
        /// The file.
        path: PathBuf,
        /// What is wrong, with the line where there is one.
        why: String,
    },
    /// A text is too short for one window.
    #[error("{what} has {tokens} tokens, at least {needed} are needed (a context and the token after it)")]
    TooShort {
        /// Which text.
        what: &'static str,
        /// Its tokens.
        tokens: usize,
        /// The least that are needed.
        needed: usize,
    },
    /// A tokenizer cannot be used.
    #[error("tokenizer {}: {why}", .path.display())]
    Tokenizer {
        /// The file.
        path: PathBuf,
        /// Why not.
        why: String,
    },
    /// The tokenizer and the model have vocabularies of different sizes.
    #[error("the tokenizer has {tokenizer} tokens, the model's vocab_size is {model}")]
    VocabularySize {
        /// Tokens of the tokenizer.
        tokenizer: usize,
        /// Rows of the embedding.
        model: usize,
    },
    /// Weights or a checkpoint that do not fit.
    #[error("{}: {why}", .path.display())]
    Weights {
        /// The file.
        path: PathBuf,
        /// What does not fit.
        why: String,
    },
    /// The output folder has a checkpoint, which a new training would overwrite.
    #[error("{} has a checkpoint already: resume it, or choose another folder", .0.display())]
    CheckpointExists(PathBuf),
    /// The loss or the gradients are no finite numbers any more.
    #[error(
        "the {what} of step {step} is not finite; the checkpoint of step {checkpoint} is as it was. \
         A lower learning_rate or a longer warmup may help"
    )]
    NotFinite {
        /// What is not.
        what: &'static str,
        /// The step, from 1.
        step: usize,
        /// The step of the last checkpoint; 0 where none was written.
        checkpoint: usize,
    },
}
