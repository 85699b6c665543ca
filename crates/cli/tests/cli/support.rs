//! Running the built `tallow` program.

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
