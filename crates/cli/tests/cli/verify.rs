//! `tallow verify`: all kernels of a model are compared, and what it says where there are none.

use serde_json::Value;

use crate::support::{model, root, stderr, tallow};

/// Whether there is a Vulkan device, software included.
fn has_device() -> bool {
    let found = tallow::vulkan_devices().is_ok_and(|all| !all.is_empty());
    assert!(
        found || std::env::var_os("REQUIRE_VULKAN").is_none(),
        "REQUIRE_VULKAN is set, and there is no device"
    );
    found
}

fn verified(model: &str, more: &[&str]) -> Value {
    let args =
        [&["verify", "--device", "vulkan", "--json", "--context", "64", "--model", model], more].concat();
    let output = tallow(&args);
    assert!(output.status.success(), "{args:?}: {}", stderr(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn all_kernels_of_a_model_are_right() {
    if !has_device() {
        println!("SKIPPED: no Vulkan device");
        return;
    }
    let found = verified(&model("nano-Q4_K_M"), &["--tokens", "5"]);
    let kernels = found["kernels"].as_array().unwrap();
    assert!(kernels.len() >= 15, "{} kernels", kernels.len());
    for kernel in kernels {
        assert!(kernel["worst"].as_f64().is_some_and(|worst| worst <= 1.0), "{kernel}");
        assert!(kernel["elements"].as_u64().unwrap() > 0 && kernel["unbounded"] == 0, "{kernel}");
    }
    for step in ["decode", "prefill"] {
        assert!(kernels.iter().any(|kernel| kernel["step"] == step), "no kernels of {step}");
    }
    assert_eq!(found["compared"], kernels.len());
    assert_eq!(found["differing"], 0);
    assert!(!found["driver"].as_str().unwrap().is_empty() && !found["version"].as_str().unwrap().is_empty());
}

#[test]
fn the_interpreter_has_no_kernels() {
    let model = root().join("models/storyteller-nano-f16.gguf");
    let output = tallow(&["verify", "--device", "cpu", "--model", model.to_str().unwrap()]);
    assert!(!output.status.success());
    assert!(stderr(&output).contains("there are no kernels to verify"), "{}", stderr(&output));
}

/// The text that `generate` prints, and what it writes to standard error.
fn generated(verify: &str) -> String {
    let model = model("nano-Q4_K_M");
    let args = ["generate", "--device", "vulkan", "--context", "64", "--max-tokens", "4", "--verify", verify];
    let args = [&args[..], &["--prompt", "Once", "--model", &model]].concat();
    let output = tallow(&args);
    assert!(output.status.success(), "{args:?}: {}", stderr(&output));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn kernels_are_compared_at_load_where_asked() {
    if !has_device() {
        println!("SKIPPED: no Vulkan device");
        return;
    }
    assert_eq!(generated("never"), generated("always"));
    // On the CPU there are no kernels, which is no error here.
    let model = model("nano-Q4_K_M");
    let cpu = ["generate", "--device", "cpu", "--context", "64", "--max-tokens", "1", "--verify", "always"];
    assert!(tallow(&[&cpu[..], &["--prompt", "Once", "--model", &model]].concat()).status.success());
}
