//! The loader and the instance.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_void};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use ash::{ext, khr, vk};

use super::error::vulkan;
use super::lock;
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
