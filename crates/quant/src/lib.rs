//! Block formats of GGUF weights: one table, CPU quantization and dequantization, device layout.
//!
//! [`Format`] names a format and [`Format::spec`] gives its row in the table.
//!
//! ```
//! use tallow_quant::Format;
//! assert_eq!(Format::Q4_0.row_bytes(64)?, 36);
//! # Ok::<(), tallow_quant::QuantError>(())
//! ```

mod error;
mod format;
mod planes;

pub use error::QuantError;
pub use format::{Format, FormatSpec, Plane};
pub use planes::{PLANE_ALIGNMENT, plane_offsets, repack, repacked_bytes, unpack};
