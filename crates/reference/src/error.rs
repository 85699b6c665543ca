//! Everything that can be wrong with a run.

use tallow_ir::DType;

/// Why data is not a tensor, or a graph cannot run in an environment.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A byte or element count that the shape contradicts.
    #[error("{dtype}{shape:?} takes {expected} {unit}, got {got}")]
    Length {
        /// Element type.
        dtype: DType,
        /// Extents.
        shape: Vec<usize>,
        /// "bytes" or "elements".
        unit: &'static str,
        /// What the shape asks for.
        expected: usize,
        /// What was given.
        got: usize,
    },
    /// A shape whose size does not fit the address space, or no whole blocks.
    #[error("{dtype}{shape:?} cannot be stored: {why}")]
    Unstorable {
        /// Element type.
        dtype: DType,
        /// Extents.
        shape: Vec<usize>,
        /// What is wrong.
        why: String,
    },
    /// An input, weight or state that the graph names and the environment lacks.
    #[error("{what} '{name}' is missing")]
    Missing {
        /// "input", "weight" or "state".
        what: &'static str,
        /// Its name.
        name: String,
    },
    /// An input, weight or state of another type than the graph states.
    #[error("{what} '{name}' is {got}, the graph needs {expected}")]
    Mismatch {
        /// "input", "weight" or "state".
        what: &'static str,
        /// Its name.
        name: String,
        /// The type in the graph, under the symbol values.
        expected: String,
        /// The type given.
        got: String,
    },
    /// A symbol without a value.
    #[error("symbol '{name}' has no value")]
    UnboundSymbol {
        /// Its name.
        name: String,
    },
    /// A symbol above its stated maximum.
    #[error("symbol '{name}' is {value}, its maximum is {max}")]
    SymbolAboveMaximum {
        /// Its name.
        name: String,
        /// The value given.
        value: u64,
        /// The stated maximum.
        max: u32,
    },
    /// A symbol below its stated minimum.
    #[error("symbol '{name}' is {value}, its minimum is {min}")]
    SymbolBelowMinimum {
        /// Its name.
        name: String,
        /// The value given.
        value: u64,
        /// The stated minimum.
        min: u32,
    },
    /// A slice or state update that the symbol values put outside its tensor.
    #[error("an access ends at {end} = {end_value}, outside extent {extent} = {extent_value}")]
    OutOfBounds {
        /// End of the access, as an expression.
        end: String,
        /// Its value.
        end_value: i64,
        /// The extent, as an expression.
        extent: String,
        /// Its value.
        extent_value: i64,
    },
    /// A graph that the verifier would reject.
    #[error("%{node}: {why}")]
    Malformed {
        /// Number of the node.
        node: u32,
        /// What is wrong.
        why: String,
    },
    /// A user's kernel without a function for the CPU, or whose function fails.
    #[error("custom kernel '{name}': {why}")]
    Custom {
        /// Its name.
        name: String,
        /// What is wrong.
        why: String,
    },
    /// A tensor that this machine cannot hold.
    #[error("%{node}: no memory for {bytes} bytes")]
    OutOfMemory {
        /// Number of the node.
        node: u32,
        /// Bytes that it takes.
        bytes: u64,
    },
}
