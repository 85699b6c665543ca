//! The list of devices, and the choice of one.

use ash::vk;
use tallow_ir::caps::{ApiVersion, DeviceCaps, DeviceType};

use super::caps::{self, Queried};
use super::error::vulkan;
use super::instance::Instance;
use super::queue_family::ComputeQueue;
use crate::error::{Error, Result};
use crate::options::RuntimeOptions;

/// A device as [`devices`] lists it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DeviceInfo {
    /// Position in the list; what `TALLOW_DEVICE` and `Device::new_vulkan` take.
    pub ordinal: usize,
    /// Name that the driver reports.
    pub name: String,
    /// What kind of device it is.
    pub device_type: DeviceType,
    /// Vulkan version of the device.
    pub api_version: ApiVersion,
    /// What it can do, before kill switches; `None` if it is too old to be asked.
    pub caps: Option<DeviceCaps>,
    /// Why Tallow cannot use it, if so.
    pub unsuitable: Option<String>,
}

/// Every Vulkan device of this machine: usable ones first, then discrete before integrated before virtual
/// before software.
pub fn devices(options: &RuntimeOptions) -> Result<Vec<DeviceInfo>> {
    let instance = Instance::open(options)?;
    Ok(candidates(&instance)?.into_iter().map(|candidate| candidate.info).collect())
}

/// Number of devices that Tallow can use; their ordinals are `0..device_count`.
///
/// A machine without loader or driver has none, which is not an error here.
pub fn device_count(options: &RuntimeOptions) -> Result<usize> {
    match devices(options) {
        Ok(devices) => Ok(devices.iter().filter(|device| device.unsuitable.is_none()).count()),
        Err(Error::NoLoader { .. } | Error::NoDevice { .. }) => Ok(0),
        Err(other) => Err(other),
    }
}

/// A physical device with what was asked of it.
pub(super) struct Candidate {
    pub(super) info: DeviceInfo,
    pub(super) physical: vk::PhysicalDevice,
    pub(super) queried: Option<Queried>,
}

impl Candidate {
    /// What the device answered, and where its work goes.
    pub(super) fn answers(&self) -> Result<(&Queried, ComputeQueue)> {
        let queried = self.queried.as_ref();
        let parts = queried.and_then(|queried| Some((queried, queried.queue?)));
        parts.ok_or_else(|| Error::UnsuitableDevice {
            name: self.info.name.clone(),
            reason: "it answers no queries".to_string(),
        })
    }
}

/// The physical devices in the order of [`devices`].
pub(super) fn candidates(instance: &Instance) -> Result<Vec<Candidate>> {
    // SAFETY: the instance is live.
    let handles = unsafe { instance.raw.enumerate_physical_devices() }.map_err(|code| match code {
        vk::Result::ERROR_INITIALIZATION_FAILED => Error::NoDevice { rejected: Vec::new() },
        other => vulkan("vkEnumeratePhysicalDevices", other),
    })?;
    let mut found = Vec::new();
    for physical in handles {
        found.push(candidate(instance, physical)?);
    }
    found.sort_by_key(|candidate| (candidate.info.unsuitable.is_some(), candidate.info.device_type));
    for (ordinal, candidate) in found.iter_mut().enumerate() {
        candidate.info.ordinal = ordinal;
    }
    Ok(found)
}

fn candidate(instance: &Instance, physical: vk::PhysicalDevice) -> Result<Candidate> {
    let identity = caps::identity(instance, physical);
    let mut info = DeviceInfo {
        ordinal: 0,
        name: identity.name.clone(),
        device_type: identity.device_type,
        api_version: identity.api_version,
        caps: None,
        unsuitable: None,
    };
    if (identity.api_version.major, identity.api_version.minor) < (1, 2) {
        info.unsuitable = Some(format!("it speaks Vulkan {}, 1.2 is needed", identity.api_version));
        return Ok(Candidate { info, physical, queried: None });
    }
    let queried = caps::query(instance, physical, identity)?;
    if !queried.caps.timeline_semaphore {
        info.unsuitable = Some("it has no timeline semaphores".to_string());
    } else if queried.queue.is_none() {
        info.unsuitable = Some("it has no compute queue".to_string());
    } else if is_null(&info) {
        info.unsuitable = Some("there is a driver but no hardware, it only compiles".to_string());
    }
    info.caps = Some(queried.caps.clone());
    Ok(Candidate { info, physical, queried: Some(queried) })
}

/// Picks the device that `asked` names, or the best one.
pub(super) fn choose(found: Vec<Candidate>, asked: Option<&str>) -> Result<Candidate> {
    let infos: Vec<&DeviceInfo> = found.iter().map(|candidate| &candidate.info).collect();
    let ordinal = choose_ordinal(&infos, asked)?;
    found.into_iter().nth(ordinal).ok_or_else(|| Error::NoDevice { rejected: Vec::new() })
}

/// As [`choose`], for a device that need not run anything. Hardware that a driver was told to make up goes first.
pub(super) fn choose_to_compile(mut found: Vec<Candidate>, asked: Option<&str>) -> Result<Candidate> {
    let null =
        found.iter().find(|candidate| is_null(&candidate.info)).map(|null| null.info.ordinal.to_string());
    for candidate in &mut found {
        if candidate.answers().is_ok() {
            candidate.info.unsuitable = None;
        }
    }
    choose(found, asked.or(null.as_deref()))
}

/// Whether there is a driver but no device. Mesa's RADV calls a device so where `RADV_FORCE_FAMILY` is set
/// (src/amd/vulkan/radv_device.c): it compiles, and fails to create a timeline semaphore.
fn is_null(info: &DeviceInfo) -> bool {
    info.name.contains("Null hardware")
}

fn choose_ordinal(infos: &[&DeviceInfo], asked: Option<&str>) -> Result<usize> {
    let unsuitable =
        |info: &DeviceInfo| info.unsuitable.as_ref().map(|reason| format!("{}: {reason}", info.name));
    let Some(asked) = asked else {
        return infos.iter().position(|info| info.unsuitable.is_none()).ok_or_else(|| Error::NoDevice {
            rejected: infos.iter().filter_map(|info| unsuitable(info)).collect(),
        });
    };
    if infos.is_empty() {
        return Err(Error::NoDevice { rejected: Vec::new() });
    }
    // A number that is no ordinal may still be part of a name ("4090").
    let wanted = asked.trim().to_lowercase();
    let by_ordinal = wanted.parse::<usize>().ok().filter(|ordinal| *ordinal < infos.len());
    let by_name = |usable: bool| {
        infos.iter().position(|info| {
            info.unsuitable.is_none() == usable && info.name.to_lowercase().contains(&wanted)
        })
    };
    let chosen = by_ordinal.or_else(|| by_name(true)).or_else(|| by_name(false));
    match chosen.map(|ordinal| (ordinal, &infos[ordinal].unsuitable)) {
        Some((ordinal, None)) => Ok(ordinal),
        Some((ordinal, Some(reason))) => {
            Err(Error::UnsuitableDevice { name: infos[ordinal].name.clone(), reason: reason.clone() })
        }
        None => Err(Error::UnknownDevice {
            asked: asked.to_string(),
            known: infos.iter().enumerate().map(|(i, info)| format!("{i} = {}", info.name)).collect(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(name: &str, device_type: DeviceType, unsuitable: Option<&str>) -> DeviceInfo {
        DeviceInfo {
            ordinal: 0,
            name: name.to_string(),
            device_type,
            api_version: ApiVersion { major: 1, minor: 2, patch: 0 },
            caps: None,
            unsuitable: unsuitable.map(str::to_string),
        }
    }

    #[test]
    fn devices_are_chosen_by_ordinal_and_by_name() {
        let all = [
            info("NVIDIA H200", DeviceType::Discrete, None),
            info("NVIDIA GeForce RTX 4090", DeviceType::Discrete, None),
            info("llvmpipe", DeviceType::Cpu, None),
            info("Old GPU", DeviceType::Integrated, Some("too old")),
        ];
        let infos: Vec<&DeviceInfo> = all.iter().collect();
        assert_eq!(choose_ordinal(&infos, None), Ok(0));
        assert_eq!(choose_ordinal(&infos, Some("2")), Ok(2));
        assert_eq!(choose_ordinal(&infos, Some("LLVM")), Ok(2));
        assert_eq!(choose_ordinal(&infos, Some("4090")), Ok(1));
        assert_eq!(choose_ordinal(&infos, Some("nvidia")), Ok(0));
        assert!(matches!(choose_ordinal(&infos, Some("old")), Err(Error::UnsuitableDevice { .. })));
        assert!(matches!(choose_ordinal(&infos, Some("3")), Err(Error::UnsuitableDevice { .. })));
        let error = choose_ordinal(&infos, Some("voodoo")).unwrap_err().to_string();
        assert!(error.contains("voodoo") && error.contains("2 = llvmpipe"), "{error}");
    }

    #[test]
    fn no_usable_device_says_why() {
        let old = info("Old GPU", DeviceType::Integrated, Some("too old"));
        let error = choose_ordinal(&[&old], None).unwrap_err().to_string();
        assert!(error.contains("Old GPU: too old"), "{error}");
        let error = choose_ordinal(&[], Some("0")).unwrap_err().to_string();
        assert!(error.contains("no driver"), "{error}");
    }
}
