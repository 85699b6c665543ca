//! Choosing and listing devices.

use std::io::Write;

use tallow::Device;

use crate::error::{Error, Result};

/// The device that the option `--device` names.
pub fn choose(asked: Option<&str>) -> Result<Device> {
    let Some(asked) = asked else { return Ok(Device::vulkan_if_available()) };
    let device = match (asked, asked.parse::<usize>()) {
        ("cpu", _) => Ok(Device::Cpu),
        ("vulkan", _) => Device::best_vulkan(),
        (_, Ok(ordinal)) => Device::new_vulkan(ordinal),
        (_, Err(_)) => return Err(Error::UnknownDevice(asked.into())),
    };
    device.map_err(|source| Error::Device { asked: asked.into(), source })
}

/// Prints the devices, one a line, as `--device` takes them.
pub fn list() -> Result<()> {
    let mut out = std::io::stdout().lock();
    match tallow::vulkan_devices() {
        Ok(devices) => {
            for device in devices {
                writeln!(out, "{:<8}{} ({})", device.ordinal, device.name, device.description)?;
            }
        }
        Err(why) => writeln!(out, "no Vulkan devices: {why}")?,
    }
    writeln!(out, "{:<8}the interpreter, exact and slow", "cpu")?;
    Ok(())
}
