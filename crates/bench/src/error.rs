//! The errors of a benchmark.

/// Result of every fallible function of this crate.
pub type Result<T, E = BenchError> = std::result::Result<T, E>;

/// Why something could not be measured.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// There is no device whose time could be taken.
    #[error("bench measures a Vulkan device, and there is none to use: {0}")]
    NoDevice(String),
    /// No case's name starts so.
    #[error("no case is called {0:?} or starts so (`tallow bench --list` names them)")]
    UnknownCase(String),
    /// An option has a value that makes no sense.
    #[error("{option} {value:?}: {why}")]
    Option {
        /// The option.
        option: &'static str,
        /// Its value.
        value: String,
        /// What was expected.
        why: String,
    },
    /// A case's graph could not be built.
    #[error("building the graph: {0}")]
    Build(String),
    /// The device failed, or a kernel could not be made.
    #[error("on the device: {0}")]
    Device(String),
    /// The interpreter failed.
    #[error("in the interpreter: {0}")]
    Reference(String),
    /// A result is not what the interpreter computes.
    #[error("wrong result: {0}")]
    Wrong(String),
    /// A file could not be read or written.
    #[error("{path}: {why}")]
    File {
        /// The file.
        path: String,
        /// Why not.
        why: String,
    },
    /// The table could not be written.
    #[error("cannot write the results")]
    Output(#[from] std::io::Error),
}

impl From<tallow::Error> for BenchError {
    fn from(error: tallow::Error) -> BenchError {
        BenchError::Build(error.to_string())
    }
}

impl From<tallow_ir::GraphError> for BenchError {
    fn from(error: tallow_ir::GraphError) -> BenchError {
        BenchError::Build(error.to_string())
    }
}

impl From<tallow_quant::QuantError> for BenchError {
    fn from(error: tallow_quant::QuantError) -> BenchError {
        BenchError::Build(error.to_string())
    }
}

impl From<tallow_reference::Error> for BenchError {
    fn from(error: tallow_reference::Error) -> BenchError {
        BenchError::Reference(error.to_string())
    }
}

#[cfg(feature = "vulkan")]
impl From<tallow_runtime::executable::ExecError> for BenchError {
    fn from(error: tallow_runtime::executable::ExecError) -> BenchError {
        BenchError::Device(error.to_string())
    }
}

#[cfg(feature = "vulkan")]
impl From<tallow_runtime::Error> for BenchError {
    fn from(error: tallow_runtime::Error) -> BenchError {
        BenchError::Device(error.to_string())
    }
}

#[cfg(feature = "vulkan")]
impl From<tallow_codegen::CodegenError> for BenchError {
    fn from(error: tallow_codegen::CodegenError) -> BenchError {
        BenchError::Device(error.to_string())
    }
}
