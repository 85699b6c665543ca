//! Rules about functions: how long they are, and how many values they take.

use crate::rust_text::code_only;
use crate::source_rules::rust_files;
use crate::tree::Tree;

/// No function but a flat match may have more lines.
pub const MAX_FUNCTION: usize = 80;
/// A flat match is one `match` with at most this many lines of its function around it ...
pub const MAX_OUTSIDE: usize = 20;
/// ... and at most this many lines inside each arm.
pub const MAX_ARM: usize = 10;
/// No function may take more values.
const MAX_PARAMETERS: usize = 6;

/// Functions whose parameters are those of Candle's function of that name, since calls must compile with both.
const CANDLES: [(&str, &str); 2] =
    [("crates/frontend/src/nn/attention.rs", "sdpa"), ("tests/tests/candle/nn.rs", "sdpa")];

/// A function in formatted code.
struct Function<'a> {
    /// Number of its first line.
    number: usize,
    name: &'a str,
    /// From `fn` on, to the end of the file.
    text: &'a str,
    /// Its lines; one for a declaration.
    lines: Vec<&'a str>,
}

/// No function is too long to read, unless it is a flat match.
pub fn long_function(tree: &Tree) -> Vec<String> {
    let mut findings = Vec::new();
    for (path, text) in rust_files(tree) {
        let code = code_only(text);
        for Function { number, name, lines, .. } in functions(&code) {
            if lines.len() > MAX_FUNCTION && !is_flat_match(&lines) {
                findings.push(format!("{path}:{number}: {name} has {} lines", lines.len()));
            }
        }
    }
    findings
}

/// No function takes too many values, those of tuples counted one by one; `self` does not count.
pub fn many_parameters(tree: &Tree) -> Vec<String> {
    let mut findings = Vec::new();
    for (path, text) in rust_files(tree) {
        let code = code_only(text);
        for Function { number, name, text, .. } in functions(&code) {
            let count: usize = parameters(text).iter().map(|parameter| values(parameter)).sum();
            if count > MAX_PARAMETERS && !CANDLES.contains(&(path, name)) {
                findings.push(format!("{path}:{number}: {name} takes {count} values"));
            }
        }
    }
    findings
}

/// The functions of code without comments and literals, nested ones included.
fn functions(code: &str) -> Vec<Function<'_>> {
    let lines: Vec<&str> = code.lines().collect();
    let mut found = Vec::new();
    let mut start = 0;
    for (at, line) in code.split_inclusive('\n').enumerate() {
        if let Some((before, name)) = split_fn(line) {
            let name = name.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default();
            let text = &code[start + before.len()..];
            found.push(Function { number: at + 1, name, text, lines: function_lines(&lines[at..]) });
        }
        start += line.len();
    }
    found
}

/// What precedes `fn` in a line that declares a function, and what follows.
fn split_fn(line: &str) -> Option<(&str, &str)> {
    let (before, after) = line.split_once("fn ")?;
    let is_qualifier = |word: &str| {
        word.starts_with("pub") || matches!(word, "const" | "async" | "unsafe" | "extern" | "default")
    };
    let is_declared = before.is_empty() || before.ends_with(' ');
    (is_declared && before.split_whitespace().all(is_qualifier)).then_some((before, after))
}

/// The lines of the function that begins with the first line.
fn function_lines<'a>(lines: &[&'a str]) -> Vec<&'a str> {
    let depth = indent(lines[0]);
    // The body opens at the function's own indentation; what ends there first has none, or one in the same line.
    let own = |line: &&str| indent(line) == depth && !line.trim().is_empty();
    let ends = |line: &str| line.trim_end().ends_with([';', '}']);
    let end = lines.iter().position(|line| own(line) && ends(line)).unwrap_or(lines.len() - 1);
    lines[..=end].to_vec()
}

/// Whether a function is one `match` and little else: the longest `match` that begins at the indentation of its body has at
/// most [`MAX_OUTSIDE`] of the function's lines around it, and no more than [`MAX_ARM`] lines in a row are indented deeper
/// than its arms.
fn is_flat_match(lines: &[&str]) -> bool {
    let body = indent(lines[0]) + 4;
    let closes = |line: &&str| indent(line) == body && line.trim_start().starts_with('}');
    let opens =
        |line: &str| indent(line) == body && line.contains("match ") && line.trim_end().ends_with('{');
    let matches = (0..lines.len()).filter(|at| opens(lines[*at])).filter_map(|at| {
        let length = lines[at + 1..].iter().position(closes)?;
        Some(&lines[at + 1..at + 1 + length])
    });
    let Some(arms) = matches.max_by_key(|arms| arms.len()) else { return false };
    let mut inside = arms.split(|line| indent(line) == body + 4 && !line.trim().is_empty());
    lines.len() - arms.len() - 2 <= MAX_OUTSIDE && inside.all(|lines| lines.len() <= MAX_ARM)
}

fn indent(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

/// The parameters of the function whose text this is, but for `self`.
fn parameters(function: &str) -> Vec<&str> {
    // The first parenthesis outside of the generic parameters opens the list.
    let list = find_outside(function, '(').map_or("", |at| &function[at + 1..]);
    let list = &list[..find_outside(list, ')').unwrap_or(list.len())];
    let is_self = |parameter: &&str| {
        let name = parameter.split(':').next().unwrap_or_default();
        name.trim_end().rsplit([' ', '&']).next() == Some("self")
    };
    elements(list).into_iter().filter(|parameter| !is_self(parameter)).collect()
}

/// How many values a parameter has: those of its tuple, by its pattern or its type, or one.
fn values(parameter: &str) -> usize {
    let (pattern, ty) = match find_outside(parameter, ':') {
        Some(at) => (&parameter[..at], &parameter[at + 1..]),
        None => (parameter, ""),
    };
    let of_tuple = |text: &str| match text.trim().strip_prefix('(').and_then(|t| t.strip_suffix(')')) {
        Some(tuple) => elements(tuple).into_iter().map(values).sum(),
        None => 1,
    };
    of_tuple(pattern).max(of_tuple(ty))
}

/// The parts of a list between commas.
fn elements(mut list: &str) -> Vec<&str> {
    let mut found = Vec::new();
    while let Some(at) = find_outside(list, ',') {
        found.push(list[..at].trim());
        list = &list[at + 1..];
    }
    found.push(list.trim());
    found.retain(|element| !element.is_empty());
    found
}

/// Where `wanted` stands outside of all brackets; of colons, a single one.
fn find_outside(text: &str, wanted: char) -> Option<usize> {
    let (mut depth, mut before) = (0, ' ');
    for (at, c) in text.char_indices() {
        let is_double = c == ':' && (before == ':' || text[at + 1..].starts_with(':'));
        if c == wanted && depth == 0 && !is_double {
            return Some(at);
        }
        depth += match c {
            '(' | '[' | '{' | '<' => 1,
            ')' | ']' | '}' => -1,
            // The end of an arrow closes nothing.
            '>' if before != '-' && before != '=' => -1,
            _ => 0,
        };
        before = c;
    }
    None
}
