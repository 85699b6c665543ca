//! `tallow inspect`: whether a model runs, and the memory that it takes.

use std::path::Path;

use serde_json::Value as Json;
use tallow_gguf::{Metadata, Value};

use crate::bad_inputs::{changed, fails};
use crate::support::{model, success};

fn summary(model: &str, more: &[&str]) -> Json {
    let args = [&["inspect", "--json", "--summary", model], more].concat();
    serde_json::from_str::<Json>(&success(&args)).unwrap()["summary"].take()
}

/// On a device that is always there.
fn on_cpu(model: &str, more: &[&str]) -> Json {
    summary(model, &[&["--device", "cpu"], more].concat())
}

fn generated(model: &str, device: &str, more: &[&str]) -> Json {
    let args =
        ["generate", "--device", device, "--model", model, "--prompt", "a", "--max-tokens", "2", "--json"];
    serde_json::from_str(&success(&[&args, more].concat())).unwrap()
}

/// Figures that equal those of a model that was loaded: on the interpreter, and on the best Vulkan device if there is one.
#[test]
fn memory_is_what_loading_reports() {
    let listed = success(&["devices"]);
    let vulkan = listed.lines().any(|line| line.starts_with('0') && !line.contains("not usable"));
    for device in ["cpu"].into_iter().chain(vulkan.then_some("vulkan")) {
        for (name, more) in [
            ("nano-f16", &[][..]),
            ("nano-Q4_K_M", &["--context", "200", "--cache-type-k", "q8_0"]),
            ("nano-Q4_0", &["--cache-type-v", "f32"]),
        ] {
            let model = model(name);
            let memory = summary(&model, &[&["--device", device], more].concat())["memory"].take();
            let generated = generated(&model, device, more);
            assert_eq!(memory["weight_bytes"], generated["weight_bytes"], "{device} {name}");
            let arena = memory["arena_bytes"].as_u64().unwrap_or(0);
            assert_eq!(Json::from(arena), generated["arena_bytes"], "{device} {name}");
        }
    }
}

#[test]
fn a_summary_has_all_that_matters() {
    let found = on_cpu(&model("nano-Q4_K_M"), &[]);
    assert_eq!(found["architecture"]["name"], "llama");
    assert_eq!(found["tokenizer"]["name"], "gpt2");
    assert_eq!(found["chat_template"], false);
    assert_eq!(found["parameters"], 5_245_184);
    assert_eq!(found["formats"].as_array().unwrap().len(), 3);
    assert_eq!(found["runs"], true);
    assert_eq!(found["reasons"], Json::Array(vec![]));
    // 4 layers, keys and values of 128 elements in f16, 1024 positions.
    assert_eq!(found["memory"]["cache_bytes"], 4 * 2 * 128 * 2 * 1024);
    // The tensors of the file, and the frequencies of 32 pairs.
    assert_eq!(found["memory"]["weight_bytes"], 3_617_280 + 32 * 4);
    let short = on_cpu(&model("nano-Q4_K_M"), &["--context", "32", "--cache-type-v", "q4_0"]);
    assert_eq!(short["memory"]["cache_bytes"], 4 * 32 * (128 * 2 + 128 / 32 * 18));
}

#[test]
fn text_ends_in_a_verdict() {
    let model = model("nano-Q4_0");
    // What is free changes from one run to the next.
    let at_most = ["--device", "cpu", "--memory", "1GiB"];
    let summary = success(&[&["inspect", "--summary", &model][..], &at_most].concat());
    assert!(summary.starts_with("architecture     llama: supported (llama, qwen2, "), "{summary}");
    assert!(summary.ends_with("\navailable        1073741824 bytes (1.0 GiB)\nruns: yes\n"), "{summary}");
    let all = success(&[&["inspect", &model][..], &at_most].concat());
    assert!(all.starts_with("GGUF version 3") && all.ends_with(&format!("\n\n{summary}")), "{all}");
    let json: Json =
        serde_json::from_str(&success(&["inspect", "--json", "--device", "cpu", &model])).unwrap();
    assert_eq!(json["metadata"]["llama.embedding_length"], 256);
    assert_eq!(json["metadata"]["tokenizer.ggml.tokens"]["length"], 8192);
    assert_eq!(json["tensors"].as_array().unwrap().len(), 38);
    assert_eq!(json["summary"]["runs"], true);
}

/// A device that is not here, by the name of its profile; its arenas are planned.
#[test]
fn a_profile_is_a_device() {
    for name in ["minimum", "lavapipe", "h200", "rdna3", "intel", "mali", "adreno"] {
        let found = summary(&model("nano-Q4_0"), &["--device", name]);
        assert_eq!(found["runs"], true, "{found}");
        let memory = &found["memory"];
        let bytes = |key: &str| memory[key].as_u64().unwrap();
        assert!(bytes("prefill_arena_bytes") > bytes("arena_bytes") && bytes("arena_bytes") > 0, "{found}");
        let parts = ["weight_bytes", "cache_bytes", "prefill_arena_bytes", "arena_bytes", "other_bytes"];
        assert_eq!(bytes("total_bytes"), parts.into_iter().map(bytes).sum::<u64>());
    }
    fails(&["inspect", "--device", "gpu", &model("nano-Q4_0")], &["--device", "gpu"]);
}

/// The reasons of a changed copy of nano Q4_0.
fn reasons(
    folder: &Path,
    change: impl Fn(&mut Metadata),
    keep: impl Fn(&str) -> bool,
    more: &[&str],
) -> Vec<String> {
    let found = on_cpu(&changed(folder, change, keep), more);
    assert_eq!(found["runs"], false, "{found}");
    found["reasons"].as_array().unwrap().iter().map(|r| r.as_str().unwrap().to_owned()).collect()
}

#[test]
fn every_reason_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let change = |m: &mut Metadata| {
        m.insert("general.architecture", Value::String("rwkv7".into()));
        m.insert("tokenizer.ggml.model", Value::String("rwkv\u{1b}[2J\n".into()));
    };
    let found = reasons(folder, change, |_| true, &[]);
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].contains("\"rwkv7\" is not supported") && found[1].contains("rwkv"), "{found:?}");
    assert!(found.iter().all(|reason| !reason.contains(char::is_control)), "{found:?}");
    let text = success(&["inspect", "--summary", folder.join("changed.gguf").to_str().unwrap()]);
    let last = text.lines().last().unwrap();
    assert!(last.starts_with("runs: no: ") && last.contains("rwkv7") && last.contains("rwkv"), "{text}");

    let found = reasons(folder, |_| {}, |name| !name.contains("ffn_up"), &[]);
    assert_eq!(found.len(), 4, "{found:?}");
    for (layer, reason) in found.iter().enumerate() {
        assert_eq!(reason, &format!("the file has no tensor blk.{layer}.ffn_up.weight"));
    }
    let layers = |count: u32| move |m: &mut Metadata| _ = m.insert("llama.block_count", Value::U32(count));
    let found = reasons(folder, layers(20), |_| true, &[]);
    assert!(found.len() == 17 && found[16].starts_with("there may be more"), "{found:?}");
    let found = reasons(folder, layers(1 << 24), |_| true, &[]);
    assert!(found.len() == 1 && found[0].contains("llama.block_count"), "{found:?}");
    let found = reasons(folder, |m| _ = m.remove("general.architecture"), |_| true, &[]);
    assert_eq!(found, ["metadata has no key general.architecture"]);
    let found = reasons(folder, |m| _ = m.insert("llama.expert_count", Value::U32(8)), |_| true, &[]);
    assert!(found.len() == 1 && found[0].contains("llama.expert_used_count"), "{found:?}");
    let found = reasons(folder, |m| _ = m.remove("tokenizer.ggml.model"), |_| true, &["--context", "9999"]);
    assert!(found.len() == 2 && found[1].contains("9999"), "{found:?}");
}

/// Formats that are not known are reasons only where the model reads such tensors; all of one format are one reason.
#[test]
fn formats_that_are_not_supported() {
    let folder = tempfile::tempdir().unwrap();
    let mut bytes = std::fs::read(model("nano-Q4_0")).unwrap();
    for name in ["blk.1.attn_v.weight", "blk.2.attn_v.weight"] {
        let at = bytes.windows(name.len()).position(|w| w == name.as_bytes()).unwrap() + name.len() + 4 + 16;
        // A layout that ggml has given up.
        bytes[at..at + 4].copy_from_slice(&31u32.to_le_bytes());
    }
    let path = folder.path().join("q4_0_4_4.gguf");
    std::fs::write(&path, bytes).unwrap();
    let found = on_cpu(path.to_str().unwrap(), &[]);
    let reasons = found["reasons"].as_array().unwrap();
    assert!(reasons.len() == 1 && reasons[0].as_str().unwrap().contains("type 31"), "{found}");
    assert_eq!(found["memory"], Json::Null);
    let format = found["formats"].as_array().unwrap().iter().find(|f| f["supported"] == false).unwrap();
    assert_eq!((&format["name"], &format["tensors"]), (&"type 31".into(), &2.into()));
}
