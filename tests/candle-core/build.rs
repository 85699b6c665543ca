//! Copies tests of `candle_core` from the published package, which cargo keeps among its sources, to `OUT_DIR`.

use std::path::{Path, PathBuf};
use std::{env, fs};

/// The test files, and the functions of theirs that are left out.
const TESTS: &[(&str, &[&str])] = &[
    ("matmul_tests", &[]),
    ("indexing_tests", &[]),
    ("conv_tests", &[]),
    ("grad_tests", &[]),
    ("pool_tests", &[]),
    ("bilinear_tests", &[]),
    ("display_tests", &[]),
];

fn main() {
    let lock = "../../Cargo.lock";
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={lock}");
    println!("cargo::rerun-if-env-changed=CARGO_HOME");
    let package = format!("candle-core-{}", locked_version(&read(Path::new(lock))));
    let (from, to) = (source(&package), PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it")));
    for (name, left_out) in TESTS {
        let mut text = read(&from.join(format!("tests/{name}.rs")));
        // An included text cannot have attributes of the file.
        text = text.lines().filter(|line| !line.starts_with("#![")).map(|line| format!("{line}\n")).collect();
        for function in *left_out {
            text = without(&text, &format!("fn {function}("), "}");
            text = without(&text, &format!("test_device!(\n    {function},"), ");");
        }
        write(&to.join(format!("{name}.rs")), &text);
    }
    // The crate has a `test_device!` of its own, for other devices.
    let utils =
        without(&read(&from.join("src/test_utils.rs")), "#[macro_export]\nmacro_rules! test_device", "}");
    write(&to.join("test_utils.rs"), &utils);
}

/// The version of `candle-core` that the other tests compare with.
fn locked_version(lock: &str) -> &str {
    let package = "name = \"candle-core\"\nversion = \"";
    let rest = lock.split_once(package).expect("Cargo.lock names candle-core").1;
    rest.split('"').next().expect("a version ends with a quote")
}

/// Where cargo keeps the sources of a package.
fn source(package: &str) -> PathBuf {
    let home = env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(env::home_dir()?.join(".cargo"))).expect("a home folder or CARGO_HOME");
    let registries = fs::read_dir(home.join("registry/src")).into_iter().flatten().flatten();
    let found = registries.map(|registry| registry.path().join(package)).find(|path| path.is_dir());
    found.unwrap_or_else(|| panic!("no sources of {package} in {}: run `cargo fetch`", home.display()))
}

/// A text without the item that starts at the line `start` and ends with the first line that is `end`.
fn without(text: &str, start: &str, end: &str) -> String {
    let found: Vec<_> = text.match_indices(start).collect();
    let [(at, _)] = found[..] else { panic!("{start:?} is {} times in a test file", found.len()) };
    let (before, item) = text.split_at(at);
    let end = format!("\n{end}\n");
    let after = item.split_once(&end).unwrap_or_else(|| panic!("{start:?} does not end with {end:?}")).1;
    format!("{before}{after}")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn write(path: &Path, text: &str) {
    fs::write(path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}
