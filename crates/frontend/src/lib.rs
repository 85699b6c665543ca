//! Lazy tensor graphs, fused and compiled to Vulkan.
//!
//! A [`Tensor`] is a step of an expression. Nothing runs until a value is asked for; then the whole
//! expression is verified, fused into few kernels, compiled and run, and the tensor keeps its value.
//!
//! ```
//! use tallow::{Device, Tensor, nn};
//!
//! let device = Device::Cpu; // or Device::new_vulkan(0)?
//! let x = Tensor::new([[1f32, 2.0, 3.0], [1.0, 1.0, 1.0]], &device)?;
//! let y = nn::softmax(&(&x * 2.0)?, 1)?; // nothing has been computed yet
//! let rows = y.to_vec2::<f32>()?; // now it has
//! assert!((rows[0][2] - 0.8668).abs() < 1e-4);
//! assert!((rows[1][0] - 1.0 / 3.0).abs() < 1e-6);
//! # Ok::<(), tallow::Error>(())
//! ```
//!
//! Names and meanings follow `candle_core` 0.11, so that code moves over by changing an import;
//! `docs/candle-api.md` lists every method. What differs most: tensors never change, so there is no `slice_set`, but
//! [`Tensor::slice_scatter`]; indices out of range are clamped, as every index is data that a GPU cannot stop for.
//! In a function that [`compile`] is called with, extents may be [`Symbol`]s, and
//! [`Tensor::sym_dims`] is how to read them.
//!
//! Below the tensors lie graphs ([`tallow_ir`]): [`Device::compile`] takes one as it is, with weights and
//! states bound by name, and [`compile`] makes one of a function of tensors. The crate `tallow-models` builds
//! language models on that.
//!
//! What this crate never does: write kernels (`tallow-codegen`) or call Vulkan (`tallow-runtime`).

mod activation;
mod backward;
mod blocks;
mod compile;
mod compile_check;
mod conv;
mod cpu;
mod create;
mod custom;
mod device;
mod device_info;
pub mod display;
mod draws;
mod dynamic;
mod einsum;
pub mod element;
mod elementwise;
mod error;
mod eval;
mod evaluation;
mod executable;
mod extents;
#[cfg(doctest)]
mod guide;
mod indexing;
mod join;
mod layout;
mod linear;
mod lookup;
mod lower;
mod masks;
mod module;
pub mod nn;
pub mod npy;
mod operators;
mod order;
mod origin;
mod outputs;
mod plan;
mod pool;
mod programs;
pub mod quantized;
mod random;
mod read;
mod reduce;
mod remat;
mod resident;
mod resize;
pub mod safetensors;

mod scatter;
mod segments;
pub mod shape;
mod state;
mod stats;
mod tensor;
mod trace;
mod train;
mod values;
mod variable;
mod views;
mod windows;

#[cfg(feature = "vulkan")]
pub mod vulkan;
#[cfg(feature = "vulkan")]
mod vulkan_executable;

pub use backward::GradStore;
pub use compile::{Function, Input, compile, compile_with};
pub use compile_check::CompileOnlyDevice;
pub use custom::{
    CustomBackward, CustomCall, CustomInputs, CustomKernel, CustomKernelBuilder, CustomOutput, Push,
};
pub use device::{Device, vulkan_devices};
pub use device_info::{DeviceMemory, VulkanDeviceInfo};
pub use draws::{RANDOM_DRAW, RANDOM_KEY};
pub use dynamic::Dynamic;
pub use einsum::einsum;
pub use element::WithDType;
pub use elementwise::TensorOrScalar;
pub use error::{Error, Result};
pub use eval::eval;

pub use executable::{
    CheckOutcome, Driver, Executable, KernelCheck, Pending, Prepared, VerifiedKernels, VerifyOptions,
};
pub use extents::Shape;
pub use indexing::{IndexOp, TensorIndexer};
pub use module::{Module, ModuleT};
pub use origin::TensorId;
pub use outputs::{OutputView, Outputs, RunOutput};
pub use plan::{MemoryPlan, device_bytes, plan_memory, plan_memory_by_weight, plan_memory_within};
pub use remat::{CompileOptions, Remat};
pub use resident::{GraphState, Weight};
pub use shape::D;
pub use state::State;
pub use stats::ExecStats;
pub use tallow_bounds::{Comparison, Outside};
pub use tallow_ir::{DType, Dim, Format, Graph, Shape as SymShape, Symbol, caps};
#[cfg(feature = "vulkan")]
pub use tallow_runtime::RuntimeOptions;
pub use tallow_runtime::cache_dir::cache_dir;
pub use tallow_runtime::statistics;
pub use tensor::Tensor;
pub use train::{StepResult, TrainOptions, TrainStep, train_step};
pub use variable::Var;
pub use windows::ToUsize2;
