//! The rule against import circles.

use std::collections::{BTreeMap, BTreeSet};

use crate::source_rules::untested_code;
use crate::tree::Tree;

/// Modules that need each other. An op may contain a graph of ops, whose types are inferred from its ops. A tensor may be
/// what a state holds, and a state is a tensor; the origin of a tensor are other tensors.
const RECURSIVE: [(&str, &[&str]); 2] = [
    ("crates/ir", &["fusion", "graph", "infer", "op"]),
    ("crates/frontend", &["extents", "origin", "state", "tensor", "trace"]),
];

/// Names of a module from the root of its crate.
type Path<'a> = Vec<&'a str>;

/// The modules of a crate, each with what it names and what it publishes under another path.
struct Modules<'a>(BTreeMap<Path<'a>, Names<'a>>);

#[derive(Default)]
struct Names<'a> {
    /// Paths that begin with `crate`, `super`, `self` or a submodule.
    paths: Vec<Path<'a>>,
    /// Name and path of each `pub use`.
    published: Vec<(&'a str, Path<'a>)>,
}

/// No modules of a crate import each other, directly or through others. A module and its own submodules may.
pub fn import_circle(tree: &Tree) -> Vec<String> {
    let code = untested_code(tree, |path| path.contains("/src/") && !path.contains("/src/bin/"));
    let mut crates: BTreeMap<&str, Modules<'_>> = BTreeMap::new();
    for (path, _, code) in &code {
        let Some((home, file)) = path.split_once("/src/") else { continue };
        let mut module: Path<'_> = file.trim_end_matches(".rs").split('/').collect();
        module.pop_if(|last| ["lib", "main", "mod"].contains(last));
        crates.entry(home).or_insert_with(|| Modules(BTreeMap::new())).0.insert(module, names(code));
    }
    let mut findings = Vec::new();
    for (home, modules) in &crates {
        for circle in modules.circles() {
            let circle: Vec<String> = circle.iter().map(|module| module.join("::")).collect();
            if !RECURSIVE.contains(&(home, &circle.iter().map(String::as_str).collect::<Vec<_>>())) {
                findings.push(format!("{home}: {} import each other", circle.join(", ")));
            }
        }
    }
    findings
}

impl<'a> Modules<'a> {
    /// Groups of modules that reach each other by imports.
    fn circles(&self) -> BTreeSet<Vec<&Path<'a>>> {
        let reached: BTreeMap<&Path<'a>, BTreeSet<&Path<'a>>> =
            self.0.keys().map(|module| (module, self.reached_from(module))).collect();
        let circle = |module: &&Path<'a>| -> Vec<&Path<'a>> {
            reached[*module].iter().filter(|other| reached[*other].contains(*module)).copied().collect()
        };
        self.0.keys().map(|module| circle(&module)).filter(|circle| circle.len() > 1).collect()
    }

    fn reached_from(&self, module: &Path<'a>) -> BTreeSet<&Path<'a>> {
        let mut reached = BTreeSet::new();
        let mut todo = self.imports(module);
        while let Some(next) = todo.pop() {
            if reached.insert(next) {
                todo.extend(self.imports(next));
            }
        }
        reached
    }

    /// The modules that a module imports, but for those around it and inside it.
    fn imports(&self, module: &Path<'a>) -> Vec<&Path<'a>> {
        let named = self.0[module].paths.iter().filter_map(|path| self.resolve(module, path, 8));
        named.filter(|other| !other.starts_with(module) && !module.starts_with(other)).collect()
    }

    /// The module that defines what `path` means in `module`, through at most `depth` re-exports.
    fn resolve(&self, module: &Path<'a>, path: &[&'a str], depth: usize) -> Option<&Path<'a>> {
        let mut at = if path.first() == Some(&"crate") { vec![] } else { module.clone() };
        let mut rest = path;
        while let Some((name, behind)) = rest.split_first() {
            match *name {
                "crate" | "self" => {}
                "super" => drop(at.pop()),
                _ => {
                    at.push(name);
                    if !self.0.contains_key(&at) {
                        at.pop();
                        break;
                    }
                }
            }
            rest = behind;
        }
        let (found, names) = self.0.get_key_value(&at)?;
        let published = |name: &&str| names.published.iter().find(|(published, _)| published == name);
        match rest.first().and_then(published) {
            Some((_, path)) if depth > 0 => self.resolve(found, path, depth - 1).or(Some(found)),
            _ => Some(found),
        }
    }
}

/// What a module's code names.
fn names(code: &str) -> Names<'_> {
    let mut names = Names::default();
    for (at, _) in code.match_indices("use ") {
        let line = &code[code[..at].rfind('\n').map_or(0, |end| end + 1)..at];
        let Some((tree, _)) = code[at + 4..].split_once(';') else { continue };
        let is_public = line.trim_start().starts_with("pub");
        if line.trim().is_empty() || is_public {
            let leaves = use_leaves(tree);
            names.published.extend(leaves.iter().filter(|_| is_public).cloned());
            names.paths.extend(leaves.into_iter().map(|(_, path)| path));
        }
    }
    // Paths in the middle of code, too.
    for start in ["crate::", "super::"] {
        for (at, _) in code.match_indices(start) {
            let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
            let before = code[..at].chars().next_back();
            if !before.is_some_and(|c| is_part(c) || c == '$') {
                let path = code[at..].split(|c| !is_part(c)).next().unwrap_or_default();
                names.paths.push(segments(path));
            }
        }
    }
    names
}

/// Name and path of each leaf of a use tree: `a::{b, c as d}` has `b` for `a::b` and `d` for `a::c`.
fn use_leaves(tree: &str) -> Vec<(&str, Path<'_>)> {
    if let Some((head, group)) = tree.split_once('{') {
        let group = group.trim_end().strip_suffix('}').unwrap_or(group);
        let mut depth = 0;
        let parts = group.split(|c: char| {
            depth += i32::from(c == '{') - i32::from(c == '}');
            c == ',' && depth == 0
        });
        let inner = parts.filter(|part| !part.trim().is_empty()).flat_map(use_leaves);
        return inner.map(|(name, path)| (name, [segments(head), path].concat())).collect();
    }
    let (path, name) = tree.split_once(" as ").map_or((tree, None), |(path, name)| (path, Some(name.trim())));
    let path = segments(path);
    let last = path.last().copied().unwrap_or_default();
    vec![(name.unwrap_or(last), path)]
}

fn segments(path: &str) -> Path<'_> {
    path.split("::").map(str::trim).filter(|name| !name.is_empty()).collect()
}
