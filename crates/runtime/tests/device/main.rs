//! Tests that need a Vulkan device; lavapipe will do.
//!
//! They obey the environment (`TALLOW_DEVICE`, `TALLOW_DISABLE`, `TALLOW_VALIDATE`, ...), so the whole suite
//! can run on any device, with every optional feature off, and under the validation layer. Without a device
//! a test says that it skips; `REQUIRE_VULKAN=1` makes that a failure.

#![allow(clippy::unwrap_used, reason = "a panic in a helper is a failed test")]

mod devices;
mod figures;
mod harness;
mod memory;
mod pipelines;
mod repack;
mod replay;
mod validation;
