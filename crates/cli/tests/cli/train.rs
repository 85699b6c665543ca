//! `tallow train`: the guide's commands, a process that is killed while it writes, and faults in one line each.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::bad_inputs::fails;
#[cfg(unix)]
use crate::support::{blocks, link, root, shell};
use crate::support::{program, stderr, tallow};

/// A tokenizer whose tokens are the letters and three others, as a `tokenizer.json`.
fn tokenizer() -> String {
    let letters = ('a'..='z').enumerate().map(|(i, letter)| format!("\"{letter}\": {}", i + 3));
    let others = ["\"Ġ\": 29".to_string(), "\"Ċ\": 30".to_string()];
    let vocab: Vec<String> = letters.chain(others).collect();
    let control = ["<|begin_of_text|>", "<|end_of_text|>", "<|pad|>"];
    let added: Vec<String> =
        (0..3).map(|id| format!("{{\"id\": {id}, \"content\": \"{}\"}}", control[id])).collect();
    format!(
        "{{\"added_tokens\": [{}], \"normalizer\": null, \"pre_tokenizer\": {{\"type\": \"ByteLevel\"}}, \
         \"model\": {{\"type\": \"BPE\", \"merges\": [], \"vocab\": {{{}}}}}}}",
        added.join(", "),
        vocab.join(", ")
    )
}

/// Writes `NAME.toml` with what it names, for a training into the folder `NAME`; gives its path.
fn config(folder: &Path, name: &str, top: &str, training: &str) -> String {
    std::fs::write(folder.join("tokenizer.json"), tokenizer()).unwrap();
    let text = "once upon a time there was a miller who had three sons\n".repeat(30);
    std::fs::write(folder.join("text.txt"), text).unwrap();
    let path = folder.join(format!("{name}.toml"));
    let text = format!(
        "preset = \"test\"\ntext = \"text.txt\"\ntokenizer = \"tokenizer.json\"\nout = \"{name}\"\n{top}\n\
         [model]\nvocab_size = 31\nn_embd = 16\nn_ff = 32\n[training]\nbatch = 1\ncontext = 8\n{training}\n"
    );
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().into()
}

fn args(config: &str) -> [&str; 5] {
    ["train", "--device", "cpu", "--config", config]
}

fn checkpoint(folder: &Path, name: &str) -> Vec<u8> {
    std::fs::read(folder.join(name).join("checkpoint.safetensors")).unwrap()
}

/// The commands of the guide's chapter, one after the other, in a folder that has what the repository has.
#[cfg(unix)]
#[test]
fn the_guide_works() {
    let page = std::fs::read_to_string(root().join("docs/guide/training.md")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    link(&["docs", "models"], folder.path());
    let [toml] = blocks(&page, "toml")[..] else { panic!("one configuration") };
    std::fs::write(folder.path().join("story.toml"), toml).unwrap();
    let outputs: Vec<String> =
        blocks(&page, "sh").into_iter().map(|commands| shell(commands, folder.path())).collect();
    assert!(outputs[1].contains("step 20 of 20: loss "), "{}", outputs[1]);
    assert!(outputs[1].contains("\nstory/model.gguf\n"), "{}", outputs[1]);
    let svg = std::fs::read_to_string(folder.path().join("story/loss.svg")).unwrap();
    assert!(svg.starts_with("<svg "));
}

/// A process that is killed again and again, mostly while it writes a checkpoint, ends with the files of one that was not.
#[cfg(unix)]
#[test]
fn a_killed_training_resumes() {
    let folder = tempfile::tempdir().unwrap();
    let settings = "steps = 60\ncheckpoint_every = 1\nlog_every = 4";
    let whole = config(folder.path(), "whole", "", settings);
    let output = tallow(&args(&whole));
    assert!(output.status.success(), "{}", stderr(&output));
    let parts = config(folder.path(), "parts", "", settings);
    let written = folder.path().join("parts/checkpoint.safetensors");
    let mut killed = 0;
    for round in 0..6u64 {
        let before = std::fs::metadata(&written).and_then(|file| file.modified()).ok();
        let mut process =
            program(&args(&parts)).arg("--resume").stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let process = process.as_mut().unwrap();
        let start = Instant::now();
        let is_new = || std::fs::metadata(&written).and_then(|file| file.modified()).ok() != before;
        while !is_new() && start.elapsed() < Duration::from_secs(30) && process.try_wait().unwrap().is_none()
        {
            std::thread::sleep(Duration::from_millis(1));
        }
        // At another point of a step each time.
        std::thread::sleep(Duration::from_micros(700 * round));
        // SIGKILL.
        process.kill().unwrap();
        killed += usize::from(!process.wait().unwrap().success());
    }
    assert!(killed >= 3, "only {killed} processes were killed in time");
    // What one left that was killed between two bytes.
    std::fs::write(folder.path().join("parts/checkpoint.safetensors.part"), b"half a fi").unwrap();
    let output = tallow(&[&args(&parts)[..], &["--resume"]].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(checkpoint(folder.path(), "whole") == checkpoint(folder.path(), "parts"));
    let left: Vec<_> =
        std::fs::read_dir(folder.path().join("parts")).unwrap().map(|f| f.unwrap().file_name()).collect();
    assert_eq!(left.len(), 3, "{left:?}");
}

/// A full disk: the old checkpoint is as it was.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_leaves_the_last_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let path = config(folder.path(), "run", "", "steps = 2");
    assert!(tallow(&args(&path)).status.success());
    let before = checkpoint(folder.path(), "run");
    // Writes to this device fail as those to a full disk do.
    std::os::unix::fs::symlink("/dev/full", folder.path().join("run/checkpoint.safetensors.part")).unwrap();
    let path = config(folder.path(), "run", "", "steps = 4");
    let output = tallow(&[&args(&path)[..], &["--resume"]].concat());
    let error = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{error}");
    let last = error.lines().last().unwrap();
    assert!(last.starts_with("error: cannot write ") && last.contains("No space left"), "{error}");
    assert!(before == checkpoint(folder.path(), "run"));
    // With space again, it goes on.
    let output = tallow(&[&args(&path)[..], &["--resume"]].concat());
    assert!(output.status.success(), "{}", stderr(&output));
}

#[test]
fn what_is_wrong_is_said_in_a_line() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    fails(&args(&at("none.toml")), &["cannot read ", "none.toml", "No such file"]);
    let path = config(folder.path(), "run", "colour = 1", "steps = 2");
    fails(&args(&path), &["run.toml: line 5: unknown field `colour`"]);
    let path = config(folder.path(), "run", "", "steps = 2\nspeed = 1");
    fails(&args(&path), &["unknown field `speed`"]);
    let path = config(folder.path(), "run", "validation = \"none.txt\"", "");
    fails(&args(&path), &["cannot read ", "none.txt"]);
    let path = config(folder.path(), "run", "weights = \"tokenizer.json\"", "");
    fails(&args(&path), &["tokenizer.json: "]);
    let path = config(folder.path(), "run", "", "steps = 2");
    std::fs::write(folder.path().join("text.txt"), "once").unwrap();
    fails(&args(&path), &["the text has 6 tokens, at least 9 are needed"]);
    std::fs::write(folder.path().join("text.txt"), "").unwrap();
    fails(&args(&path), &["the text has 0 tokens"]);
    std::fs::write(folder.path().join("tokenizer.json"), "{}").unwrap();
    fails(&args(&path), &["tokenizer.json: only byte-level BPE"]);
    let path = config(folder.path(), "run", "", "steps = 2");
    std::fs::write(&path, std::fs::read_to_string(&path).unwrap().replace("= 31", "= 32")).unwrap();
    fails(&args(&path), &["the tokenizer has 31 tokens, the model's vocab_size is 32"]);
    let path = config(folder.path(), "run", "", "steps = 1");
    assert!(tallow(&args(&path)).status.success());
    fails(&args(&path), &["has a checkpoint already: resume it"]);
}

/// Ctrl-C ends the training after a step, with a checkpoint.
#[cfg(unix)]
#[test]
fn an_interrupt_leaves_a_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let settings = "steps = 1000000\ncheckpoint_every = 1000000\nvalidate_every = 5\nvalidation_windows = 1";
    let path = config(folder.path(), "run", "", settings);
    let mut process = program(&args(&path)).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(process.stderr.take().unwrap()).lines().map(Result::unwrap);
    let has_begun = lines.any(|line| line.starts_with("step 5: loss "));
    if !has_begun {
        process.kill().unwrap();
    }
    assert!(has_begun);
    let kill = Command::new("kill").args(["-INT", &process.id().to_string()]).status().unwrap();
    assert!(kill.success() && process.wait().unwrap().success());
    assert_eq!(lines.last().unwrap(), "[stopped; --resume goes on]");
    assert!(!checkpoint(folder.path(), "run").is_empty());
}
