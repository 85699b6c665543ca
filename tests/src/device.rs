//! The Vulkan device of tests.

use std::cell::OnceCell;
use std::sync::OnceLock;

use tallow::Device;
use tallow_ir::caps::DeviceType;

/// The environment's Vulkan device; `None` after saying that the test skips. A GPU is opened once; of a software device each
/// thread, and so each test, opens its own, since it runs what a device is given one after the other on one core.
///
/// # Panics
///
/// There is none although `REQUIRE_VULKAN=1`.
pub fn device() -> Option<Device> {
    static SHARED: OnceLock<Result<Device, String>> = OnceLock::new();
    thread_local! { static OWN: OnceCell<Device> = const { OnceCell::new() } }
    let open = || Device::best_vulkan().map_err(|e| e.to_string());
    let own = |shared: &Device| open().unwrap_or_else(|why| panic!("{shared} was opened, and again: {why}"));
    match SHARED.get_or_init(open) {
        Ok(shared) if is_software(shared) => Some(OWN.with(|d| d.get_or_init(|| own(shared)).clone())),
        Ok(shared) => Some(shared.clone()),
        Err(why) if std::env::var("REQUIRE_VULKAN").is_ok_and(|v| v == "1") => {
            panic!("REQUIRE_VULKAN=1, but {why}")
        }
        Err(why) => {
            eprintln!("skipped: {why}");
            None
        }
    }
}

/// Whether the device's kernels run on the cores that tests run on.
pub fn is_software(device: &Device) -> bool {
    device.caps().is_some_and(|caps| caps.device_type == DeviceType::Cpu)
}
