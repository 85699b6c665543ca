//! Block formats of GGUF weights: one table, CPU quantization and dequantization, device layout.
//!
//! [`Format`] names a format and [`Format::spec`] gives its row in the table: name, number in GGUF
//! files, block geometry, and the planes of its device layout. [`dequantize`] gives the very bits that
//! ggml's reference gives, [`quantize`] does in the formats where that is the custom;
//! [`quantize_weighted`] heeds an importance matrix; [`repack`] rearranges a weight for the GPU.
//!
//! ```
//! use tallow_quant::{Format, dequantize, quantize};
//! let values: Vec<f32> = (0..64).map(|i| (i - 32) as f32).collect();
//! let bytes = quantize(Format::Q8_0, &values)?;
//! assert_eq!(bytes.len(), Format::Q8_0.row_bytes(64)?);
//! let mut back = vec![0.0; 64];
//! dequantize(Format::Q8_0, &bytes, &mut back)?;
//! assert!(values.iter().zip(&back).all(|(a, b)| (a - b).abs() < 0.2));
//! # Ok::<(), tallow_quant::QuantError>(())
//! ```
//!
//! What it never does: read files (`tallow-gguf`), run on a GPU, or know tensors' shapes.
//!
//! A new format is a row in `format.rs` with its variant, a module in `blocks/`, a name in the
//! fixture script `scripts/quant_fixtures.py`, and the match arms that the compiler then asks for.

mod blocks;
mod convert;
mod error;
mod format;
mod grids;
mod planes;
mod random;

pub use blocks::weighted::LEVELS as IQ4_LEVELS;
pub use convert::{dequantize, dequantize_at, quantize, quantize_weighted};
pub use error::QuantError;
pub use format::{Format, FormatSpec, Plane};
pub use grids::{Codebook, codebooks, codebooks_bytes};
pub use planes::{PLANE_ALIGNMENT, RUN_BLOCKS, plane_offsets, repack, repacked_bytes, unpack};
pub use random::random_blocks;
