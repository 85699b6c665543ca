//! Rules about Rust sources.

use crate::rust_text::{code_only, has_word, test_modules, without_tests};
use crate::tree::Tree;

/// Where `unsafe` may stand: the Vulkan bindings, and the mapping of model files into memory.
const UNSAFE_PLACES: [&str; 3] =
    ["crates/runtime/src/vulkan.rs", "crates/runtime/src/vulkan/", "crates/gguf/src/mmap.rs"];
/// A file of more lines is worth a thought.
const LONG_FILE: usize = 400;
/// No file may have more lines.
pub const MAX_FILE: usize = 800;

/// Path and text of each Rust file.
pub fn rust_files(tree: &Tree) -> impl Iterator<Item = (&str, &str)> {
    tree.files.iter().filter_map(|file| Some((file.path.as_str(), file.text_if(&[".rs"])?)))
}

/// Rust files above the soft limit, for the reader's information.
pub fn long_files(tree: &Tree) -> Vec<String> {
    files_above(tree, LONG_FILE)
}

fn files_above(tree: &Tree, limit: usize) -> Vec<String> {
    let lengths = rust_files(tree).map(|(path, text)| (path, text.lines().count()));
    lengths
        .filter(|(_, lines)| *lines > limit)
        .map(|(path, lines)| format!("{path}: {lines} lines"))
        .collect()
}

/// No file is too long to read.
pub fn file_length(tree: &Tree) -> Vec<String> {
    files_above(tree, MAX_FILE)
}

/// The first thing in a Rust file, but for inner attributes, is its `//!` doc.
pub fn module_docs(tree: &Tree) -> Vec<String> {
    let undocumented = rust_files(tree).filter(|(_, text)| {
        let first = text.lines().map(str::trim).find(|line| !line.is_empty() && !line.starts_with("#!["));
        !first.is_some_and(|line| line.starts_with("//!"))
    });
    undocumented.map(|(path, _)| format!("{path} does not start with a //! comment")).collect()
}

/// Where the compiler may ask what kind of device it compiles for: the device model.
const DEVICE_MODEL: [&str; 2] = ["crates/ir/src/caps", "crates/ir/src/cost"];

/// Cost decisions read the device model; no other code of the compiler asks for the type of a device.
pub fn device_type(tree: &Tree) -> Vec<String> {
    let compiler = ["crates/ir/src/", "crates/codegen/src/"];
    let mut findings = Vec::new();
    for (path, text) in rust_files(tree) {
        let asks = compiler.iter().any(|place| path.starts_with(place));
        if !asks || DEVICE_MODEL.iter().any(|place| path.starts_with(place)) {
            continue;
        }
        for (number, line) in (1..).zip(code_only(text).lines()) {
            if has_word(line, "DeviceType") || has_word(line, "device_type") {
                findings
                    .push(format!("{path}:{number}: ask crates/ir/src/cost.rs instead of the device type"));
            }
        }
    }
    findings
}

/// Unsafe code stays in its few places.
pub fn unsafe_place(tree: &Tree) -> Vec<String> {
    let mut findings = Vec::new();
    for (path, text) in rust_files(tree) {
        if UNSAFE_PLACES.iter().any(|place| path.starts_with(place)) {
            continue;
        }
        for (number, line) in (1..).zip(code_only(text).lines()) {
            if has_word(line, "unsafe")
                || line.contains("allow(unsafe_code")
                || line.contains("expect(unsafe_code")
            {
                findings
                    .push(format!("{path}:{number}: unsafe code belongs in {}", UNSAFE_PLACES.join(", ")));
            }
        }
    }
    findings
}

/// Each unsafe block, impl and function has its reason in a comment on its line or right above its statement.
pub fn safety_comment(tree: &Tree) -> Vec<String> {
    let mut findings = Vec::new();
    for (path, text) in rust_files(tree) {
        let code = code_only(text);
        let lines: Vec<(&str, &str)> = code.lines().zip(text.lines()).collect();
        for (at, (line, _)) in lines.iter().enumerate() {
            if wants_reason(line) && !has_reason(&lines, at) {
                findings.push(format!("{path}:{}: unsafe without a SAFETY comment", at + 1));
            }
        }
    }
    findings
}

/// True if this line of code opens an unsafe block or impl, or declares an unsafe function; a mere
/// function type does none of these.
fn wants_reason(code: &str) -> bool {
    if !has_word(code, "unsafe") {
        return false;
    }
    code.split("unsafe").skip(1).any(|after| {
        let after = after.trim_start();
        let is_type = after.split_once("fn").is_some_and(|(_, name)| name.trim_start().starts_with('('));
        !is_type && !after.starts_with('_')
    })
}

/// `lines` are pairs of code and full text. Looks at the line itself, then up to the start of the
/// statement, then through the comment and the attributes above it.
fn has_reason(lines: &[(&str, &str)], at: usize) -> bool {
    let states = |(code, text): &(&str, &str)| {
        // Beyond the last code there is only comment.
        let comment = text.get(code.trim_end().len()..).unwrap_or_default();
        comment.contains("// SAFETY:") || comment.contains("/// # Safety")
    };
    if states(&lines[at]) {
        return true;
    }
    for pair in lines[..at].iter().rev() {
        let code = pair.0.trim();
        let is_comment = code.is_empty() && pair.1.trim_start().starts_with("//");
        if is_comment && states(pair) {
            return true;
        }
        // An earlier statement, or a blank line, ends the search; an attribute does not.
        let ended = code.ends_with([';', '{', '}', ',']) || (code.is_empty() && !is_comment);
        if ended && !code.starts_with("#[") {
            return false;
        }
    }
    false
}

/// Library code returns errors; where it cannot fail, `expect("invariant: ...")` says why.
pub fn library_unwrap(tree: &Tree) -> Vec<String> {
    let mut findings = Vec::new();
    for (path, text, code) in library_code(tree) {
        let expects = code.match_indices(".expect(").filter_map(|(at, call)| {
            let message = text[at + call.len()..].trim_start();
            (message.starts_with('"') && !message.starts_with("\"invariant: ")).then_some(at)
        });
        let mut places: Vec<usize> =
            code.match_indices(".unwrap()").map(|(at, _)| at).chain(expects).collect();
        places.sort_unstable();
        for at in places {
            let number = 1 + text[..at].matches('\n').count();
            findings.push(format!("{path}:{number}: wants an error, or expect(\"invariant: ...\")"));
        }
    }
    findings
}

/// Code generation that may read shaders: it compiles them, or checks those that users write.
const SHADER_READERS: [&str; 2] = ["crates/codegen/src/spirv.rs", "crates/codegen/src/custom.rs"];

/// Generated text is never searched: generators record what text uses when they emit it. The rule covers Rust sources
/// only; `replace` filters in templates follow.
pub fn searched_text(tree: &Tree) -> Vec<String> {
    let mut findings = Vec::new();
    for (path, text, code) in library_code(tree) {
        if !path.starts_with("crates/codegen/src/") || SHADER_READERS.contains(&path) {
            continue;
        }
        for (at, call) in code.match_indices(".contains(") {
            let argument = text[at + call.len()..].trim_start();
            if ["\"", "r\"", "r#", "&format!"].iter().any(|start| argument.starts_with(start)) {
                let number = 1 + text[..at].matches('\n').count();
                findings
                    .push(format!("{path}:{number}: record in Uses what the text calls; do not search it"));
            }
        }
    }
    findings
}

/// Path, text and bare code of each library file, the code without its tests.
fn library_code(tree: &Tree) -> Vec<(&str, &str, String)> {
    untested_code(tree, |path| path.starts_with("crates/") && path.contains("/src/"))
}

/// Path, text and bare code of each `wanted` file, the code without its tests.
pub fn untested_code(tree: &Tree, wanted: fn(&str) -> bool) -> Vec<(&str, &str, String)> {
    let wanted = rust_files(tree).filter(|(path, _)| wanted(path));
    let mut sources: Vec<_> = wanted.map(|(path, text)| (path, text, code_only(text))).collect();
    let mut test_files = Vec::new();
    for (path, _, code) in &sources {
        let folder = module_folder(path);
        test_files.extend(test_modules(code).into_iter().map(|name| format!("{folder}/{name}")));
    }
    sources.retain(|(path, _, _)| {
        let is_test = |test: &String| *path == format!("{test}.rs") || path.starts_with(&format!("{test}/"));
        !test_files.iter().any(is_test)
    });
    for (_, _, code) in &mut sources {
        *code = without_tests(code);
    }
    sources
}

/// Where the files of a module's own `mod name;` lie.
fn module_folder(path: &str) -> &str {
    let stem = path.strip_suffix(".rs").unwrap_or(path);
    ["/lib", "/main", "/mod"].iter().find_map(|root| stem.strip_suffix(root)).unwrap_or(stem)
}
