//! The tensor's methods against those of `candle_core` on the CPU: same names and arguments, same shapes,
//! element types and values, and the same calls fail.
//!
//! Each case is one expression, compiled twice, for Tallow and for Candle. All results of Tallow are computed
//! together, so that a device compiles few graphs.

#![allow(clippy::unwrap_used, clippy::print_stdout)]
// Written as Candle wants it.
#![allow(clippy::needless_borrows_for_generic_args, clippy::single_range_in_vec_init)]

mod api;
mod cases;
mod creation;
mod errors;
mod files;
mod inputs;
mod kv_cache;
mod nn;
mod printing;
mod rotary_emb;
mod signatures;
mod suite;

use suite::Suite;
use tallow::Device;

/// The CPU, on every element type.
#[test]
fn every_method_on_the_cpu() {
    let mut suite = Suite::new(&Device::Cpu);
    cases::all(&mut suite, &inputs::DTYPES);
    suite.finish();
}

/// A Vulkan device, where there is one, on the types that every device has.
#[cfg(feature = "vulkan")]
#[test]
fn every_method_on_a_vulkan_device() {
    let Some(device) = tallow_tests::device::device() else { return };
    let mut suite = Suite::new(&device);
    cases::all(&mut suite, &[tallow::DType::F32]);
    suite.finish();
}
