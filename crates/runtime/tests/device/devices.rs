//! Finding devices, choosing one, doing without features.

use std::process::Command;

use tallow_ir::caps::OptionalFeature;
use tallow_runtime::vulkan::{Context, device_count, devices};
use tallow_runtime::{Error, RuntimeOptions};

use crate::harness::*;

#[test]
fn devices_are_listed_best_first() {
    let Some(context) = context() else { return };
    let listed = devices(&options()).unwrap();
    assert!(device_count(&options()).unwrap() >= 1);
    assert!(listed.iter().any(|device| device.name == context.caps().name));
    for (ordinal, device) in listed.iter().enumerate() {
        assert_eq!(device.ordinal, ordinal);
        assert!(!device.name.is_empty());
        assert!(device.unsuitable.is_some() || device.caps.is_some());
    }
    let usable: Vec<_> = listed.iter().filter(|device| device.unsuitable.is_none()).collect();
    assert!(usable.windows(2).all(|pair| pair[0].device_type <= pair[1].device_type));
}

#[test]
fn a_device_is_chosen_by_ordinal_or_name() {
    let Some(context) = context() else { return };
    let listed = devices(&options()).unwrap();
    let choose = |device: &str| {
        Context::new(&RuntimeOptions { device: Some(device.to_string()), ..options() })
            .map(|context| context.caps().name.clone())
    };
    assert_eq!(choose("0").unwrap(), listed[0].name);
    assert!(choose(&context.caps().name.to_uppercase()).is_ok());
    match choose("voodoo 2") {
        Err(Error::UnknownDevice { asked, known }) => {
            assert_eq!(asked, "voodoo 2");
            assert_eq!(known.len(), listed.len());
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn capabilities_keep_what_vulkan_promises() {
    let Some(context) = context() else { return };
    let caps = context.caps();
    assert!(caps.timeline_semaphore && (caps.api_version.major, caps.api_version.minor) >= (1, 2));
    assert!(caps.max_workgroup_invocations >= 128 && caps.shared_memory_bytes >= 16384);
    assert!(caps.max_storage_buffers >= 4 && caps.push_constant_bytes >= 128);
    assert!(caps.storage_offset_alignment.is_power_of_two());
    assert!(caps.subgroup_size.is_power_of_two());
    assert!(!caps.driver.is_empty());
}

#[test]
fn known_devices_have_the_capabilities_of_their_profiles() {
    // Under an older validation layer a device shows less than it has.
    let bare = RuntimeOptions { disable: vec![], validate: false, ..options() };
    let Some(context) = context_with(&bare) else { return };
    let found = context.caps();
    // The profiles describe these drivers; others may know more or less.
    let mut profile = if found.name.contains("256 bits") && found.driver.contains("Mesa 22.3.6") {
        tallow_ir::caps::lavapipe()
    } else if found.name == "NVIDIA H200" {
        tallow_ir::caps::h200()
    } else {
        return eprintln!("skipped: no profile describes {} with {}", found.name, found.driver);
    };
    profile.name = found.name.clone();
    profile.driver = found.driver.clone();
    profile.api_version = found.api_version;
    profile.max_storage_buffer_range = found.max_storage_buffer_range.min(profile.max_storage_buffer_range);
    profile.cooperative_matrix.sort();
    assert_eq!(*found, profile);
}

#[test]
fn each_feature_can_be_switched_off() {
    let Some(full) = context() else { return };
    let mut lists: Vec<Vec<OptionalFeature>> = full.caps().features().into_iter().map(|f| vec![f]).collect();
    lists.push(OptionalFeature::ALL.to_vec());
    drop(full);
    for disable in lists {
        let Some(context) = context_with(&RuntimeOptions { disable: disable.clone(), ..options() }) else {
            return;
        };
        for &feature in &disable {
            assert!(!context.caps().has(feature), "{feature}");
        }
        let add = pipeline(&context, "add", ADD, 3, 0);
        let values: Vec<f32> = (0..500).map(|i| i as f32).collect();
        let buffers = ["a", "b", "c"].map(|name| shared(&context, name, &values));
        let commands = vec![
            HEAD,
            dispatch("add", 0, &[0, 1, 2], &buffers, 8, &[]),
            BETWEEN,
            dispatch("add", 0, &[2, 0, 1], &buffers, 8, &[]),
            TAIL,
        ];
        record(&context, commands, &[add], &buffers).run().unwrap();
        let expected: Vec<f32> = values.iter().map(|value| value * 3.0).collect();
        assert_eq!(floats(&buffers[1], 500), expected, "without {disable:?}");
    }
}

#[test]
fn a_disabled_feature_is_not_enabled_on_the_device() {
    // The layer reports a module that uses a capability whose feature is not enabled.
    let Some(context) = context() else { return };
    if !context.caps().has(OptionalFeature::Int64) {
        return eprintln!("skipped: the device has no 64-bit integers to switch off");
    }
    let source = "#version 450
        #extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
        layout(local_size_x = 1) in;
        layout(std430, binding = 0) buffer A { uvec2 a[]; };
        void main() { a[0] = unpack32(packUint2x32(a[0]) * 3ul); }";
    let spirv = spirv(source);
    let desc = tallow_runtime::vulkan::PipelineDesc {
        name: "int64",
        spirv: &spirv,
        bindings: 1,
        push_bytes: 0,
        required_subgroup_size: None,
    };
    let with = RuntimeOptions { validate: true, ..options() };
    let Some(context) = context_with(&with) else { return };
    context.create_pipelines(&[desc]).unwrap();
    let without = RuntimeOptions { disable: vec![OptionalFeature::Int64], ..with };
    let Some(context) = context_with(&without) else { return };
    assert!(matches!(context.create_pipelines(&[desc]), Err(Error::Validation(_))));
}

#[test]
fn a_missing_loader_is_a_clear_error() {
    let options = RuntimeOptions { loader: Some("/nowhere/libvulkan.so.1".into()), ..options() };
    let error = Context::new(&options).unwrap_err();
    assert!(matches!(&error, Error::NoLoader { .. }), "{error}");
    assert!(error.to_string().contains("/nowhere/libvulkan.so.1"), "{error}");
    assert_eq!(device_count(&options), Ok(0));
}

/// Runs one test of this binary again, in a process with other variables.
fn in_another_process(test: &str, variables: &[(&str, &str)]) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--nocapture", test])
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    let text =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

const INSIDE: &str = "TALLOW_TEST_INSIDE";

#[test]
fn no_driver_is_a_clear_error() {
    // The loader looks for drivers once per process, so the question is asked in another one.
    if std::env::var_os(INSIDE).is_none() {
        let nowhere = "/nowhere/icd.json";
        let variables = [(INSIDE, "1"), ("VK_DRIVER_FILES", nowhere), ("VK_ICD_FILENAMES", nowhere)];
        return in_another_process("devices::no_driver_is_a_clear_error", &variables);
    }
    match Context::new(&options()) {
        // Not even a loader: then this machine cannot ask the question.
        Err(Error::NoLoader { .. }) => {}
        Err(error @ Error::NoDevice { .. }) => {
            assert!(error.to_string().contains("found no driver"), "{error}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(device_count(&options()), Ok(0));
}

#[test]
fn a_missing_validation_layer_is_a_clear_error() {
    if std::env::var_os(INSIDE).is_none() {
        let variables = [(INSIDE, "1"), ("VK_LAYER_PATH", "/nowhere")];
        return in_another_process("devices::a_missing_validation_layer_is_a_clear_error", &variables);
    }
    match Context::new(&RuntimeOptions { validate: true, ..options() }) {
        Err(Error::NoLoader { .. }) => {}
        Err(error @ Error::NoValidationLayer { .. }) => {
            assert!(error.to_string().contains("vulkan-validationlayers"), "{error}");
        }
        other => panic!("{other:?}"),
    }
}
