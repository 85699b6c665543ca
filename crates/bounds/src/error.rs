//! Why there are no bounds, or why a result is outside of them.

use tallow_ir::GraphError;

use crate::outside::Outside;

/// Result of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why bounds cannot be computed, or that a result is outside of them.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// A node has no interval.
    #[error("no bounds of {node}: {source}")]
    Node {
        /// The printed node.
        node: String,
        /// What is wrong.
        source: GraphError,
    },
    /// The graph does not verify.
    #[error("bounds: {0}")]
    Graph(#[from] GraphError),
    /// The graph of intervals cannot be evaluated.
    #[error("bounds: {0}")]
    Evaluate(#[from] tallow_reference::Error),
    /// A result of another type than the interpreter's.
    #[error("expected {expected}, got {got}")]
    Type {
        /// Type and extents of the interpreter's result.
        expected: String,
        /// Type and extents of the kernel's.
        got: String,
    },
    /// An interval of another length than the result.
    #[error("bounds of {bounds} elements for {elements}")]
    Length {
        /// Elements of the interval.
        bounds: usize,
        /// Elements of the result.
        elements: usize,
    },
    /// The interpreter's own result is outside: a mistake in this crate.
    #[error("its bounds are wrong: {0}")]
    Wrong(Outside),
    /// A kernel's result is outside.
    #[error("{first} ({outside} of {elements} elements are)")]
    Outside {
        /// The first element that is.
        first: Outside,
        /// How many are.
        outside: usize,
        /// Elements of the result.
        elements: usize,
    },
}
