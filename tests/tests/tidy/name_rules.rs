//! A rule about identifiers: names use the field's words, as prose does.

use crate::rust_text::code_only;
use crate::tree::Tree;

/// Coined words in names, and what to say instead.
pub const COINED_WORDS: &[(&str, &str)] = &[
    ("turns", "persistent tiles, tiles per workgroup"),
    ("meet", "combine, merge"),
    ("meeting", "partials"),
    ("strip", "epilogue staging tile; trim for text"),
    ("awake", "spinning"),
    ("asleep", "blocking, sleeping"),
    ("dear", "too expensive"),
    ("ahead", "prefetched, in flight"),
    ("early", "prefetched"),
    ("late", "deferred"),
    ("together", "batched, combined"),
    ("kept", "register-cached, cached, remaining"),
];

/// Names of the standard library.
const STANDARD: [&str; 2] = ["strip_prefix", "strip_suffix"];

/// Code about conversations, which have turns.
const CHAT: [&str; 4] = [
    "crates/chat/",
    "crates/cli/src/chat",
    "crates/models/src/chat.rs",
    "crates/models/tests/models/chat.rs",
];

/// Identifiers contain no coined words.
pub fn coined_name(tree: &Tree) -> Vec<String> {
    let starts = |path: &str, places: &[&str]| places.iter().any(|place| path.starts_with(place));
    let mut findings = Vec::new();
    for file in &tree.files {
        let path = file.path.as_str();
        let Some(text) = file.text_if(&[".rs"]) else { continue };
        for (number, line) in (1..).zip(code_only(text).lines()) {
            let names = line.split(|c: char| !c.is_alphanumeric() && c != '_');
            for name in names.filter(|name| !STANDARD.contains(name)) {
                let words = words(name);
                let coined = COINED_WORDS.iter().filter(|(coined, _)| words.iter().any(|w| w == coined));
                for (word, standard) in coined.filter(|(word, _)| *word != "turns" || !starts(path, &CHAT)) {
                    findings.push(format!("{path}:{number}: \"{word}\" in {name}: say {standard}"));
                }
            }
        }
    }
    findings
}

/// The words of a name in snake_case, CamelCase or SCREAMING_CASE, in lower case.
fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut after_lower = false;
    for c in name.chars() {
        if c == '_' || (c.is_uppercase() && after_lower) {
            words.push(String::new());
        }
        after_lower = c.is_lowercase() || c.is_numeric();
        if let Some(last) = words.last_mut().filter(|_| c != '_') {
            last.extend(c.to_lowercase());
        }
    }
    words
}

#[test]
fn names_are_split_into_words() {
    assert_eq!(words("is_late"), ["is", "late"]);
    assert_eq!(words("MEETING_PLACES"), ["meeting", "places"]);
    assert_eq!(words("WorkAhead2Do"), ["work", "ahead2", "do"]);
    assert_eq!(words("stripes"), ["stripes"]);
}
