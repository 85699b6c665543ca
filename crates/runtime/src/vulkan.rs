//! The Vulkan backend: every call to the driver, and every `unsafe` of the project.
//!
//! Reading order, each module above those that it uses: [`physical_device`] finds devices, [`caps`] asks what they can
//! do, [`device`] opens one. [`buffer`] and [`pipeline`] are what commands use. A [`sequence`] computes values of lazy
//! tensors; it is appended to the `stream`, as commands or as a `replay`, and the `queue` orders other submissions
//! behind that. Values are blocks of a [`pool`]. [`record`] turns a checked command list into a command buffer and
//! [`submit`] runs it. `staging` moves bytes to memory that the host cannot reach. [`context`] is what callers hold.
//!
//! Soundness: handles never leave this module. Whatever a handle is used for holds an `Arc` of what the
//! handle depends on (buffer, pipeline and recording hold the device; a running recording is waited for
//! before it is freed), so destruction runs in the right order whatever a caller drops first.

#![allow(unsafe_code)]

mod barrier;
pub(crate) mod bound;
pub mod buffer;
pub mod caps;
pub mod compile_only;
pub mod context;
pub(crate) mod copies;
mod descriptor;
pub mod device;
mod error;
mod fragment_layout;
mod hardware;
mod instance;
mod memory_types;
pub mod objects;
pub mod physical_device;
pub mod pipeline;
mod pipeline_cache;
mod pipeline_handles;
pub mod pool;
mod queue;
mod queue_family;
pub mod record;
mod repack;
pub(crate) mod replay;
pub mod sequence;
mod slot;
mod spirv;
mod staging;
mod steps;
mod stream;
pub mod submit;
mod timestamp;
mod validation;
mod values;
mod workgroup_matrices;

pub use buffer::{Buffer, MemoryUse};
pub use compile_only::CompileOnly;
pub use context::Context;
pub use device::{Counters, MemoryFigures};
pub use objects::Objects;
pub use physical_device::{DeviceInfo, device_count, devices};
pub use pipeline::Pipeline;
pub use pipeline_cache::PipelineCacheState;
pub use pipeline_handles::PipelineDesc;
pub use pool::Block;
pub use record::Recording;
pub use sequence::Sequence;
pub use submit::Handle;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex whose data stays valid when a holder panics: every critical section here either only reads
/// or leaves the data consistent after each statement.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
