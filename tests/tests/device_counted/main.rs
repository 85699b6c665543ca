//! Device tests that count what the host allocates and what the device has.
//!
//! A target of its own, because the crate that counts allocations replaces the allocator of the whole program, and because
//! programs of lazy tensors are kept by the process: no other test may push them out.

#![cfg(feature = "vulkan")]
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod draws;
mod feed_forward;
mod hits;
mod in_place;
mod lazy_resources;
mod recorded_runs;
mod replay;
mod training;
mod two_devices;
