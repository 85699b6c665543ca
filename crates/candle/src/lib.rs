//! Candle programs on any GPU with Vulkan, against the released `candle-core` 0.11, without a fork of it.
//!
//! Candle has no Vulkan device, and its devices and storages are closed enums. What it leaves open is enough: custom
//! ops, the data of tensors, the storage of quantized ones, and models' public constructors. Tensors stay on Candle's
//! CPU; what this crate gives runs on [`device`], the best Vulkan device, or Tallow's interpreter where there is none.
//!
//! | what | for |
//! |---|---|
//! | [`compile`] | a function of Tallow's tensors, whose methods have Candle's names, as a `CustomOp` of Candle's |
//! | [`nn`] | `QMatMul`, `Linear`, `Embedding`, `LayerNorm`, `RmsNorm`, `Conv1d`, `Conv2d` with resident weights |
//! | [`models`] | `quantized_llama`, `quantized_qwen2`, `quantized_qwen3`, the whole model on the device: change one `use` |
//! | [`quantized`] | models of `candle-transformers` as they are, their products on the device |
//! | [`to_tallow`], [`to_resident`], [`to_candle`] | tensors from one side to the other |
//!
//! ```
//! use candle_core::{Device, Tensor};
//! let gelu = tallow_candle::compile(|[x]| x.gelu()); // fused, compiled at its first use, replayed after that
//! # let gelu = gelu.on(&tallow::Device::Cpu);
//! let x = Tensor::new(&[-1f32, 0.0, 2.0], &Device::Cpu)?;
//! let y = x.apply_op1(gelu)?;
//! assert!((y.to_vec1::<f32>()?[2] - 1.9546).abs() < 1e-4);
//! # Ok::<(), candle_core::Error>(())
//! ```
//!
//! A call copies its operands to the device and its result back, so the more of a program is one op, the better;
//! `docs/candle.md` has figures, and what Candle's code cannot do through this crate. Errors are Candle's. Nothing here
//! panics, and an op that fails leaves its operands as they were.
//!
//! What this crate never does: compute by itself, or change Candle.

mod convert;
mod device;
mod dtype;
mod error;
mod graphs;
pub mod models;
pub mod nn;
mod op;
mod qmatmul;
pub mod quantized;
mod rows;
mod storage;

pub use convert::{to_candle, to_resident, to_tallow};
pub use device::{device, fallback_reason};
pub use dtype::{candle_dtype, dtype};
pub use op::{CompiledOp, Results, compile};
