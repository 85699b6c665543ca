//! The mutants of `scripts/mutants.sh` and the example diffs of CONTRIBUTING.md still fit the code that they change.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn patches() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("mutants");
    let mut found: Vec<PathBuf> = std::fs::read_dir(folder)
        .expect("the folder of mutants")
        .map(|e| e.expect("an entry").path())
        .collect();
    found.sort();
    found
}

/// `git` at the top of the checkout, since below it patches to anything outside are left out without a word.
fn git(arguments: &[&str]) -> Result<Output, std::io::Error> {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    Command::new("git").arg("-C").arg(top).args(arguments).output()
}

/// Whether patches can be tried: this is the top of a git checkout.
fn is_checkout() -> bool {
    // Empty at the top of a checkout, a path below it, an error outside.
    let prefix = git(&["rev-parse", "--show-prefix"]);
    let top = prefix.is_ok_and(|o| o.status.success() && o.stdout.trim_ascii().is_empty());
    if !top {
        eprintln!("skipped: not the top of a git checkout, so no patch can be tried");
    }
    top
}

/// Fails unless the patch at `path` applies.
fn assert_applies(path: &Path) {
    let path = path.display().to_string();
    let tried = git(&["apply", "--check", &path]).expect("git runs");
    let why = String::from_utf8_lossy(&tried.stderr);
    assert!(tried.status.success(), "{path} no longer applies; make it fit the code again:\n{why}");
}

#[test]
fn patches_apply() {
    if is_checkout() {
        patches().iter().for_each(|patch| assert_applies(patch));
    }
}

/// The changes of kernels that CONTRIBUTING.md shows each touch one source file.
#[test]
fn diffs_of_contributing_apply() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let text = std::fs::read_to_string(top.join("CONTRIBUTING.md")).expect("readable");
    let diffs: Vec<&str> = text
        .split("```diff\n")
        .skip(1)
        .map(|rest| rest.split("```").next().expect("split yields one part"))
        .collect();
    assert_eq!(diffs.len(), 4, "prefetch, epilogue form, instruction, vendor");
    for (i, diff) in diffs.into_iter().enumerate() {
        assert_eq!(diff.matches("diff --git a/crates/").count(), 1, "{diff}");
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("contributing-{i}.diff"));
        std::fs::write(&path, diff).expect("written");
        if is_checkout() {
            assert_applies(&path);
        }
    }
}

#[test]
fn each_patch_says_what_it_breaks() {
    let all = patches();
    assert!(all.len() >= 12, "only {} mutants", all.len());
    for patch in all {
        let text = std::fs::read_to_string(&patch).expect("readable");
        let (says, diff) = text.split_once("\n\n").unwrap_or_default();
        let lines = diff.lines().filter(|l| !l.starts_with("+++") && !l.starts_with("---"));
        let changes = |sign: char| lines.clone().filter(|l| l.starts_with(sign)).count();
        assert!(says.ends_with('.') && diff.starts_with("diff --git a/crates/"), "{}", patch.display());
        // The smallest mistake that makes the point, in one place.
        assert!((1..=4).contains(&changes('+')) && changes('-') <= 4, "{}", patch.display());
    }
}
