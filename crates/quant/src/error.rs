//! What can be wrong with a request to this crate.

/// An error of quantizing, dequantizing or repacking.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QuantError {
    /// The element count is no multiple of the format's block.
    #[error("{format}: {elements} elements are not whole blocks of {block_elements}")]
    PartialBlock {
        /// Name of the format.
        format: &'static str,
        /// Elements asked for.
        elements: usize,
        /// Elements in a block of the format.
        block_elements: usize,
    },
    /// The byte count is not that of the elements asked for, or of whole blocks.
    #[error("{format}: expected {expected} bytes, got {got}")]
    ByteCount {
        /// Name of the format.
        format: &'static str,
        /// Bytes that the elements take.
        expected: usize,
        /// Bytes given.
        got: usize,
    },
    /// The size of so many elements does not fit the address space.
    #[error("{format}: {elements} elements are more than this machine can address")]
    TooLarge {
        /// Name of the format.
        format: &'static str,
        /// Elements asked for.
        elements: usize,
    },
    /// An element was asked for that the data does not have.
    #[error("{format}: element {index} of {elements}")]
    OutOfRange {
        /// Name of the format.
        format: &'static str,
        /// Index asked for.
        index: usize,
        /// Elements that the data has.
        elements: usize,
    },
    /// The format can be read, but there is no quantizer to it.
    #[error("{format}: values cannot be quantized to this format, it can only be read")]
    NoQuantizer {
        /// Name of the format.
        format: &'static str,
    },
    /// The values are not whole rows of the importance's columns.
    #[error("importance of {columns} columns does not fit {values} values")]
    ImportanceLength {
        /// Columns that have an importance.
        columns: usize,
        /// Values given.
        values: usize,
    },
    /// An importance that is no weight.
    #[error("importance of column {column} is {value}, not a finite number of at least 0")]
    ImportanceValue {
        /// The column.
        column: usize,
        /// Its importance.
        value: String,
    },
}
