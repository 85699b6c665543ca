//! Rules about the repository as a whole: its size, its words, its links, its manifests.

use crate::rust_text::has_word;
use crate::tree::Tree;

/// What a clone may weigh.
pub const MAX_TREE_BYTES: u64 = 40 << 20;
/// Notes to oneself, which want the number of an issue behind them. (Split, so as not to find themselves.)
pub const NOTES: [&str; 3] = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")];
/// Files with comments in which a note could hide.
const COMMENTED: [&str; 9] = [".rs", ".comp", ".glsl", ".py", ".sh", ".toml", ".yml", "Makefile", ".ci/run"];
/// Text that belongs to one machine: folders that only it has, and package hosts other than the official
/// name that Cargo itself writes into its lock file.
pub const MACHINE_TEXT: [&str; 7] = [
    concat!("/wo", "rk/"),
    concat!("/ro", "ot/"),
    concat!("/ho", "me/"),
    concat!("index.crates", ".io"),
    concat!("static.crates", ".io"),
    concat!("sparse", "+http"),
    concat!("replace", "-with"),
];
/// The folders whose content Markdown files name by path.
const ROOT_FOLDERS: [&str; 6] = ["benches/", "crates/", "docs/", "models/", "scripts/", "tests/"];
/// How Cargo names the official registry.
const OFFICIAL_REGISTRY: &str = "\"registry+https://github.com/rust-lang/crates.io-index\"";

/// A note of something left undone names its issue.
pub fn note_without_issue(tree: &Tree) -> Vec<String> {
    let mut findings = Vec::new();
    for file in &tree.files {
        let Some(text) = file.text_if(&COMMENTED) else { continue };
        for (number, line) in (1..).zip(text.lines()) {
            let note = NOTES.iter().find(|note| has_word(line, note));
            let numbered = |at: usize| line[at + 2..].starts_with(|c: char| c.is_ascii_digit());
            if let Some(note) = note.filter(|_| !line.find("(#").is_some_and(numbered)) {
                findings.push(format!(
                    "{}:{number}: {note} without an issue, as in \"{note} (#12): ...\"",
                    file.path
                ));
            }
        }
    }
    findings
}

/// A clone stays small.
pub fn tree_size(tree: &Tree) -> Vec<String> {
    let bytes: u64 = tree.files.iter().map(|file| file.bytes).sum();
    let over = bytes >= MAX_TREE_BYTES;
    over.then(|| format!("the tree has {bytes} bytes, and must stay below {MAX_TREE_BYTES}"))
        .into_iter()
        .collect()
}

/// Nothing of one machine gets into the repository.
pub fn machine_text(tree: &Tree) -> Vec<String> {
    let mut findings = Vec::new();
    for file in &tree.files {
        for (number, line) in (1..).zip(file.text.as_deref().unwrap_or_default().lines()) {
            if let Some(found) = MACHINE_TEXT.iter().find(|text| stands_alone(line, text)) {
                findings.push(format!("{}:{number}: \"{found}\" belongs to one machine", file.path));
            }
            if line.contains("\"registry+") && file.path == "Cargo.lock" && !line.contains(OFFICIAL_REGISTRY)
            {
                findings.push(format!("{}:{number}: a package from elsewhere than crates.io", file.path));
            }
        }
    }
    findings
}

/// True if `line` holds `text` other than as the middle of a longer path or name.
fn stands_alone(line: &str, text: &str) -> bool {
    let continues = |c: char| c.is_alphanumeric() || "_-.~}/".contains(c);
    line.match_indices(text).any(|(at, _)| !line[..at].chars().next_back().is_some_and(continues))
}

/// `make test` names the test targets of some folders, as Cargo finds them.
pub fn test_out_of_place(tree: &Tree) -> Vec<String> {
    let mut findings = Vec::new();
    for file in &tree.files {
        let Some(text) = file.text_if(&["Cargo.toml"]) else { continue };
        let mut tests = text.split("[[test]]").skip(1).map(|rest| rest.split("\n[").next().unwrap_or(rest));
        if tests.any(|test| test.lines().any(|line| line.starts_with("path"))) {
            findings.push(format!("{}: a [[test]] with a path, which `make test` does not run", file.path));
        }
        let folder = file.path.trim_end_matches("Cargo.toml").trim_end_matches('/');
        let is_known = match folder.split('/').collect::<Vec<_>>()[..] {
            ["tests"] | ["crates" | "tests", _] => true,
            [..] => false,
        };
        let tests = format!("{folder}/tests/");
        let has_tests = tree.files.iter().any(|file| file.path.starts_with(&tests));
        if !folder.is_empty() && has_tests && !is_known {
            findings.push(format!("{tests}: tests that `make test` does not run"));
        }
    }
    findings
}

/// Each pass, a file or folder in `passes/`, has a folder of filetests with its name.
pub fn pass_without_filetests(tree: &Tree) -> Vec<String> {
    const PASSES: &str = "crates/ir/src/passes/";
    const TESTS: &str = "tests/filetests/passes";
    if !tree.has(TESTS) {
        return Vec::new();
    }
    let names = tree.files.iter().filter_map(|file| file.path.strip_prefix(PASSES)?.split(['/', '.']).next());
    let mut untested: Vec<&str> =
        names.filter(|name| *name != "mod" && !tree.has(&format!("{TESTS}/{name}"))).collect();
    untested.dedup();
    untested.iter().map(|name| format!("{PASSES}{name} has no {TESTS}/{name}/")).collect()
}

/// Each relative link of each Markdown file leads somewhere.
pub fn dead_link(tree: &Tree) -> Vec<String> {
    let mut findings = Vec::new();
    for (file, number, line) in prose_lines(tree) {
        // Odd pieces between backquotes are code.
        for target in line.split('`').step_by(2).flat_map(link_targets) {
            if !resolve(file, target).is_some_and(|path| tree.has(&path)) {
                findings.push(format!("{file}:{number}: no file at {target}"));
            }
        }
    }
    findings
}

/// Each path that a Markdown file sets in backquotes, written from the root, leads somewhere.
/// (The history of changes may name what is gone.)
pub fn missing_path(tree: &Tree) -> Vec<String> {
    let mut findings = Vec::new();
    for (file, number, line) in prose_lines(tree).filter(|(file, _, _)| *file != "CHANGELOG.md") {
        for code in line.split('`').skip(1).step_by(2) {
            let is_path = ROOT_FOLDERS.iter().any(|folder| code.starts_with(folder));
            let is_exact = !code.contains(['<', '*', '{', ' ', ':', '…']);
            if is_path && is_exact && !tree.has(code) {
                findings.push(format!("{file}:{number}: no file at {code}"));
            }
        }
    }
    findings
}

/// Path, line number and line of all Markdown files, without fenced code.
pub fn prose_lines(tree: &Tree) -> impl Iterator<Item = (&str, usize, &str)> {
    let files = tree.files.iter().filter_map(|file| Some((file.path.as_str(), file.text_if(&[".md"])?)));
    files.flat_map(|(path, text)| {
        let mut in_code = false;
        (1..).zip(text.lines()).filter_map(move |(number, line)| {
            let fence = line.trim_start().starts_with("```");
            in_code ^= fence;
            (!in_code && !fence).then_some((path, number, line))
        })
    })
}

/// The targets of `[text](target)` that mean files, without their fragments.
pub fn link_targets(line: &str) -> impl Iterator<Item = &str> {
    let targets = line.split("](").skip(1).filter_map(|rest| rest.split([')', ' ', '#']).next());
    targets.filter(|target| !target.is_empty() && !target.contains("://") && !target.starts_with("mailto:"))
}

/// `target` as seen from the file at `from`; `None` if it leaves the repository.
fn resolve(from: &str, target: &str) -> Option<String> {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in target.trim_end_matches('/').split('/') {
        match part {
            "" => return None,
            "." => {}
            ".." => drop(parts.pop()?),
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

/// Each member takes the workspace's lints.
pub fn lints_inherited(tree: &Tree) -> Vec<String> {
    let members = tree.files.iter().filter(|file| file.path.ends_with("/Cargo.toml"));
    // A package that is a workspace of its own, as the fuzz targets are, has none to inherit from.
    let inherits =
        |text: &str| text.contains("[lints]\nworkspace = true\n") || text.contains("\n[workspace]\n");
    let alone = members.filter(|file| !inherits(file.text.as_deref().unwrap_or_default()));
    alone.map(|file| format!("{} lacks \"[lints] workspace = true\"", file.path)).collect()
}

/// Dependencies that no source of the package names: sources that a build script takes from elsewhere use them.
const USED_ELSEWHERE: [(&str, &str); 1] = [("tests/candle-core/", "anyhow")];

/// The names in the `[dependencies]` and `[dev-dependencies]` of a manifest.
fn dependencies(manifest: &str) -> Vec<&str> {
    let (mut names, mut inside) = (Vec::new(), false);
    for line in manifest.lines() {
        if line.starts_with('[') {
            inside = line == "[dependencies]" || line == "[dev-dependencies]";
        } else if inside && let Some(end) = line.find(['.', ' ', '=']) {
            names.push(&line[..end]);
        }
    }
    names
}

/// Every dependency is named in a source of its package.
pub fn unused_dependency(tree: &Tree) -> Vec<String> {
    let folder = |path: &str| path.strip_suffix("Cargo.toml").map(str::to_owned);
    let packages: Vec<String> = tree.files.iter().filter_map(|file| folder(&file.path)).collect();
    // The package of a source is the innermost that holds it.
    let owner = |path: &str| {
        let around = packages.iter().filter(|folder| path.starts_with(folder.as_str()));
        around.max_by_key(|folder| folder.len()).cloned().unwrap_or_default()
    };
    let mut findings = Vec::new();
    for package in packages.iter().filter(|folder| !folder.is_empty()) {
        let Some(manifest) = tree.get(&format!("{package}Cargo.toml")) else { continue };
        let sources: Vec<&str> = tree
            .files
            .iter()
            .filter(|file| file.path.starts_with(package.as_str()) && owner(&file.path) == *package)
            .filter_map(|file| file.text_if(&[".rs"]))
            .collect();
        for name in dependencies(manifest.text.as_deref().unwrap_or_default()) {
            let word = name.replace('-', "_");
            let used = sources.iter().any(|text| text.lines().any(|line| has_word(line, &word)));
            if !used && !USED_ELSEWHERE.contains(&(package.as_str(), name)) {
                findings.push(format!("{package}Cargo.toml: no source uses {name}"));
            }
        }
    }
    findings
}

/// The set-up script asks for the Rust that the workspace needs.
pub fn rust_version(tree: &Tree) -> Vec<String> {
    let value = |path: &str, key: &str| -> Option<String> {
        let line = tree.get(path)?.text.as_deref()?.lines().find_map(|line| line.strip_prefix(key))?;
        Some(line.trim_matches(['=', ' ', '"']).to_owned())
    };
    let (cargo, setup) = (value("Cargo.toml", "rust-version"), value("scripts/setup.sh", "min_rust"));
    if cargo.is_some() && cargo != setup {
        return vec![format!("Cargo.toml needs Rust {cargo:?}, scripts/setup.sh asks for {setup:?}")];
    }
    // Without a root manifest this is another check's example.
    Vec::new()
}

/// What `make` tells Mesa's software device for tests is told to no other target: a demo would run at a tenth of its speed.
pub fn test_settings(tree: &Tree) -> Vec<String> {
    let Some(makefile) = tree.get("Makefile").and_then(|file| file.text.as_deref()) else {
        return Vec::new();
    };
    let everywhere = |line: &&str| line.starts_with("export LP_") || line.starts_with("export GALLIVM_");
    makefile.lines().filter(everywhere).map(|line| format!("Makefile: for all targets: {line}")).collect()
}
