//! `tallow chat`, `tallow generate --chat` and `tallow tokenize`.

use std::io::Write;
use std::process::{Output, Stdio};

use crate::support::{model, program, stderr, success, tallow};

/// Ends turns as the models' own texts end.
const TEMPLATE: &str =
    "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}{{ eos_token }}{% endfor %}";

/// Runs `tallow chat` with lines on standard input.
fn chat(lines: &str, more: &[&str]) -> Output {
    let model = model("nano-Q4_0");
    let args = [&["chat", "--device", "cpu", "--temperature", "0", "--model", &model], more].concat();
    let mut child =
        program(&args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

/// A template in a folder of its own.
fn template(text: &str) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("chat.jinja");
    std::fs::write(&path, text).unwrap();
    (folder, path.to_str().unwrap().to_owned())
}

#[test]
fn a_conversation_with_commands() {
    let (folder, path) = template(TEMPLATE);
    let saved = folder.path().join("saved.json");
    let lines = format!(
        "Tell me of the king.\nAnd \\\nthen?\n/stats\n/save {0}\n/reset\n/stats\n/system Be kind.\n/system\n\
         /load {0}\n/nothing\n/help\n/quit\nnever said\n",
        saved.display()
    );
    let output = chat(&lines, &["--chat-template", &path, "--max-tokens", "6"]);
    let notes = stderr(&output);
    assert!(output.status.success(), "{notes}");
    let answers = String::from_utf8(output.stdout).unwrap();
    assert_eq!(answers.lines().filter(|line| !line.is_empty()).count(), 2, "{answers}");
    for note in [
        "[stopped after 6 tokens]",
        " positions of the context cached, 2 turns]",
        " positions of the context cached, 0 turns]",
        "[Be kind.]",
        "[2 turns]",
        "[there is no command /nothing; /help lists them]",
        "/save FILE",
    ] {
        assert!(notes.contains(note), "{note:?} is not in\n{notes}");
    }
    let saved: serde_json::Value = serde_json::from_slice(&std::fs::read(saved).unwrap()).unwrap();
    let roles: Vec<&str> =
        saved.as_array().unwrap().iter().map(|message| message["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["user", "assistant", "user", "assistant"]);
    assert_eq!(saved[2]["content"], "And \nthen?");
}

#[test]
fn one_question_is_answered_alike_by_both_commands() {
    let (_folder, path) = template(TEMPLATE);
    let model = model("nano-Q4_0");
    let more =
        ["--chat-template", &path, "--system", "Be kind.", "--prompt", "Who is it?", "--max-tokens", "8"];
    let by_chat = chat("", &more);
    let args =
        [&["generate", "--chat", "--device", "cpu", "--temperature", "0", "--model", &model], &more[..]]
            .concat();
    let by_generate = success(&args);
    assert_eq!(String::from_utf8(by_chat.stdout).unwrap().trim(), by_generate.trim());
    assert!(!by_generate.contains("Who is it?"), "{by_generate}");
}

#[test]
fn templates_that_are_no_good_are_errors_with_a_line_and_a_way_out() {
    let error = |text: &str| {
        let (_folder, path) = template(text);
        let output = chat("hello\n", &["--chat-template", &path, "--max-tokens", "2"]);
        stderr(&output)
    };
    let parse = error("{{ bos_token }}\n{% if %}\n");
    for part in ["chat.jinja", "line 2", "cannot parse", "--chat-template FILE"] {
        assert!(parse.contains(part), "{part:?} is not in {parse}");
    }
    let raised = error("\n\n{{ raise_exception('only tools speak here') }}");
    for part in ["line 3", "only tools speak here", "--chat-template FILE"] {
        assert!(raised.contains(part), "{part:?} is not in {raised}");
    }
    let endless = error(
        "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}x{% endfor %}{% endfor %}{% endfor %}",
    );
    for part in ["stopped", "line 1", "--chat-template FILE"] {
        assert!(endless.contains(part), "{part:?} is not in {endless}");
    }
    // Each error once.
    assert_eq!(parse.matches("cannot parse").count(), 1, "{parse}");
    assert_eq!(endless.matches("stopped").count(), 1, "{endless}");
    let missing = stderr(&chat("", &["--chat-template", "no-such-template"]));
    assert!(missing.contains("chatml, gemma, llama2"), "{missing}");
}

#[test]
fn what_comes_through_a_pipe_may_be_cut_or_broken() {
    let (_folder, path) = template(TEMPLATE);
    let model = model("nano-Q4_0");
    let args = ["chat", "--device", "cpu", "--chat-template", &path, "--max-tokens", "4", "--model", &model];
    let mut child =
        program(&args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"The \xff king\r\n\nThe queen\\").unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    // Two questions, two answers of four tokens each.
    assert_eq!(stderr(&output).matches("[stopped after 4 tokens]").count(), 2, "{}", stderr(&output));
}

#[test]
fn the_model_is_not_overwritten_and_options_of_chats_belong_to_chats() {
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("model.gguf");
    std::fs::copy(model("nano-Q4_0"), &copy).unwrap();
    let path = copy.to_str().unwrap();
    let bytes = std::fs::read(&copy).unwrap();
    let mut child = program(&["chat", "--device", "cpu", "--model", path])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(format!("/save {path}\n").as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(stderr(&output).contains("is the model"), "{}", stderr(&output));
    assert_eq!(std::fs::read(&copy).unwrap(), bytes);

    let output = tallow(&["generate", "--model", path, "--prompt", "a", "--system", "b"]);
    assert!(!output.status.success() && stderr(&output).contains("add --chat"), "{}", stderr(&output));
}

#[test]
fn a_file_without_a_template_takes_chatml_and_says_so() {
    let output = chat("", &["--prompt", "Who is it?", "--max-tokens", "2"]);
    assert!(output.status.success());
    assert!(stderr(&output).contains("no chat template: taking chatml"), "{}", stderr(&output));
}

#[test]
fn tokens_are_printed_as_ids_and_pieces() {
    let model = model("nano-Q4_0");
    let tokenize = |more: &[&str]| success(&[&["tokenize", "--model", &model], more].concat());
    let text = tokenize(&["--text", "Once<|end_of_text|> é"]);
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    assert_eq!(lines[0], "0  <|begin_of_text|>");
    assert!(lines.contains(&"1  <|end_of_text|>") && lines.iter().any(|l| l.ends_with("\"Once\"")), "{text}");
    let ids = tokenize(&["--ids", "--bare", "--text", "Once upon a time there was a"]);
    assert_eq!(ids, "3262,627,261,551,453,309,261\n");
    let ordinary = tokenize(&["--ordinary", "--text", "<|end_of_text|>"]);
    assert!(ordinary.lines().count() > 2 && !ordinary.contains("  <|end_of_text|>"), "{ordinary}");
    // The model's own rule keeps digits together, another one takes each by itself; and one that there is not.
    let pieces = |pre: &str| tokenize(&["--bare", "--pre", pre, "--text", "in 1984"]).lines().count();
    assert!(pieces("smollm") > pieces("gpt-2"));
    let output = tallow(&["tokenize", "--model", &model, "--text", "a", "--pre", "smolm"]);
    let error = stderr(&output);
    assert!(!output.status.success() && error.contains("smollm"), "{error}");
}
