//! Choosing and listing devices.

use std::io::Write;
use std::time::Duration;

use sysinfo::System;
use tallow::Device;
use tallow_models::{LoadOptions, ModelFile};

use crate::error::{Error, Result};

/// A device, and why it was chosen where nobody named it and there was a choice.
#[derive(Debug)]
pub struct Chosen {
    /// The device.
    pub device: Device,
    /// Why it was taken.
    pub why: Option<String>,
}

impl Chosen {
    /// The device's name, and why it was taken.
    pub fn describe(&self) -> String {
        match &self.why {
            Some(why) => format!("{} ({why})", self.device),
            None => self.device.to_string(),
        }
    }
}

/// The device that the option `--device` names, for commands that do not depend on speed.
pub fn choose(requested: Option<&str>) -> Result<Device> {
    let Some(requested) = requested else { return Ok(Device::vulkan_if_available()) };
    let device = match (requested, requested.parse::<usize>()) {
        ("cpu", _) => Ok(Device::Cpu),
        ("vulkan", _) => Device::best_vulkan(),
        (_, Ok(ordinal)) => Device::new_vulkan(ordinal),
        (_, Err(_)) => return Err(Error::UnknownDevice(requested.into())),
    };
    device.map_err(|source| Error::Device { requested: requested.into(), source })
}

/// The device that the option `--device` names. Without it, a GPU, else the CPU: a software device takes three times as long
/// for a step of a small model, and compiles it first.
pub fn choose_gpu(requested: Option<&str>) -> Result<Device> {
    let device = choose(requested)?;
    Ok(if device.is_software() && !is_named(requested) { Device::Cpu } else { device })
}

/// Whether somebody chose the device.
fn is_named(requested: Option<&str>) -> bool {
    requested.is_some() || std::env::var_os("TALLOW_DEVICE").is_some_and(|name| !name.is_empty())
}

/// The device that the option `--device` names. Without it, a GPU; where there is only a software device, that or the
/// interpreter, whichever runs the model's first layer faster.
pub fn choose_for(requested: Option<&str>, file: &ModelFile, options: &LoadOptions) -> Result<Chosen> {
    let best = if is_named(requested) { None } else { Device::best_vulkan().ok() };
    match best {
        Some(software) if software.is_software() => faster(software, file, options),
        Some(device) => Ok(Chosen { device, why: None }),
        None => Ok(Chosen { device: choose(requested)?, why: None }),
    }
}

/// The faster of a software device and the interpreter, if the model fits the memory there.
fn faster(software: Device, file: &ModelFile, options: &LoadOptions) -> Result<Chosen> {
    let chosen = |device, why| Ok(Chosen { device, why: Some(why) });
    let (needed, available) = (file.memory_on_cpu(options)?, available_memory());
    if needed > available {
        let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
        let why = format!("the CPU interpreter needs {:.1} GiB, {:.1} are free", gib(needed), gib(available));
        return chosen(software, why);
    }
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    match (file.probe(&Device::Cpu), file.probe(&software)) {
        (Ok(cpu), Ok(other)) => {
            let times = |a, b, name: &str| format!("{a:.2} ms a layer, {b:.2} on {name}");
            match cpu <= other {
                true => chosen(Device::Cpu, times(ms(cpu), ms(other), &software.name())),
                false => chosen(software, times(ms(other), ms(cpu), "the CPU interpreter")),
            }
        }
        (Ok(_), Err(error)) => chosen(Device::Cpu, format!("the software device fails: {error}")),
        // Loading will say what is wrong.
        (Err(error), _) => chosen(software, format!("the CPU interpreter fails: {error}")),
    }
}

/// Bytes of memory that programs can have without swapping. A container may have less than the machine.
pub fn available_memory() -> u64 {
    let mut system = System::new();
    system.refresh_memory();
    let group = system.cgroup_limits().map_or(u64::MAX, |limits| limits.free_memory);
    system.available_memory().min(group)
}

/// Bytes of memory that there are, in use or not.
pub fn total_memory() -> u64 {
    let mut system = System::new();
    system.refresh_memory();
    let group = system.cgroup_limits().map_or(u64::MAX, |limits| limits.total_memory);
    system.total_memory().min(group)
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
