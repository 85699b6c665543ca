//! Rules about the text of Markdown files: line length, vocabulary, and the pages of the book.

use crate::rust_text::has_word;
use crate::tree::Tree;
use crate::tree_rules::{link_targets, prose_lines};

/// The longest line of Markdown prose, in characters.
pub const MAX_PROSE: usize = 120;
/// The table of contents of the book.
const SUMMARY: &str = "docs/SUMMARY.md";
/// Coined terms, and the standard terms that replace them. Only terms without another common meaning are listed.
pub const COINED: &[(&str, &str)] = &[
    ("matrix hardware", "cooperative matrices, tensor cores"),
    ("matrices of the workgroup", "workgroup-scope cooperative matrices"),
    ("tiles in turn", "persistent tiles"),
    ("shared tiles", "split-K"),
    ("rows of matrices", "fragment layout"),
    ("works of the benchmark", "benchmarks"),
    ("queue that draws", "graphics queue"),
    ("meeting places", "partials"),
    ("on their way", "in flight"),
    ("dear", "too expensive"),
    ("awake", "spinning"),
    ("asleep", "blocking, sleeping"),
    ("taken together", "batched"),
    ("asked for in front", "prefetched"),
    ("runs of columns", "column groups"),
];

/// Lines of Markdown prose are short. Tables, headings, and lines with a link cannot always be broken.
pub fn long_prose(tree: &Tree) -> Vec<String> {
    let is_long = |line: &str| line.chars().count() > MAX_PROSE;
    let is_exempt = |line: &str| line.starts_with(['|', '#']) || line.contains("](") || line.contains("://");
    prose_lines(tree)
        .filter(|(_, _, line)| is_long(line) && !is_exempt(line.trim_start()))
        .map(|(file, number, line)| {
            format!("{file}:{number}: {} characters, at most {MAX_PROSE}", line.chars().count())
        })
        .collect()
}

/// Comments of sources, by file and line. A line without code in front of its comment is enough.
fn comment_lines(tree: &Tree) -> impl Iterator<Item = (&str, usize, &str)> {
    let sources = tree
        .files
        .iter()
        .filter_map(|file| Some((file.path.as_str(), file.text_if(&[".rs", ".comp", ".glsl"])?)));
    sources.flat_map(|(path, text)| {
        let lines = (1..).zip(text.lines());
        lines.filter(|(_, line)| line.trim_start().starts_with("//")).map(move |(n, line)| (path, n, line))
    })
}

/// Prose and comments use the field's terms.
pub fn coined_term(tree: &Tree) -> Vec<String> {
    let mut findings = Vec::new();
    for (file, number, line) in prose_lines(tree).chain(comment_lines(tree)) {
        // Odd pieces between backquotes are code.
        let prose = line.split('`').step_by(2).collect::<Vec<_>>().join(" ").to_lowercase();
        for (coined, standard) in COINED.iter().filter(|(coined, _)| has_word(&prose, coined)) {
            findings.push(format!("{file}:{number}: \"{coined}\" is not a standard term: {standard}"));
        }
    }
    findings
}

/// Each page below `docs/` is in the book.
pub fn page_outside_book(tree: &Tree) -> Vec<String> {
    let Some(summary) = tree.get(SUMMARY).and_then(|file| file.text.as_deref()) else {
        return Vec::new();
    };
    let listed: Vec<&str> = summary.lines().flat_map(link_targets).collect();
    let pages = tree.files.iter().filter_map(|file| file.path.strip_prefix("docs/"));
    pages
        .filter(|page| page.ends_with(".md") && *page != "SUMMARY.md" && !listed.contains(page))
        .map(|page| format!("docs/{page} is not in {SUMMARY}"))
        .collect()
}
