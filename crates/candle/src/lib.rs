//! Candle programs on any Vulkan GPU, without a fork of Candle.
mod convert;
mod device;
mod dtype;
mod error;
mod graphs;
pub mod models;
pub mod nn;
mod op;
pub mod quantized;
mod rows;
mod storage;

pub use convert::{to_candle, to_resident, to_tallow};
pub use device::{device, fallback_reason};
pub use dtype::{candle_dtype, dtype};
pub use op::{CompiledOp, Results, compile};
