//! The Khronos validation layer: switched on with synchronization validation, its reports collected.
//!
//! Synchronization validation inside a command buffer is switched on by `VkValidationFeaturesEXT` in every
//! version. Hazards between submissions are another matter, because the layer changed how it is told:
//! * before 1.3.263: the alpha check `VALIDATION_CHECK_ENABLE_SYNCHRONIZATION_VALIDATION_QUEUE_SUBMIT`, taken
//!   from the environment, a settings file, or a structure of the layer's own in the chain of
//!   `VkInstanceCreateInfo` (layer source, `vk_layer_settings_ext.h`);
//! * from 1.3.263: the same check as the setting `enables` of `VkLayerSettingsCreateInfoEXT`;
//! * from 1.3.290: the setting `syncval_submit_time_validation`.
//!
//! The chain is used throughout, so that nothing outside the process and no variable of it changes. The
//! limit of ten equal reports is lifted, or a later run could fail silently.

use std::ffi::{CStr, c_char, c_void};
use std::sync::Mutex;

use ash::vk;

use super::lock;

/// Name of the layer.
pub(super) const LAYER: &CStr = c"VK_LAYER_KHRONOS_validation";
/// Name of the layer, for messages.
pub(super) const LAYER_NAME: &str = "VK_LAYER_KHRONOS_validation";

/// Reports that are proven wrong, by message id, with the proof. Empty: none is known.
const FALSE_POSITIVES: [(&str, &str); 0] = [];

/// The reports so far that no run has failed of yet.
#[derive(Debug, Default)]
pub(super) struct ValidationLog {
    errors: Mutex<Vec<String>>,
}

impl ValidationLog {
    /// Hands over the reports and forgets them.
    pub(super) fn take(&self) -> Vec<String> {
        std::mem::take(&mut lock(&self.errors))
    }

    fn record(&self, severity: vk::DebugUtilsMessageSeverityFlagsEXT, id: &str, text: &str) {
        if !severity.contains(vk::DebugUtilsMessageSeverityFlagsEXT::ERROR) {
            tracing::warn!("validation: {id}: {text}");
        } else if let Some((_, proof)) = FALSE_POSITIVES.iter().find(|(known, _)| *known == id) {
            tracing::debug!("validation: {id} ignored ({proof}): {text}");
        } else {
            tracing::error!("validation: {id}: {text}");
            lock(&self.errors).push(format!("{id}: {text}"));
        }
    }
}

/// The messenger that writes into `log`, which must outlive the messenger.
pub(super) fn messenger_info(log: &ValidationLog) -> vk::DebugUtilsMessengerCreateInfoEXT<'_> {
    vk::DebugUtilsMessengerCreateInfoEXT::default()
        .message_severity(
            vk::DebugUtilsMessageSeverityFlagsEXT::ERROR | vk::DebugUtilsMessageSeverityFlagsEXT::WARNING,
        )
        .message_type(
            vk::DebugUtilsMessageTypeFlagsEXT::VALIDATION | vk::DebugUtilsMessageTypeFlagsEXT::PERFORMANCE,
        )
        .pfn_user_callback(Some(on_message))
        .user_data(std::ptr::from_ref(log).cast_mut().cast())
}

/// Called by the layer, on whichever thread made the Vulkan call.
///
/// # Safety
/// `user_data` points to a live [`ValidationLog`] and `data` to the layer's message, as
/// [`messenger_info`] and the specification of the callback promise.
unsafe extern "system" fn on_message(
    severity: vk::DebugUtilsMessageSeverityFlagsEXT,
    _kind: vk::DebugUtilsMessageTypeFlagsEXT,
    data: *const vk::DebugUtilsMessengerCallbackDataEXT<'_>,
    user_data: *mut c_void,
) -> vk::Bool32 {
    // SAFETY: the specification says that `data` is valid during the call; `user_data` is the log that
    // `messenger_info` put in, which the instance keeps until after the messenger is destroyed.
    let (data, log) = unsafe { (&*data, &*user_data.cast::<ValidationLog>().cast_const()) };
    let text = |pointer: *const c_char| match pointer.is_null() {
        true => std::borrow::Cow::Borrowed(""),
        // SAFETY: both strings, where not null, are null-terminated and live during the call.
        false => unsafe { CStr::from_ptr(pointer) }.to_string_lossy(),
    };
    log.record(severity, &text(data.p_message_id_name), &text(data.p_message));
    // The call that was reported goes on; the run fails when it is waited for.
    vk::FALSE
}

/// What is chained to `VkInstanceCreateInfo`, and what it points to.
///
/// The pointers are set by [`LayerSettings::link`], when the value has found its place.
pub(super) struct LayerSettings {
    enabled: [vk::ValidationFeatureEnableEXT; 1],
    features: vk::ValidationFeaturesEXT<'static>,
    old_values: [OldValue; 2],
    old: OldSettings,
    on: [vk::Bool32; 1],
    limit: [u32; 1],
    checks: [*const c_char; 1],
    layer_values: [vk::LayerSettingEXT<'static>; 2],
    layer: vk::LayerSettingsCreateInfoEXT<'static>,
}

/// First versions of the layer that take settings in the second and in the third way.
const SETTINGS_BY_EXTENSION: u32 = vk::make_api_version(0, 1, 3, 263);
const SUBMIT_TIME_SETTING: u32 = vk::make_api_version(0, 1, 3, 290);

/// `VkLayerSettingsEXT` as layers before 1.3.263 declare it, with a structure type of their own.
#[repr(C)]
struct OldSettings {
    s_type: vk::StructureType,
    p_next: *const c_void,
    count: u32,
    values: *const OldValue,
}

/// `VkLayerSettingValueEXT` of those layers: a name, a type and a union whose largest member is an array.
#[repr(C)]
struct OldValue {
    name: [u8; vk::MAX_EXTENSION_NAME_SIZE],
    kind: i32,
    data: OldData,
}

#[repr(C)]
union OldData {
    number: u32,
    text: OldText,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct OldText {
    text: *const c_char,
    bytes: u32,
}

/// `VK_STRUCTURE_TYPE_MAX_ENUM - 1`, which those layers use.
const OLD_SETTINGS: vk::StructureType = vk::StructureType::from_raw(0x7fff_fffe);
const OLD_UINT32: i32 = 0;
const OLD_STRING: i32 = 8;
const QUEUE_SUBMIT_CHECK: &CStr = c"VALIDATION_CHECK_ENABLE_SYNCHRONIZATION_VALIDATION_QUEUE_SUBMIT";
/// Equal reports that are passed on before the layer falls silent.
const MESSAGE_LIMIT: u32 = 1_000_000;

impl OldValue {
    fn new(name: &str, kind: i32, data: OldData) -> OldValue {
        let mut padded = [0; vk::MAX_EXTENSION_NAME_SIZE];
        padded[..name.len()].copy_from_slice(name.as_bytes());
        OldValue { name: padded, kind, data }
    }
}

impl LayerSettings {
    /// The settings, not linked yet.
    pub(super) fn new() -> LayerSettings {
        let check =
            OldText { text: QUEUE_SUBMIT_CHECK.as_ptr(), bytes: QUEUE_SUBMIT_CHECK.to_bytes().len() as u32 };
        LayerSettings {
            enabled: [vk::ValidationFeatureEnableEXT::SYNCHRONIZATION_VALIDATION],
            features: vk::ValidationFeaturesEXT::default(),
            old_values: [
                OldValue::new("enables", OLD_STRING, OldData { text: check }),
                OldValue::new("duplicate_message_limit", OLD_UINT32, OldData { number: MESSAGE_LIMIT }),
            ],
            old: OldSettings {
                s_type: OLD_SETTINGS,
                p_next: std::ptr::null(),
                count: 0,
                values: std::ptr::null(),
            },
            on: [vk::TRUE],
            limit: [MESSAGE_LIMIT],
            checks: [QUEUE_SUBMIT_CHECK.as_ptr()],
            layer_values: [vk::LayerSettingEXT::default(); 2],
            layer: vk::LayerSettingsCreateInfoEXT::default(),
        }
    }

    /// Links the structures for this version of the layer and returns the head of the chain; `next` is
    /// chained behind them.
    ///
    /// The chain points into `self`, so it may be used while the borrow lasts.
    pub(super) fn link(&mut self, layer_version: u32, next: *const c_void) -> *const c_void {
        let settings: *const c_void = if layer_version < SETTINGS_BY_EXTENSION {
            self.old.count = self.old_values.len() as u32;
            self.old.values = self.old_values.as_ptr();
            self.old.p_next = next;
            std::ptr::from_ref(&self.old).cast()
        } else {
            let setting = |name: &'static CStr, ty, values: *const c_void| {
                let mut value = vk::LayerSettingEXT::default().layer_name(LAYER).setting_name(name).ty(ty);
                value.value_count = 1;
                value.p_values = values;
                value
            };
            let check = if layer_version < SUBMIT_TIME_SETTING {
                setting(c"enables", vk::LayerSettingTypeEXT::STRING, self.checks.as_ptr().cast())
            } else {
                let name = c"syncval_submit_time_validation";
                setting(name, vk::LayerSettingTypeEXT::BOOL32, self.on.as_ptr().cast())
            };
            let limit = self.limit.as_ptr().cast();
            self.layer_values =
                [check, setting(c"duplicate_message_limit", vk::LayerSettingTypeEXT::UINT32, limit)];
            self.layer.setting_count = self.layer_values.len() as u32;
            self.layer.p_settings = self.layer_values.as_ptr();
            self.layer.p_next = next;
            std::ptr::from_ref(&self.layer).cast()
        };
        self.features.enabled_validation_feature_count = self.enabled.len() as u32;
        self.features.p_enabled_validation_features = self.enabled.as_ptr();
        self.features.p_next = settings;
        std::ptr::from_ref(&self.features).cast()
    }
}
