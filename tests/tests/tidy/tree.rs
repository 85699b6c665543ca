//! The files of the repository, read once.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Files above this size are data; nobody reads them as text.
const MAX_TEXT_BYTES: u64 = 1 << 20;

/// One file.
#[derive(Debug)]
pub struct File {
    /// Path from the repository's root, with `/` between the parts.
    pub path: String,
    /// Size in bytes.
    pub bytes: u64,
    /// The content, if it is UTF-8 without NUL and not large.
    pub text: Option<String>,
}

impl File {
    /// A file of an example tree.
    pub fn new(path: &str, text: impl Into<String>) -> File {
        let text = text.into();
        File { path: path.to_owned(), bytes: text.len() as u64, text: Some(text) }
    }

    /// The content of a text file whose name ends in one of `endings`.
    pub fn text_if(&self, endings: &[&str]) -> Option<&str> {
        if endings.iter().any(|ending| self.path.ends_with(ending)) { self.text.as_deref() } else { None }
    }
}

/// A set of files, sorted by path.
#[derive(Debug)]
pub struct Tree {
    /// The files.
    pub files: Vec<File>,
}

impl Tree {
    /// An example tree of (path, content).
    pub fn example(files: &[(&str, &str)]) -> Tree {
        Tree { files: files.iter().map(|(path, text)| File::new(path, *text)).collect() }
    }

    /// The repository that holds this test: what git tracks or would track; without git, what is on disk.
    pub fn of_repository() -> Tree {
        let root = root();
        let mut paths = git_files(&root).unwrap_or_else(|| walk(&root));
        paths.sort();
        // A path that cannot be read was deleted but not yet committed so.
        let files = paths.into_iter().filter_map(|path| read(&root, path)).collect();
        Tree { files }
    }

    /// The file at `path`.
    pub fn get(&self, path: &str) -> Option<&File> {
        self.files.iter().find(|file| file.path == path)
    }

    /// True if `path` is a file, or a folder that holds one.
    pub fn has(&self, path: &str) -> bool {
        let folder = format!("{}/", path.trim_end_matches('/'));
        self.files.iter().any(|file| file.path == path || file.path.starts_with(&folder))
    }
}

/// The package of this test lies one level below the root.
fn root() -> PathBuf {
    match option_env!("CARGO_MANIFEST_DIR") {
        Some(package) => Path::new(package).parent().expect("the package lies in the repository").to_owned(),
        None => std::env::current_dir().expect("there is a current directory"),
    }
}

fn read(root: &Path, path: String) -> Option<File> {
    let full = root.join(&path);
    let bytes = fs::symlink_metadata(&full).ok().filter(|m| m.is_file())?.len();
    let text = if bytes > MAX_TEXT_BYTES {
        None
    } else {
        String::from_utf8(fs::read(&full).ok()?).ok().filter(|text| !text.contains('\0'))
    };
    Some(File { path, bytes, text })
}

/// Tracked files, and new ones that no ignore rule covers.
fn git_files(root: &Path) -> Option<Vec<String>> {
    let output = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()
        .ok()
        .filter(|output| output.status.success())?;
    let list = String::from_utf8(output.stdout).ok()?;
    let paths: Vec<String> = list.split_terminator('\0').map(str::to_owned).collect();
    // An unpacked archive inside someone else's repository has a git, but not ours.
    paths.iter().any(|path| path == "Cargo.toml").then_some(paths)
}

/// Every file but git's own and those below the top-level folders that `.gitignore` names.
fn walk(root: &Path) -> Vec<String> {
    let ignore = fs::read_to_string(root.join(".gitignore")).unwrap_or_default();
    let mut skip: Vec<&str> = ignore.lines().filter_map(|line| line.strip_prefix('/')).collect();
    skip.push(".git");
    let (mut found, mut folders) = (Vec::new(), vec![String::new()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(root.join(&folder)).into_iter().flatten().flatten() {
            let Ok(name) = entry.file_name().into_string() else { continue };
            let path = if folder.is_empty() { name } else { format!("{folder}/{name}") };
            match entry.file_type() {
                Ok(kind) if kind.is_dir() && !skip.contains(&path.as_str()) => folders.push(path),
                Ok(kind) if kind.is_file() => found.push(path),
                _ => {}
            }
        }
    }
    found
}

#[test]
fn walking_finds_what_git_finds() {
    let root = root();
    let walked = walk(&root);
    assert!(walked.iter().any(|path| path == "crates/ir/src/lib.rs"), "{walked:?}");
    assert!(!walked.iter().any(|path| path.starts_with("target/") || path.starts_with(".git/")));
    for path in git_files(&root).into_iter().flatten() {
        assert!(walked.contains(&path) || !root.join(&path).exists(), "{path} is not found without git");
    }
}
