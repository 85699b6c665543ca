//! Running the built `tallow` program.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The file of a model of the repository.
pub fn model(name: &str) -> String {
    tallow_testmodels::model(&format!("storyteller-{name}")).to_str().unwrap().into()
}

/// The program, with no environment variable of its own set.
pub fn program(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tallow"));
    for (name, _) in std::env::vars_os().filter(|(n, _)| n.to_string_lossy().starts_with("TALLOW_")) {
        command.env_remove(name);
    }
    command.args(args);
    command
}

/// Runs it on the CPU and gives what came out.
pub fn tallow(args: &[&str]) -> Output {
    program(args).output().unwrap()
}

/// Standard output of a run that must succeed.
pub fn success(args: &[&str]) -> String {
    let output = tallow(args);
    assert!(output.status.success(), "{args:?}: {}", stderr(&output));
    String::from_utf8(output.stdout).unwrap()
}

/// What a run wrote to standard error.
pub fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// The folder of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// The blocks of a language in a page.
pub fn blocks<'a>(page: &'a str, language: &str) -> Vec<&'a str> {
    let fence = format!("```{language}\n");
    page.split(fence.as_str()).skip(1).filter_map(|rest| Some(rest.split_once("```")?.0)).collect()
}

/// Runs commands of the guide in a folder, as a shell does, on the CPU, and gives their standard output.
#[cfg(unix)]
pub fn shell(commands: &str, folder: &Path) -> String {
    let tallow = Path::new(env!("CARGO_BIN_EXE_tallow")).parent().unwrap().to_owned();
    let others = std::env::var_os("PATH").unwrap();
    let path = std::env::join_paths(std::iter::once(tallow).chain(std::env::split_paths(&others))).unwrap();
    let run = Command::new("sh")
        .args(["-ec", commands])
        .env("PATH", &path)
        .env("TALLOW_DEVICE", "cpu")
        .current_dir(folder)
        .output()
        .unwrap();
    assert!(run.status.success(), "{commands}: {}", stderr(&run));
    String::from_utf8(run.stdout).unwrap()
}

/// Gives a folder what the repository has by these names.
#[cfg(unix)]
pub fn link(names: &[&str], folder: &Path) {
    for name in names {
        std::os::unix::fs::symlink(root().join(name), folder.join(name)).unwrap();
    }
}
