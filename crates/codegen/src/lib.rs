//! Code generation: fused graphs to GLSL and SPIR-V.
//!
//! [`kinds::kernel`] turns one fusion into a [`Kernel`]: a `.comp` template chosen by the fusion's form, with one line
//! inserted per IR node. [`compile`] does this for a whole graph, schedules the kernels and plans the arena. The result
//! is plain data that contains no device objects.
//!
//! This crate opens no device. Without the feature `spirv` it does not link shaderc and stops at GLSL.

mod assemble;
mod blocks;
mod builder;
#[cfg(feature = "spirv")]
mod cache;
#[cfg(feature = "spirv")]
mod custom;
mod donation;
mod emit;
mod error;
mod explain;
mod fit;
mod glsl;
mod identities;
mod instruction;
mod kernel;
mod kinds;
mod library;
mod lines;
mod module;
mod predict;
mod remat;
mod repack;
mod scalar;
mod schedule;
#[cfg(feature = "spirv")]
mod spirv;
mod storage;
mod template;

pub use blocks::coopmat::coopmat_fragment_layout_kernel;
pub use builder::{Grid, Launch, Tensor, limits};
pub use donation::Donation;
pub use error::CodegenError;
pub use fit::fit;
pub use glsl::Glsl;
pub use instruction::Instruction;
pub use kernel::{Binding, Count, Entry, Kernel, Scratch, Source, Table, Target, divisor};
pub use kinds::{kernel, kernel_with, schedules};
pub use module::{
    Copies, KERNELS, Module, Options, PLAN, compile, compile_observed, compile_scheduled, compile_with,
};
pub use predict::{Launches, predict_us};
pub use remat::Remat;
pub use repack::{REPACK_PUSH_BYTES, REPACK_WORKGROUP, RepackRun, repack_kernel};
pub use schedule::{Algorithm, Epilogue, Schedule, Schedules, Split, Tile, class_of};
#[cfg(feature = "spirv")]
pub use spirv::{ShaderText, SpirvStats, Words, check_custom, compile_kernels, compile_spirv};
