//! Whatever is wrong with a request: one line that says what, exit code 1, nothing on standard output.

use std::path::Path;

use crate::support::{model, program, stderr, tallow};
use tallow_gguf::{Format, GgufFile, GgufWriter, Metadata, TensorSpec, Value};

/// Runs a command that must fail, and checks that the one line of its error has all `parts`.
pub fn fails(args: &[&str], parts: &[&str]) {
    let output = tallow(args);
    let error = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{args:?}: {error}");
    assert_eq!(output.stdout, b"", "{args:?}");
    assert!(error.starts_with("error: ") && error.lines().count() == 1, "{args:?}: {error}");
    for part in parts {
        assert!(error.contains(part), "{args:?}: {error:?} does not say {part:?}");
    }
}

fn generate(model: &str, more: &[&str], parts: &[&str]) {
    let args =
        [&["generate", "--device", "cpu", "--prompt", "Once upon a time", "--model", model], more].concat();
    fails(&args, parts);
}

/// Every command that reads a model.
fn every_reader(model: &str, parts: &[&str]) {
    generate(model, &[], parts);
    fails(&["inspect", model], parts);
    fails(&["explain", "--device", "cpu", model], parts);
    fails(&["logits", "--device", "cpu", "--model", model, "--tokens", "1", "--out", "unused.npy"], parts);
    fails(&["perplexity", "--device", "cpu", "--model", model, "--file", "unused.txt"], parts);
}

/// A copy of nano Q4_0 with other metadata, and only the tensors that `keep` keeps.
pub fn changed(folder: &Path, change: impl Fn(&mut Metadata), keep: impl Fn(&str) -> bool) -> String {
    let file = GgufFile::open(model("nano-Q4_0")).unwrap();
    let mut metadata = file.metadata().clone();
    change(&mut metadata);
    let tensors: Vec<_> = file.tensors().filter(|t| keep(&t.name)).collect();
    let spec = |t: &&tallow_gguf::TensorInfo| TensorSpec {
        name: t.name.clone(),
        shape: t.shape.clone(),
        format: t.format().unwrap(),
    };
    let path = folder.join("changed.gguf");
    let out = std::fs::File::create(&path).unwrap();
    let mut writer = GgufWriter::create(out, &metadata, tensors.iter().map(spec).collect()).unwrap();
    for tensor in tensors {
        writer.tensor(&tensor.name, file.tensor_data(tensor).unwrap()).unwrap();
    }
    writer.finish().unwrap();
    path.to_str().unwrap().into()
}

#[test]
fn files_that_are_not_there_or_not_models() {
    every_reader("no/such/model.gguf", &["no/such/model.gguf", "No such file"]);
    let folder = tempfile::tempdir().unwrap();
    every_reader(folder.path().to_str().unwrap(), &["directory"]);
    let text = folder.path().join("story.txt");
    std::fs::write(&text, "Once upon a time there was a file.").unwrap();
    every_reader(text.to_str().unwrap(), &["story.txt", "not a GGUF file"]);
    let empty = folder.path().join("empty.gguf");
    std::fs::write(&empty, "").unwrap();
    every_reader(empty.to_str().unwrap(), &["empty.gguf"]);
}

/// Cut anywhere, a file is refused; what is missing is named.
#[test]
fn truncated_files() {
    let folder = tempfile::tempdir().unwrap();
    let whole = std::fs::read(model("nano-Q4_0")).unwrap();
    let path = folder.path().join("cut.gguf");
    for length in [5, 30, 1000, 100_000, 300_000, whole.len() / 2, whole.len() - 1] {
        std::fs::write(&path, &whole[..length]).unwrap();
        generate(path.to_str().unwrap(), &[], &["cut.gguf", "truncated"]);
    }
    fails(&["inspect", path.to_str().unwrap()], &["truncated"]);
}

#[test]
fn models_of_another_kind() {
    let folder = tempfile::tempdir().unwrap();
    let set = |key: &'static str, value: Value| {
        move |m: &mut Metadata| {
            m.insert(key, value.clone());
        }
    };
    let all = |_: &str| true;
    let rwkv = set("general.architecture", Value::String("rwkv7".into()));
    generate(&changed(folder.path(), rwkv, all), &[], &["\"rwkv7\" is not supported", "llama"]);
    let tokenizer = set("tokenizer.ggml.model", Value::String("rwkv".into()));
    generate(&changed(folder.path(), tokenizer, all), &[], &["tokenizer.ggml.model", "rwkv"]);
    let experts = set("llama.expert_count", Value::U32(8));
    generate(&changed(folder.path(), experts, all), &[], &["llama.expert_used_count"]);
    let scaling = set("llama.rope.scaling.type", Value::String("longrope".into()));
    generate(&changed(folder.path(), scaling, all), &[], &["llama.rope.scaling.type", "longrope"]);
    let width = set("llama.embedding_length", Value::U32(512));
    generate(&changed(folder.path(), width, all), &[], &["token_embd.weight", "[8192, 256]", "[8192, 512]"]);
    let without = changed(folder.path(), |_| {}, |name| name != "blk.2.ffn_up.weight");
    generate(&without, &[], &["no tensor blk.2.ffn_up.weight"]);
    // What is no model for us is still a file that can be looked at.
    assert!(tallow(&["inspect", &without]).status.success());
}

/// A format that this program lacks is named with its tensor.
#[test]
fn a_weight_format_that_is_not_supported() {
    let folder = tempfile::tempdir().unwrap();
    let mut bytes = std::fs::read(model("nano-Q4_0")).unwrap();
    // The table's entry: name, number of axes (u32), extents (u64 each), type (u32).
    let name = b"blk.1.attn_v.weight";
    let at = bytes.windows(name.len()).position(|w| w == name).unwrap() + name.len() + 4 + 16;
    assert_eq!(bytes[at..at + 4], 2u32.to_le_bytes());
    // A layout that ggml has given up.
    bytes[at..at + 4].copy_from_slice(&31u32.to_le_bytes());
    let path = folder.path().join("q4_0_4_4.gguf");
    std::fs::write(&path, bytes).unwrap();
    generate(path.to_str().unwrap(), &[], &["blk.1.attn_v.weight", "not supported"]);
}

#[test]
fn requests_that_do_not_fit_the_model() {
    let nano = model("nano-Q4_0");
    generate(&nano, &["--context", "3"], &["the prompt has 5 tokens, the context holds 3"]);
    let long = "word ".repeat(1100);
    let args = ["generate", "--device", "cpu", "--model", &nano, "--prompt", &long];
    fails(&args, &["the context holds 1024"]);
    generate(&nano, &["--context", "5000"], &["5000", "1 to 1024"]);
    generate(&nano, &["--context", "0"], &["1 to 1024"]);
    for (option, value) in [
        ("--temperature", "-1"),
        ("--temperature", "NaN"),
        ("--top-p", "0"),
        ("--min-p", "2"),
        ("--repetition-penalty", "0"),
    ] {
        generate(&nano, &[option, value], &[option.trim_start_matches('-'), value]);
    }
    let out = ["logits", "--device", "cpu", "--model", &nano, "--tokens", "1,8192", "--out", "unused.npy"];
    fails(&out, &["token 8192", "vocabulary of 8192"]);
}

#[test]
fn texts_that_cannot_be_measured() {
    let nano = model("nano-Q4_0");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("text.txt");
    let text = path.to_str().unwrap();
    let fails = |more: &[&str], parts: &[&str]| {
        fails(&[&["perplexity", "--device", "cpu", "--model", &nano, "--file", text], more].concat(), parts);
    };
    fails(&[], &["cannot read", "text.txt", "No such file"]);
    std::fs::write(&path, b"Once upon \xff a time").unwrap();
    fails(&[], &["cannot read", "text.txt", "UTF-8"]);
    std::fs::write(&path, "").unwrap();
    fails(&[], &["the text has 1 tokens, one chunk takes 512"]);
    std::fs::write(&path, "word ".repeat(300)).unwrap();
    fails(&[], &["one chunk takes 512"]);
    fails(&["--ctx", "4"], &["chunks of 4 tokens", "at least 5"]);
    fails(&["--ctx", "0"], &["at least 5"]);
    std::fs::write(&path, "word ".repeat(2000)).unwrap();
    fails(&["--ctx", "1025"], &["1025", "1 to 1024"]);
}

#[test]
fn devices_that_are_not_there() {
    let nano = model("nano-Q4_0");
    let run = |device: &str| {
        let args = ["generate", "--model", &nano, "--prompt", "a", "--device", device];
        fails(&args, &["--device", device]);
    };
    run("gpu");
    run("1x");
    run("4711");
}

#[test]
fn places_that_cannot_be_written() {
    let nano = model("nano-Q4_0");
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("no/such/folder/logits.npy");
    let out = out.to_str().unwrap();
    fails(
        &["logits", "--device", "cpu", "--model", &nano, "--tokens", "1", "--out", out],
        &["cannot write", out],
    );
}

/// Wrong usage is clap's to explain, with exit code 2 as everywhere.
#[test]
fn wrong_usage() {
    for args in [
        &["generate"][..],
        &["logits", "--tokens", "a"],
        &["perplexity", "--model", "m", "--file", "t", "--chunks", "0"],
        &["sing"],
        &[],
    ] {
        let output = program(args).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(!output.stderr.is_empty());
    }
}

/// The writer that these tests lean on writes what the reader takes.
#[test]
fn an_unchanged_copy_works() {
    let folder = tempfile::tempdir().unwrap();
    let copy = changed(folder.path(), |_| {}, |_| true);
    let args = ["generate", "--device", "cpu", "--prompt", "Once", "--max-tokens", "2", "--model", &copy];
    assert!(tallow(&args).status.success());
    assert_eq!(
        GgufFile::open(copy).unwrap().require("token_embd.weight").unwrap().format().unwrap(),
        Format::Q6_K
    );
}
