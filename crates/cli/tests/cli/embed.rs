//! `tallow embed`: what it prints, what it refuses, and the guide's chapter.

use std::path::Path;

use tallow_testmodels::encoder;

use crate::bad_inputs::fails;
#[cfg(unix)]
use crate::support::{blocks, link, root, shell};
use crate::support::{model, success, tallow};

/// A small encoder in a folder.
fn small(folder: &Path) -> String {
    let path = folder.join("minilm.gguf");
    std::fs::write(&path, encoder(|_| {}, |_| true).unwrap()).unwrap();
    path.to_str().unwrap().into()
}

fn args<'a>(model: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&["embed", "--device", "cpu", "--model", model], more].concat()
}

fn rows(model: &str, more: &[&str]) -> Vec<Vec<f32>> {
    serde_json::from_str(&success(&args(model, more))).unwrap()
}

#[test]
fn formats_hold_the_same_numbers() {
    let folder = tempfile::tempdir().unwrap();
    let small = small(folder.path());
    let texts = ["a king", "two queens, three mills"];
    let json = rows(&small, &texts);
    assert_eq!((json.len(), json[0].len()), (2, 32));

    let lines = folder.path().join("lines.txt");
    std::fs::write(&lines, texts.join("\n") + "\n").unwrap();
    let text = success(&args(&small, &["--format", "text", "--file", lines.to_str().unwrap()]));
    let numbers = |line: &str| line.split(' ').map(|number| number.parse().unwrap()).collect();
    assert_eq!(text.lines().map(numbers).collect::<Vec<Vec<f32>>>(), json);

    let out = folder.path().join("rows.npy");
    let to_file = ["--format", "npy", "--out", out.to_str().unwrap(), texts[0], texts[1]];
    assert_eq!(success(&args(&small, &to_file)), "");
    let bytes = std::fs::read(out).unwrap();
    assert!(String::from_utf8_lossy(&bytes[..128]).contains("'shape': (2, 32), }"));
    let found: Vec<f32> = bytes[128..].as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
    assert_eq!(found, json.concat());
}

#[test]
fn options_of_pooling_count() {
    let folder = tempfile::tempdir().unwrap();
    let small = small(folder.path());
    let length = |row: &[f32]| row.iter().map(|x| x * x).sum::<f32>().sqrt();
    assert!((length(&rows(&small, &["a king"])[0]) - 1.0).abs() < 1e-5);
    assert!((length(&rows(&small, &["--no-normalize", "a king"])[0]) - 1.0).abs() > 1e-2);
    let tokens = rows(&small, &["--pooling", "none", "a king"]);
    assert_eq!(tokens.len(), 7);
    assert_eq!(rows(&small, &["--pooling", "cls", "a king"])[0], tokens[0]);
    assert_eq!(rows(&small, &["--pooling", "last", "a king"])[0], tokens[6]);
    assert_eq!(rows(&model("nano-Q4_0"), &["--context", "16", "a king"])[0].len(), 256);
}

#[test]
fn what_cannot_be_embedded_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let small = small(folder.path());
    let long = "word ".repeat(60);
    fails(&args(&small, &["a", &long]), &["text 2 has 242 tokens", "--truncate"]);
    assert!(tallow(&args(&small, &["--truncate", &long])).status.success());
    fails(&args(&small, &["--context", "100", "a"]), &["1 to 48"]);
    fails(&args(&small, &["--file", "no/such.txt"]), &["cannot read", "no/such.txt"]);
    fails(&["generate", "--device", "cpu", "--model", &small, "--prompt", "a"], &["bert is an encoder"]);
    fails(&["explain", "--device", "cpu", &small], &["bert is an encoder"]);
    assert_eq!(tallow(&args(&small, &[])).status.code(), Some(2));
    let summary = success(&["inspect", "--summary", "--device", "cpu", &small]);
    assert!(summary.contains("runs: yes"), "{summary}");
}

/// The commands of the guide's chapter, in a folder that has a small encoder in place of the converted one.
#[cfg(unix)]
#[test]
fn the_guide_works() {
    let page = std::fs::read_to_string(root().join("docs/guide/embeddings.md")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    small(folder.path());
    link(&["models"], folder.path());
    let blocks = blocks(&page, "sh");
    assert!(blocks.len() >= 3, "{blocks:?}");
    for commands in blocks {
        shell(commands, folder.path());
    }
}
