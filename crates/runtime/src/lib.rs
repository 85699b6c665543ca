//! Runs compiled work on a Vulkan device: memory, pipelines, record once, replay.
//!
//! The layers above decide everything that can be decided without a device: which kernels run, in which
//! order, where their operands lie, where a barrier stands. This crate carries it out, and carries it out
//! literally: one dispatch of the plan is one `vkCmdDispatch`, one barrier is one `vkCmdPipelineBarrier`,
//! counted at the call. Nothing is tracked, reordered or synchronized behind the plan's back, because what
//! is not in the plan could not be tested without a device.
//!
//! Three ideas carry the crate:
//!
//! * **Commands are data.** A [`RecordSpec`](record::RecordSpec) lists dispatches, barriers and copies over
//!   numbered pipelines and buffers. It is checked as a whole before a single Vulkan call is made, so the
//!   recorder itself has no error that depends on what it records.
//! * **Recorded once, replayed.** A `vulkan::Recording` owns one primary command buffer and keeps alive all
//!   that it touches. A run is one `vkQueueSubmit` that signals a timeline semaphore; what differs from run
//!   to run (symbol values, inputs, grids) lies in buffers that the host writes between runs.
//! * **The device decides, and can be overruled.** `DeviceCaps` is what Vulkan reports less what
//!   `TALLOW_DISABLE` takes away, and a feature that was taken away is not enabled on the device either.
//!   Plain Vulkan 1.2 with a timeline semaphore is enough.
//!
//! Under `TALLOW_VALIDATE=1` the Khronos layer watches, synchronization included, and anything that it
//! reports turns the run into an error. All `unsafe` of the project lives in [`vulkan`], but for the one call that maps a
//! GGUF file.
//!
//! Without the feature `vulkan` the crate holds the plain data alone: no loader, no driver, no C++.

#[cfg(feature = "vulkan")]
mod bus;
pub mod cache_dir;
#[cfg(feature = "vulkan")]
pub mod compile_check;
pub mod error;
#[cfg(feature = "vulkan")]
pub mod executable;
#[cfg(feature = "vulkan")]
pub mod lazy;
pub mod options;
pub mod record;
#[cfg(feature = "vulkan")]
pub mod resident;
mod reuse;
pub mod statistics;
#[cfg(feature = "vulkan")]
pub mod tune;
#[cfg(feature = "vulkan")]
mod tuner;
#[cfg(feature = "vulkan")]
mod value;
#[cfg(feature = "vulkan")]
pub mod vulkan;
#[cfg(feature = "vulkan")]
mod weight_copies;

pub use error::{Error, Result};
pub use options::{RuntimeOptions, Wait};
