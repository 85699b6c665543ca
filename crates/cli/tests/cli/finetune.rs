//! `tallow finetune`, `generate --lora` and `merge-lora`: one text from adapter and merged model, and faults in one line.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::bad_inputs::fails;
use crate::support::{model, program, stderr, success, tallow};

/// Examples of a way to end stories.
const EXAMPLES: &str = r#"{"prompt": "Once upon a time there was a", "completion": " toad. The end."}
{"messages": [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "A toad."}]}
"#;

fn path_in(folder: &Path, name: &str) -> String {
    folder.join(name).to_str().unwrap().into()
}

/// The arguments of a short fine-tuning of `model` into `adapter.gguf`.
fn args<'a>(model: &'a str, data: &'a str, out: &'a str) -> Vec<&'a str> {
    let fixed =
        ["finetune", "--device", "cpu", "--lora-rank", "4", "--batch", "2", "--learning-rate", "0.02"];
    [&fixed[..], &["--chat-template", "chatml", "--model", model, "--data", data, "--out", out]].concat()
}

fn generate(model: &str, more: &[&str]) -> String {
    let fixed =
        ["generate", "--device", "cpu", "--prompt", "Once upon a time there was a", "--max-tokens", "24"];
    success(&[&fixed[..], &["--model", model], more].concat())
}

/// The adapter beside the weights gives the greedy text of the model with the adapter merged.
#[test]
fn an_adapter_generates_what_the_merged_model_does() {
    let folder = tempfile::tempdir().unwrap();
    let (base, data) = (model("nano-f16"), path_in(folder.path(), "data.jsonl"));
    std::fs::write(&data, EXAMPLES).unwrap();
    let (adapter, merged) = (path_in(folder.path(), "adapter.gguf"), path_in(folder.path(), "merged.gguf"));
    let output = tallow(&[&args(&base, &data, &adapter)[..], &["--steps", "12"]].concat());
    let error = stderr(&output);
    assert!(output.status.success(), "{error}");
    assert!(error.contains("77824 parameters in 28 adapters, 2 examples of "), "{error}");
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(printed.starts_with("step 12 of 12: loss ") && printed.ends_with("adapter.gguf\n"), "{printed}");
    assert!(error.contains(" tokens a step, 12 steps]") && !error.contains("[stopped"), "{error}");

    let plain = generate(&base, &[]);
    let adapted = generate(&base, &["--lora", &adapter]);
    assert!(adapted.starts_with("Once upon a time there was a toad. The") && adapted != plain, "{adapted}");
    assert_eq!(generate(&base, &["--lora", &format!("{adapter}:0")]), plain);
    let halves = format!("{adapter}:0.5");
    assert_eq!(generate(&base, &["--lora", &halves, "--lora", &halves]), adapted);
    let report = success(&["merge-lora", "--model", &base, "--lora", &adapter, "--out", &merged]);
    assert!(report.ends_with("adapters merged into 28 tensors\n"), "{report}");
    assert_eq!(generate(&merged, &[]), adapted);
    // Formats stay, or are those of a mix.
    let formats = |path: &str| {
        let file = tallow_gguf::GgufFile::open(path).unwrap();
        let format = |tensor: &tallow_gguf::TensorInfo| (tensor.name.clone(), tensor.format().unwrap());
        file.tensors().map(format).collect::<std::collections::BTreeMap<_, _>>()
    };
    assert_eq!(formats(&merged), formats(&base));
    let (quantized, mixed) = (model("nano-Q4_K_M"), path_in(folder.path(), "mixed.gguf"));
    success(&["merge-lora", "--model", &quantized, "--lora", &adapter, "--out", &merged]);
    assert_eq!(formats(&merged), formats(&quantized));
    success(&["merge-lora", "--model", &base, "--lora", &adapter, "--out", &mixed, "--type", "Q4_K_M"]);
    assert_eq!(formats(&mixed), formats(&quantized));
    assert!(generate(&mixed, &[]).contains("toad"));
}

#[test]
fn what_is_wrong_is_said_in_a_line() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| path_in(folder.path(), name);
    let (base, data, out) = (model("nano-Q4_K_M"), at("data.jsonl"), at("adapter.gguf"));
    std::fs::write(&data, EXAMPLES).unwrap();
    let wrong = |more: &[&str], says: &[&str]| fails(&[&args(&base, &data, &out)[..], more].concat(), says);
    wrong(&["--lora-alpha", "-1"], &["alpha: -1 is not a positive number"]);
    wrong(&["--epochs", "0"], &["epochs: 0 is not a positive number"]);
    wrong(&["--context", "5000"], &["a context of 5000 tokens was asked for; this model has 1 to 1024"]);
    let other: Vec<&str> =
        args(&base, &data, &out).iter().map(|arg| if *arg == "chatml" { "none" } else { arg }).collect();
    fails(&other, &["--chat-template none is neither a file nor"]);
    fails(&args(&base, &at("none.txt"), &out), &["cannot read ", "none.txt"]);
    fails(&args("none.gguf", &data, &out), &["none.gguf"]);
    std::fs::write(&data, "").unwrap();
    fails(&args(&base, &data, &out), &["data.jsonl: it has no examples"]);
    std::fs::write(&data, b"\xff\xfe").unwrap();
    fails(&args(&base, &data, &out), &["cannot read ", "data.jsonl"]);
    std::fs::write(&data, EXAMPLES).unwrap();
    assert!(!Path::new(&out).exists());

    // A damaged adapter, and one of another model.
    assert!(tallow(&[&args(&base, &data, &out)[..], &["--steps", "1"]].concat()).status.success());
    let whole = std::fs::read(&out).unwrap();
    let generates = |model: &str, lora: &str, says: &[&str]| {
        fails(&["generate", "--device", "cpu", "--prompt", "a", "--model", model, "--lora", lora], says);
        let merged = at("merged.gguf");
        fails(&["merge-lora", "--model", model, "--lora", lora, "--out", &merged], says);
        assert!(!Path::new(&merged).exists());
    };
    generates(
        &model("main-Q4_K_M"),
        &out,
        &["adapter.gguf: tensor blk.0.attn_q.weight.lora_a", "do not fit"],
    );
    generates(&base, &format!("{out}:inf"), &["adapter.gguf: the adapter's scale is inf"]);
    generates(&base, &base, &[".gguf: it is no LoRA adapter: general.type is model, not adapter"]);
    generates(&base, &at("none.gguf"), &["none.gguf", "No such file"]);
    std::fs::write(&out, &whole[..whole.len() / 2]).unwrap();
    generates(&base, &out, &["adapter.gguf: "]);
    let merge = ["merge-lora", "--model", &base, "--lora", &out, "--out"];
    fails(&[&merge[..], &[&base]].concat(), &["nano-Q4_K_M.gguf is the model itself"]);
    fails(&[&merge[..], &[&at("m.gguf"), "--type", "Q9"]].concat(), &["--type \"Q9\" is none of"]);
}

/// Whenever the process is killed, the adapter is there as a whole, and the same command goes on: in the end the files are
/// those of a process that was not killed.
#[cfg(unix)]
#[test]
fn a_killed_training_resumes() {
    let folder = tempfile::tempdir().unwrap();
    let (base, data) = (model("nano-Q4_0"), path_in(folder.path(), "data.jsonl"));
    std::fs::write(&data, EXAMPLES).unwrap();
    // An adapter's file names itself.
    for name in ["whole", "parts"] {
        std::fs::create_dir(folder.path().join(name)).unwrap();
    }
    let at = |name: &str| path_in(folder.path(), &format!("{name}/adapter.gguf"));
    let (whole, out) = (at("whole"), at("parts"));
    let steps = |every: &'static str| ["--steps", "30", "--save-every", every];
    success(&[&args(&base, &data, &whole)[..], &steps("30")].concat());
    let command = [&args(&base, &data, &out)[..], &steps("1")].concat();
    let mut killed = 0;
    for round in 0..4u64 {
        let before = std::fs::metadata(&out).and_then(|file| file.modified()).ok();
        let mut process = program(&command).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let start = Instant::now();
        let is_new = || std::fs::metadata(&out).and_then(|file| file.modified()).ok() != before;
        while !is_new() && start.elapsed() < Duration::from_secs(60) && process.try_wait().unwrap().is_none()
        {
            std::thread::sleep(Duration::from_millis(1));
        }
        // At another point of a step each time.
        std::thread::sleep(Duration::from_millis(7 * round));
        // SIGKILL.
        process.kill().unwrap();
        killed += usize::from(!process.wait().unwrap().success());
        assert!(is_new());
        let file = tallow_gguf::GgufFile::open(&out).unwrap();
        assert_eq!(file.tensors().filter(|tensor| file.tensor_data(tensor).is_ok()).count(), 56);
    }
    assert!(killed >= 2, "only {killed} processes were killed in time");
    assert!(generate(&base, &["--lora", &out]).starts_with("Once upon a time"));
    // What one left that was killed between two bytes.
    let checkpoint = |out: &str| format!("{out}.checkpoint.safetensors");
    std::fs::write(checkpoint(&out) + ".part", b"half a fi").unwrap();
    let output = tallow(&command);
    let error = stderr(&output);
    assert!(output.status.success() && error.contains(" tokens a step, from step "), "{error}");
    assert!(String::from_utf8(output.stdout).unwrap().starts_with("step 30 of 30: loss "));
    for (whole, parts) in [(whole.clone(), out.clone()), (checkpoint(&whole), checkpoint(&out))] {
        assert!(std::fs::read(whole).unwrap() == std::fs::read(parts).unwrap());
    }
    assert_eq!(std::fs::read_dir(folder.path().join("parts")).unwrap().count(), 2);

    // Once more, without a step to take: what was lost is written again.
    std::fs::remove_file(&out).unwrap();
    success(&command);
    assert!(std::fs::read(&whole).unwrap() == std::fs::read(&out).unwrap());
    // Another command, and a damaged checkpoint.
    let other = [&args(&base, &data, &out)[..], &["--steps", "31"]].concat();
    fails(
        &other,
        &["adapter.gguf.checkpoint.safetensors: it was written with steps 30, this run has 31; remove it"],
    );
    let bytes = std::fs::read(checkpoint(&out)).unwrap();
    std::fs::write(checkpoint(&out), &bytes[..bytes.len() / 2]).unwrap();
    fails(&command, &["adapter.gguf.checkpoint.safetensors: ", "; remove it to start over"]);
}

/// Ctrl-C ends the training after a step, with a checkpoint and an adapter.
#[cfg(unix)]
#[test]
fn an_interrupt_leaves_a_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| path_in(folder.path(), name);
    let (base, data, out) = (model("nano-Q4_0"), at("data.jsonl"), at("adapter.gguf"));
    std::fs::write(&data, EXAMPLES).unwrap();
    let command = [&args(&base, &data, &out)[..], &["--steps", "1000000", "--save-every", "3"]].concat();
    let mut process = program(&command).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(process.stderr.take().unwrap()).lines().map(Result::unwrap);
    let has_begun = lines.any(|line| line.ends_with("1000000 steps]"));
    let start = Instant::now();
    while !Path::new(&out).exists() && start.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(1));
    }
    let kill = Command::new("kill").args(["-INT", &process.id().to_string()]).status().unwrap();
    assert!(has_begun && kill.success() && process.wait().unwrap().success());
    assert_eq!(lines.last().unwrap(), "[stopped; the same command goes on]");
    let checkpoint = at("adapter.gguf.checkpoint.safetensors");
    assert!(Path::new(&checkpoint).exists());
}

/// A full disk: the old adapter is as it was.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_leaves_the_last_adapter() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| path_in(folder.path(), name);
    let (base, data, out) = (model("nano-Q4_0"), at("data.jsonl"), at("adapter.gguf"));
    std::fs::write(&data, EXAMPLES).unwrap();
    let run = || tallow(&[&args(&base, &data, &out)[..], &["--steps", "1"]].concat());
    assert!(run().status.success());
    let before = std::fs::read(&out).unwrap();
    // Writes to this device fail as those to a full disk do.
    std::os::unix::fs::symlink("/dev/full", folder.path().join("adapter.gguf.part")).unwrap();
    let output = run();
    let error = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{error}");
    let last = error.lines().last().unwrap();
    assert!(last.starts_with("error: cannot write ") && last.contains("No space left"), "{error}");
    assert!(before == std::fs::read(&out).unwrap());
}
