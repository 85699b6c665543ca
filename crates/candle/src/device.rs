//! The device that compiled graphs, layers and models run on.

use std::sync::OnceLock;

use tallow::Device;

/// The process's device, and why it is no Vulkan device.
fn choice() -> &'static (Device, Option<String>) {
    static CHOICE: OnceLock<(Device, Option<String>)> = OnceLock::new();
    CHOICE.get_or_init(|| match Device::best_vulkan() {
        Ok(device) => (device, None),
        Err(error) => {
            let why = error.to_string();
            say(&format!("tallow-candle runs on the CPU interpreter, which is slow: {why}"));
            (Device::Cpu, Some(why))
        }
    })
}

/// Says it where it is seen: Candle's programs often have no subscriber for `tracing`.
fn say(message: &str) {
    if tracing::dispatcher::has_been_set() {
        tracing::warn!("{message}");
    } else {
        eprintln!("warning: {message}");
    }
}

/// The best Vulkan device, or the one that the variable `TALLOW_DEVICE` names; without one Tallow's interpreter, which
/// is said once. It is opened on first use and stays the same.
pub fn device() -> Device {
    choice().0.clone()
}

/// Why [`device`] is the interpreter; `None` where it is a Vulkan device.
pub fn fallback_reason() -> Option<&'static str> {
    choice().1.as_deref()
}
