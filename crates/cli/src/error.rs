//! The errors of the command.

use std::error::Error as StdError;
use std::path::PathBuf;

use crate::terminal::escaped;

/// Result of every subcommand.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A model file could not be used.
    #[error("{}", .path.display())]
    Model {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: tallow_models::Error,
    },
    /// The prompt could not be used, or generating failed.
    #[error(transparent)]
    Run(tallow_models::Error),
    /// The device could not be used.
    #[error("--device {asked}")]
    Device {
        /// What was asked for.
        asked: String,
        /// Why not.
        source: tallow::Error,
    },
    /// A device that makes no sense.
    #[error(
        "--device {0:?} is neither cpu nor vulkan nor the number of a Vulkan device (see `tallow devices`)"
    )]
    UnknownDevice(String),
    /// Something could not be measured.
    #[error(transparent)]
    Bench(#[from] tallow_bench::BenchError),
    /// Benchmarks ran whose results are wrong, or which could not run.
    #[error("{0} of the benchmarks failed")]
    WorksFailed(usize),
    /// Kernels do not compile, or no kernels could be made of a graph.
    #[error("{failed} of {kernels} kernel(s) do not compile, and the graphs of {graphs} file(s)")]
    CompileFailed {
        /// Kernels that do not compile.
        failed: usize,
        /// All kernels.
        kernels: usize,
        /// Files of which no kernels could be made.
        graphs: usize,
    },
    /// Kernels spill registers, and `--deny-spills` was given.
    #[error("{0} kernel(s) spill registers")]
    Spilled(usize),
    /// The device for `compile-check` could not be opened.
    #[error("cannot compile for that device")]
    CompileDevice(#[source] tallow::Error),
    /// A model could not be quantized.
    #[error(transparent)]
    Quantize(#[from] crate::quantize::QuantizeError),
    /// Importance could not be measured.
    #[error(transparent)]
    Imatrix(#[from] crate::imatrix::ImatrixError),
    /// Writing to standard output failed.
    #[error("cannot write to standard output")]
    Output(#[from] std::io::Error),
    /// A chat template could not be used.
    #[error("{why} (--chat-template FILE takes another template)")]
    Template {
        /// Why not.
        why: tallow_chat::ChatError,
    },
    /// An option that has no meaning without `--chat`.
    #[error("{0} is an option of chats; add --chat")]
    OnlyInChat(&'static str),
    /// The conversation would overwrite a file that is in use.
    #[error("{} is the model", .0.display())]
    IsModel(PathBuf),
    /// A conversation could not be saved or read.
    #[error(transparent)]
    Conversation(#[from] tallow_chat::ChatError),
    /// A chat template is neither a file nor built in.
    #[error("--chat-template {asked} is neither a file nor one of {}", built_in())]
    ReadTemplate {
        /// What was asked for.
        asked: String,
        /// Why the file could not be read.
        source: std::io::Error,
    },
    /// Lines could not be read from the terminal.
    #[error("cannot read from the terminal: {0}")]
    Terminal(rustyline::error::ReadlineError),
    /// Ctrl-C could not be taken over.
    #[error("cannot handle Ctrl-C")]
    Interrupt(#[source] ctrlc::Error),
    /// A text could not be read.
    #[error("cannot read {}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// A file could not be written.
    #[error("cannot write {}", .path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
}

impl From<tallow_models::Error> for Error {
    fn from(error: tallow_models::Error) -> Error {
        match error {
            tallow_models::Error::Chat(why) => Error::Template { why },
            other => Error::Run(other),
        }
    }
}

/// The names of built-in chat templates.
fn built_in() -> String {
    tallow_chat::builtin_names().collect::<Vec<_>>().join(", ")
}

/// The error and its causes in one line.
pub fn one_line(error: &dyn StdError) -> String {
    let mut line = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        line.push_str(": ");
        line.push_str(&error.to_string());
        cause = error.source();
    }
    escaped(&line.replace(['\n', '\r'], " "))
}
