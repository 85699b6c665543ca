//! The loader, the instance, and the list of devices.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_void};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use ash::{ext, khr, vk};
use tallow_ir::caps::{ApiVersion, DeviceCaps, DeviceType};

use super::caps::{self, Queried};
use super::error::vulkan;
use super::lock;
use super::queue_family::ComputeQueue;
use super::validation::{self, LayerSettings, ValidationLog};
use crate::error::{Error, Result};
use crate::options::RuntimeOptions;

/// A Vulkan instance, and the validation log if the layer watches it.
pub(super) struct Instance {
    pub(super) raw: ash::Instance,
    messenger: Option<(ext::debug_utils::Instance, vk::DebugUtilsMessengerEXT)>,
    /// Dropped after the messenger that points to it, because fields outlive `Drop::drop`.
    log: Option<Box<ValidationLog>>,
    /// Version of the validation layer that watches; 0 without.
    layer_version: u32,
    // The library stays loaded as long as functions from it may be called.
    entry: ash::Entry,
}

impl Instance {
    /// The instance for these options: one for the whole process, or with `validate` one of its own.
    ///
    /// The first is never destroyed. With the last instance the loader would unload the drivers, and drivers
    /// do not survive that beside other threads (NVIDIA's hangs in `dlclose`).
    pub(super) fn open(options: &RuntimeOptions) -> Result<Arc<Instance>> {
        static SHARED: Mutex<BTreeMap<Option<PathBuf>, Arc<Instance>>> = Mutex::new(BTreeMap::new());
        let mut shared = lock(&SHARED);
        let plain = match shared.get(&options.loader) {
            Some(instance) => instance.clone(),
            None => {
                let plain = RuntimeOptions { loader: options.loader.clone(), ..RuntimeOptions::default() };
                let instance = Arc::new(Instance::new(&plain)?);
                shared.insert(plain.loader, instance.clone());
                instance
            }
        };
        // Reports of one context must not fail the runs of another, so each has a log of its own.
        if options.validate { Ok(Arc::new(Instance::new(options)?)) } else { Ok(plain) }
    }

    fn new(options: &RuntimeOptions) -> Result<Instance> {
        let entry = load(options.loader.as_deref())?;
        let extensions = instance_extensions(&entry, None)?;
        let mut wanted = Vec::new();
        let mut flags = vk::InstanceCreateFlags::empty();
        if extensions.iter().any(|name| name == khr::portability_enumeration::NAME) {
            wanted.push(khr::portability_enumeration::NAME.as_ptr());
            flags |= vk::InstanceCreateFlags::ENUMERATE_PORTABILITY_KHR;
        }
        let mut layers = Vec::new();
        let mut layer_version = 0;
        if options.validate {
            layer_version = validation_layer(&entry)?;
            layers.push(validation::LAYER.as_ptr());
            wanted.push(ext::debug_utils::NAME.as_ptr());
            wanted.push(ext::validation_features::NAME.as_ptr());
            let offered = instance_extensions(&entry, Some(validation::LAYER))?;
            if offered.iter().any(|name| name == ext::layer_settings::NAME) {
                wanted.push(ext::layer_settings::NAME.as_ptr());
            }
        }

        let application = vk::ApplicationInfo::default()
            .application_name(c"tallow")
            .engine_name(c"tallow")
            .api_version(vk::API_VERSION_1_3);
        let log = options.validate.then(Box::<ValidationLog>::default);
        let messenger = log.as_deref().map(validation::messenger_info);
        let mut settings = LayerSettings::new();
        let mut info = vk::InstanceCreateInfo::default()
            .flags(flags)
            .application_info(&application)
            .enabled_layer_names(&layers)
            .enabled_extension_names(&wanted);
        if let Some(messenger) = &messenger {
            // The messenger in the chain hears of problems in vkCreateInstance and vkDestroyInstance.
            let last: *const c_void = std::ptr::from_ref(messenger).cast();
            info.p_next = settings.link(layer_version, last);
        }
        // SAFETY: `info` and everything that it points to (names, settings, messenger) live until the call
        // returns, and the names are null-terminated.
        let raw = unsafe { entry.create_instance(&info, None) }.map_err(|code| match code {
            vk::Result::ERROR_INCOMPATIBLE_DRIVER => Error::NoDevice { rejected: Vec::new() },
            other => vulkan("vkCreateInstance", other),
        })?;

        let mut instance = Instance { raw, messenger: None, log, layer_version, entry };
        if let Some(log) = instance.log.as_deref() {
            let functions = ext::debug_utils::Instance::new(&instance.entry, &instance.raw);
            // SAFETY: the instance is live and `log` is freed after the messenger (see `Drop`).
            let handle =
                unsafe { functions.create_debug_utils_messenger(&validation::messenger_info(log), None) }
                    .map_err(|code| vulkan("vkCreateDebugUtilsMessengerEXT", code))?;
            instance.messenger = Some((functions, handle));
        }
        Ok(instance)
    }

    /// The loader's functions.
    pub(super) fn entry(&self) -> &ash::Entry {
        &self.entry
    }

    /// Whether the validation layer watches.
    pub(super) fn validates(&self) -> bool {
        self.log.is_some()
    }

    /// Whether the validation layer, if one watches, knows what Vulkan had in this version.
    ///
    /// A layer takes a structure that is newer than itself for a mistake.
    pub(super) fn layer_knows(&self, version: u32) -> bool {
        self.log.is_none() || self.layer_version >= version
    }

    /// Reports of the validation layer since the last call.
    pub(super) fn take_validation_errors(&self) -> Vec<String> {
        self.log.as_deref().map(ValidationLog::take).unwrap_or_default()
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // SAFETY: every child object holds an `Arc` of the instance, so none is left; the messenger goes
        // before the instance, and the log that it points to after both.
        unsafe {
            if let Some((functions, handle)) = self.messenger.take() {
                functions.destroy_debug_utils_messenger(handle, None);
            }
            self.raw.destroy_instance(None);
        }
    }
}

/// Loads the loader library.
fn load(path: Option<&Path>) -> Result<ash::Entry> {
    // SAFETY: loading runs the library's initializers; a Vulkan loader is made for that, and the user who
    // names another library vouches for it.
    unsafe {
        match path {
            Some(path) => ash::Entry::load_from(path),
            None => ash::Entry::load(),
        }
    }
    .map_err(|error| Error::NoLoader { reason: error.to_string() })
}

fn instance_extensions(entry: &ash::Entry, layer: Option<&CStr>) -> Result<Vec<std::ffi::CString>> {
    // SAFETY: the loader is loaded; the layer name is null-terminated.
    let properties = unsafe { entry.enumerate_instance_extension_properties(layer) }
        .map_err(|code| vulkan("vkEnumerateInstanceExtensionProperties", code))?;
    Ok(properties
        .iter()
        .filter_map(|property| property.extension_name_as_c_str().ok().map(CStr::to_owned))
        .collect())
}

/// Version of the installed validation layer.
fn validation_layer(entry: &ash::Entry) -> Result<u32> {
    // SAFETY: the loader is loaded.
    let layers = unsafe { entry.enumerate_instance_layer_properties() }
        .map_err(|code| vulkan("vkEnumerateInstanceLayerProperties", code))?;
    layers
        .iter()
        .find(|layer| layer.layer_name_as_c_str() == Ok(validation::LAYER))
        .map(|layer| layer.spec_version)
        .ok_or(Error::NoValidationLayer { layer: validation::LAYER_NAME })
}

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
