//! Choosing and listing devices.

use std::io::Write;

use tallow::Device;

use crate::error::{Error, Result};

/// The device that the option `--device` names.
pub fn choose(asked: Option<&str>) -> Result<Device> {
    let vulkan = |asked: &str, ordinal| {
        Device::new_vulkan(ordinal).map_err(|source| Error::Device { asked: asked.into(), source })
    };
    match asked {
        None => Ok(Device::vulkan_if_available()),
        Some("cpu") => Ok(Device::Cpu),
        Some("vulkan") => vulkan("vulkan", 0),
        Some(number) => match number.parse::<usize>() {
            Ok(ordinal) => vulkan(number, ordinal),
            Err(_) => Err(Error::UnknownDevice(number.into())),
        },
    }
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
