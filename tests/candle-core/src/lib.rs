//! What the tests of `candle_core` import under that name: Tallow's items, and the helpers of those tests.
//!
//! `build.rs` takes the tests and their helpers from the published package; none of its text is in this repository.

use std::sync::OnceLock;

pub use tallow::*;

/// Candle's helpers to compare tensors.
#[allow(missing_docs)]
pub mod test_utils {
    include!(concat!(env!("OUT_DIR"), "/test_utils.rs"));
}

/// Where Candle's gradients lie.
pub mod backprop {
    pub use tallow::GradStore;
}

/// The best Vulkan device. `None` where there is none, unless `REQUIRE_VULKAN=1`.
///
/// # Panics
/// When there is none and `REQUIRE_VULKAN=1`.
pub fn vulkan() -> Option<Device> {
    static DEVICE: OnceLock<Result<Device>> = OnceLock::new();
    match DEVICE.get_or_init(Device::best_vulkan) {
        Ok(device) => Some(device.clone()),
        Err(error) => {
            let required = std::env::var("REQUIRE_VULKAN").is_ok_and(|value| value == "1");
            assert!(!required || cfg!(not(feature = "vulkan")), "REQUIRE_VULKAN=1, but {error}");
            eprintln!("skipped: {error}");
            None
        }
    }
}

/// One test for the CPU and one for Vulkan, in place of Candle's for the CPU, CUDA and Metal.
#[macro_export]
macro_rules! test_device {
    // `docs/candle-api.md` says why.
    ($run:ident, avg_pool2d_pytorch_cpu, $gpu:ident, $metal:ident) => {
        #[test]
        fn $gpu() -> Result<()> {
            $crate::vulkan().map_or(Ok(()), |device| $run(&device))
        }
    };
    ($run:ident, $cpu:ident, $gpu:ident, $metal:ident) => {
        #[test]
        fn $cpu() -> Result<()> {
            $run(&$crate::Device::Cpu)
        }

        #[test]
        fn $gpu() -> Result<()> {
            $crate::vulkan().map_or(Ok(()), |device| $run(&device))
        }
    };
}
