//! What each subcommand prints and writes.

use std::io::Read;
use std::process::Stdio;

use crate::support::{model, program, stderr, success, tallow};

const PROMPT: &str = "Once upon a time there was a";
/// From `models/expected/storyteller-nano-f16.json`.
const STORY: &str = " king who had a wife who was very poor. But one day the king said to his wife,";

fn generate<'a>(model: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&["generate", "--device", "cpu", "--prompt", PROMPT, "--max-tokens", "20", "--model", model], more]
        .concat()
}

#[test]
fn generate_streams_the_text_and_closes_with_figures() {
    let output = tallow(&generate(&model("nano-f16"), &[]));
    assert!(output.status.success());
    assert_eq!(String::from_utf8(output.stdout.clone()).unwrap(), format!("{PROMPT}{STORY}\n"));
    let figures = stderr(&output);
    assert_eq!(figures.lines().count(), 1, "{figures}");
    for part in ["[cpu: ", "prompt 8 tokens at ", "text 20 tokens at ", "weights 10.0 MiB"] {
        assert!(figures.contains(part), "{figures}");
    }
}

#[test]
fn json_has_exactly_the_promised_keys() {
    let report: serde_json::Value =
        serde_json::from_str(&success(&generate(&model("nano-f16"), &["--json"]))).unwrap();
    let mut keys: Vec<&str> = report.as_object().unwrap().keys().map(String::as_str).collect();
    keys.sort_unstable();
    let mut promised = [
        "text",
        "tokens",
        "device",
        "prompt_tps",
        "decode_tps",
        "dispatches_per_step",
        "dispatches_per_layer",
        "barriers_per_step",
        "barriers_lower_bound",
        "recordings",
        "arena_bytes",
        "arena_lower_bound_bytes",
        "weight_bytes",
    ];
    promised.sort_unstable();
    assert_eq!(keys, promised);
    assert_eq!(report["text"], STORY);
    assert_eq!(report["tokens"].as_array().unwrap().len(), 20);
    assert_eq!(report["tokens"][0], 689);
    assert_eq!(report["device"], "cpu");
    assert!(report["prompt_tps"].as_f64().unwrap() > 0.0 && report["decode_tps"].as_f64().unwrap() > 0.0);
}

#[test]
fn caches_of_every_type() {
    let model = model("nano-Q4_0");
    for (keys, values) in [("f32", "f16"), ("q8_0", "q4_0")] {
        let more = ["--cache-type-k", keys, "--cache-type-v", values, "--json"];
        let report: serde_json::Value = serde_json::from_str(&success(&generate(&model, &more))).unwrap();
        assert_eq!(report["tokens"].as_array().unwrap().len(), 20, "{keys} {values}");
        // The story's first words are not close to others.
        assert_eq!(report["tokens"][0], 689, "{keys} {values}");
    }
    let output = tallow(&generate(&model, &["--cache-type-k", "q5_9"]));
    let error = stderr(&output);
    assert!(!output.status.success() && error.contains("there are f32, f16, q8_0, q4_0"), "{error}");
}

#[test]
fn a_seed_is_a_text() {
    let model = model("nano-Q4_0");
    let text = |seed| {
        success(&generate(&model, &["--temperature", "1", "--top-p", "0.9", "--json", "--seed", seed]))
            .split("\"device\"")
            .next()
            .unwrap()
            .to_string()
    };
    assert_eq!(text("1"), text("1"));
    assert_ne!(text("1"), text("2"));
}

#[test]
fn logits_are_an_npy_vector() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("logits.npy");
    let tokens = "0,3262,627,261,551,453,309,261";
    success(&[
        "logits",
        "--device",
        "cpu",
        "--model",
        &model("nano-f16"),
        "--tokens",
        tokens,
        "--out",
        out.to_str().unwrap(),
    ]);
    let bytes = std::fs::read(out).unwrap();
    assert!(bytes.starts_with(
        b"\x93NUMPY\x01\x00\x76\x00{'descr': '<f4', 'fortran_order': False, 'shape': (8192,), }"
    ));
    let logits: Vec<f32> = bytes[128..].as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
    assert_eq!(logits.len(), 8192);
    let best = (0..8192).max_by(|a, b| logits[*a].total_cmp(&logits[*b])).unwrap();
    // The first token of the story.
    assert_eq!(best, 689);
}

#[test]
fn inspect_prints_metadata_tensors_and_totals() {
    let text = success(&["inspect", &model("nano-Q4_K_M")]);
    for line in [
        "GGUF version 3,",
        "general.architecture = \"llama\"",
        "llama.embedding_length = 256",
        "tokenizer.ggml.tokens = 8192 string [\"<|begin_of_text|>\", ",
        "token_embd.weight",
        "q4_k",
        "q6_k",
        "total       38 tensors        5245184 elements",
        "file size 3893152 bytes",
    ] {
        assert!(text.contains(line), "{line:?} is not in\n{text}");
    }
}

#[test]
fn explain_and_devices() {
    let plan = success(&["explain", "--device", "cpu", &model("nano-Q4_0")]);
    assert!(plan.starts_with("device cpu") && plan.contains("graph \"decode\""), "{plan}");
    let plan = success(&["explain", "--device", "cpu", "--step", "prefill", &model("nano-Q4_0")]);
    assert!(plan.contains("graph \"prefill\"") && plan.contains("symbol seq <= 512"), "{plan}");
    assert!(success(&["devices"]).lines().any(|line| line.starts_with("cpu ")));
}

/// A reader that has had enough ends the program, without an error.
#[test]
fn a_closed_pipe_ends_quietly() {
    let model = model("nano-Q4_0");
    let mut args = generate(&model, &[]);
    args[6] = "900";
    let mut child = program(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut [0; 40]).unwrap();
    drop(stdout);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{:?} {}", output.status, stderr(&output));
    assert_eq!(stderr(&output), "");
}

/// Without a Vulkan loader the default is the CPU, after one line that says so.
#[test]
fn no_loader_falls_back_with_one_line() {
    let model = model("nano-f16");
    let args: Vec<&str> =
        generate(&model, &["--json"]).into_iter().filter(|a| *a != "--device" && *a != "cpu").collect();
    let loader = ("TALLOW_VULKAN_LOADER", "/nonexistent/libvulkan.so");
    let output = program(&args).env(loader.0, loader.1).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let warning = stderr(&output);
    assert_eq!(warning.lines().count(), 1, "{warning}");
    assert!(warning.contains("running on the CPU interpreter"), "{warning}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["text"], &report["device"]), (&STORY.into(), &"cpu".into()));

    // Asked for by name, it is an error.
    let output =
        program(&generate(&model, &[])[..]).env(loader.0, loader.1).args(["--device", "vulkan"]).output();
    assert!(!output.unwrap().status.success());
}
