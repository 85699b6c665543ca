//! The errors of the command.

use std::error::Error as StdError;
use std::path::PathBuf;

use tallow_gguf::{Format, GgufError};
use tallow_quant::QuantError;

use crate::importance::ImportanceError;
use crate::mixes::MIXES;
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
    #[error("--device {requested}")]
    Device {
        /// What was asked for.
        requested: String,
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
    CasesFailed(usize),
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
    /// No kernel was compared with the interpreter.
    #[error("none of {0} kernel(s) was compared")]
    NothingCompared(usize),
    /// Kernels compute other results than the interpreter.
    #[error("{0} kernel(s) of this device and driver compute wrong results")]
    KernelsDiffer(usize),
    /// A kernel of the model computes other results than the interpreter.
    #[error(
        "the {step} kernel {name} computes wrong results on {device} with the driver {driver}; \
         `tallow verify --model {}` shows more, --verify never runs the model all the same",
        .model.display()
    )]
    WrongKernel {
        /// The step that it is from.
        step: &'static str,
        /// The name of its dispatch in the plan.
        name: String,
        /// The device.
        device: String,
        /// Name and version of the driver.
        driver: String,
        /// The model.
        model: PathBuf,
    },
    /// Kernels spill registers, and `--deny-spills` was given.
    #[error("{0} kernel(s) spill registers")]
    Spilled(usize),
    /// The device for `compile-check` could not be opened.
    #[error("cannot compile for that device")]
    CompileDevice(#[source] tallow::Error),
    /// A model could not be quantized.
    #[error(transparent)]
    Quantize(#[from] QuantizeError),
    /// Importance could not be measured.
    #[error(transparent)]
    Imatrix(#[from] ImatrixError),
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
    #[error("--chat-template {requested} is neither a file nor one of {}", built_in())]
    ReadTemplate {
        /// What was asked for.
        requested: String,
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

/// Why a model was not quantized.
#[derive(Debug, thiserror::Error)]
pub enum QuantizeError {
    /// A mix that there is not.
    #[error("--type {requested:?} is none of {}", MIXES.iter().map(|mix| mix.name).collect::<Vec<_>>().join(", "))]
    UnknownMix {
        /// What was asked for.
        requested: String,
    },
    /// A format that there is not.
    #[error("{option} {requested:?} is no format that values can be quantized to")]
    UnknownFormat {
        /// The option.
        option: &'static str,
        /// What was asked for.
        requested: String,
    },
    /// A merged weight cannot be written in its own format.
    #[error("tensor {tensor} cannot be written as {format}; --type names another format")]
    Unwritable {
        /// The tensor.
        tensor: String,
        /// Its format.
        format: Format,
    },
    /// The source has lost bits already.
    #[error(
        "tensor {tensor} is quantized already ({format}), and would lose more than from F16 or F32; \
         --allow-requantize does it all the same"
    )]
    Requantize {
        /// The tensor.
        tensor: String,
        /// Its format.
        format: Format,
    },
    /// The result would overwrite the source, or a shard of it.
    #[error("{} is the model itself", .0.display())]
    Itself(PathBuf),
    /// No thread can work.
    #[error("--threads must be at least 1")]
    Threads,
    /// The importance matrix is none.
    #[error(transparent)]
    Importance(#[from] ImportanceError),
    /// The importance matrix is of another model.
    #[error("tensor {tensor} has {expected} columns, the importance matrix has {got} for it")]
    ImportanceShape {
        /// The tensor.
        tensor: String,
        /// Matrices and columns of the tensor.
        expected: String,
        /// What the importance matrix has.
        got: String,
    },
    /// A tensor could not be converted.
    #[error("tensor {tensor}")]
    Tensor {
        /// The tensor.
        tensor: String,
        /// Why not.
        source: QuantError,
    },
    /// The result could not be written.
    #[error("cannot write {}", .path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: GgufError,
    },
}

/// Why there is no importance matrix.
#[derive(Debug, thiserror::Error)]
pub enum ImatrixError {
    /// The text could not be read.
    #[error("cannot read {}", .path.display())]
    Text {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// The text has no tokens.
    #[error("{}: no text", .0.display())]
    NoText(PathBuf),
    /// What came out of the model are no numbers.
    #[error("the inputs of {0} are no finite numbers; the weights or the computation are broken")]
    NotFinite(String),
    /// The result could not be written.
    #[error("cannot write {}", .path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: GgufError,
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
