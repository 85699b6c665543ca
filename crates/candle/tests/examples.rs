//! Every example runs, and prints what its first lines promise. `cargo test` builds them beside the tests.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Each example with its arguments and a part of what it prints.
const EXAMPLES: [(&str, &[&str], &str); 5] = [
    ("candle_bert", &[], "cosines differ from those of Candle's Bert by"),
    ("candle_custom_op", &[], "the losses of Candle's own ops differ by"),
    ("candle_matmul", &[], "largest difference to Candle"),
    ("candle_overhead", &["12"], "| Q4_0 512x512, 1 rows |"),
    ("candle_quantized", &["models/storyteller-main-Q4_K_M.gguf", "8"], "Once upon a time there was a"),
];

/// The folder of the sentence model, where somebody has it: `candle_bert` says how to come by it.
const BERT: &str = "TALLOW_MINILM";

fn program(name: &str) -> PathBuf {
    // The tests are in `deps`, the examples in `examples` beside it.
    let test = std::env::current_exe().unwrap();
    let folder = test.parent().and_then(Path::parent).unwrap().join("examples");
    folder.join(format!("{name}{}", std::env::consts::EXE_SUFFIX))
}

fn run(name: &str, arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    let program = program(name);
    assert!(program.exists(), "{} is not built: cargo build -p tallow-candle --examples", program.display());
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    Command::new(program).args(arguments).envs(variables.iter().copied()).current_dir(root).output().unwrap()
}

fn text(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

#[test]
fn examples_run() {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let mut found: Vec<String> = std::fs::read_dir(sources)
        .unwrap()
        .map(|entry| entry.unwrap().path().file_stem().unwrap().to_string_lossy().into_owned())
        .collect();
    found.sort();
    assert_eq!(found, EXAMPLES.map(|(name, _, _)| name), "each example is in the list");
    for (name, arguments, part) in EXAMPLES {
        let output = run(name, arguments, &[]);
        let (text, errors) = text(&output);
        assert!(output.status.success(), "{name}: {errors}");
        assert!(text.contains(part), "{name} prints no {part:?}:\n{text}");
    }
}

#[test]
fn the_sentence_model_agrees_with_candle() {
    let Some(folder) = std::env::var(BERT).ok().filter(|folder| !folder.is_empty()) else {
        eprintln!("skipped: {BERT} names no folder with the weights of all-MiniLM-L6-v2");
        return;
    };
    let output = run("candle_bert", &[&folder], &[]);
    let (text, errors) = text(&output);
    assert!(output.status.success(), "{errors}");
    eprintln!("{text}");
}

/// Without a Vulkan loader the same programs run on the interpreter, give the same results (each checks its own against
/// Candle's), and say so once.
#[test]
fn without_vulkan_it_is_said_once() {
    let none = [("TALLOW_VULKAN_LOADER", "/nonexistent/libvulkan.so")];
    for name in ["candle_bert", "candle_custom_op", "candle_matmul"] {
        let output = run(name, &[], &none);
        let (text, errors) = text(&output);
        assert!(output.status.success(), "{name}: {errors}");
        assert_eq!(
            errors.matches("tallow-candle runs on the CPU interpreter").count(),
            1,
            "{name}: {errors}"
        );
        assert!(text.contains("on cpu"), "{name}: {text}");
    }
}
