//! Every example runs, and prints what its first lines promise. `cargo test` builds them beside the tests.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::Command;

/// Each example with a part of what it prints.
const EXAMPLES: [(&str, &str); 10] = [
    ("attention", "first token off by 0"),
    ("basics", "Tensor[[1024, 1024], f32"),
    ("conv_net", "Tensor["),
    ("custom_op", "largest difference to the composition"),
    ("decoder", "there was a king who had a son, and he was so poor"),
    ("fused_mlp", "plan"),
    ("hello_add", "Tensor[[2, 3], f32"),
    ("q4_0_demo", "7.1x smaller, 4.5 bits a number"),
    ("quantized", "on average"),
    ("train_gpt", "tokens/s"),
];

fn program(name: &str) -> PathBuf {
    // The tests are in `deps`, the examples in `examples` beside it.
    let test = std::env::current_exe().unwrap();
    let folder = test.parent().and_then(Path::parent).unwrap().join("examples");
    folder.join(format!("{name}{}", std::env::consts::EXE_SUFFIX))
}

#[test]
fn examples_run() {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let mut found: Vec<String> = std::fs::read_dir(sources)
        .unwrap()
        .map(|entry| entry.unwrap().path().file_stem().unwrap().to_string_lossy().into_owned())
        .collect();
    found.sort();
    assert_eq!(found, EXAMPLES.map(|(name, _)| name), "each example is in the list");
    for (name, part) in EXAMPLES {
        let program = program(name);
        assert!(program.exists(), "{} is not built: cargo build -p tallow --examples", program.display());
        let output = Command::new(program).output().unwrap();
        let (text, errors) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{name}: {errors}");
        // Without a device the interpreter runs them, which has no plan.
        let no_plan = part == "plan" && tallow::Device::best_vulkan().is_err();
        assert!(no_plan || text.contains(part), "{name} prints no {part:?}:\n{text}");
    }
}
