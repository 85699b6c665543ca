//! The table against its page of documentation, and its rules against another engine.

use std::fmt::Write as _;

use super::super::split::Splitter;
use super::*;

const BEGIN: &str = "<!-- rules: begin -->\n";
const END: &str = "<!-- rules: end -->\n";

/// What `docs/tokenizers.md` says about the table.
fn page() -> String {
    let mut page = String::new();
    for pre in PRE_TOKENIZERS {
        let names: Vec<String> = pre.names.iter().map(|name| format!("`{name}`")).collect();
        let _ = write!(page, "\n#### {}\n\n", names.join(", "));
        let notes = notes(pre.traits);
        if !notes.is_empty() {
            let _ = write!(page, "- {}\n\n", notes.join("\n- "));
        }
        let _ = write!(page, "```text\n{}\n```\n", pre.patterns.join("\n"));
    }
    page + "\n"
}

fn notes(traits: Traits) -> Vec<&'static str> {
    let mut notes = Vec::new();
    match traits.spelling {
        Spelling::Bytes => (),
        Spelling::Escaped => notes.push("UTF-8 with spaces as U+2581, bytes as `<0x0A>`"),
        Spelling::Plain => notes.push("UTF-8; whitespace that is no token is dropped"),
    }
    let flags = [
        (traits.ignore_merges, "a piece that is a token is not split"),
        (traits.add_bos, "adds the begin token by default"),
        (traits.force_bos, "adds it even if the file says not to"),
        (traits.newline_runs, "a run of line feeds that is a token is not split"),
        (traits.no_merges, "merges may be absent"),
    ];
    notes.extend(flags.iter().filter(|(set, _)| *set).map(|(_, note)| note));
    notes
}

#[test]
fn the_page_lists_the_table() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/tokenizers.md");
    let there = std::fs::read_to_string(path).unwrap();
    let (head, rest) = there.split_once(BEGIN).unwrap();
    let (rules, tail) = rest.split_once(END).unwrap();
    if std::env::var("UPDATE_DOCS").is_ok_and(|v| v == "1") {
        std::fs::write(path, format!("{head}{BEGIN}{}{END}{tail}", page())).unwrap();
        return;
    }
    assert!(rules == page(), "docs/tokenizers.md is out of date: UPDATE_DOCS=1 writes it");
}

#[test]
fn names_are_unique_and_found() {
    let mut seen = std::collections::HashSet::new();
    for name in names() {
        assert!(seen.insert(name), "{name} twice");
        assert!(find(name).is_some_and(|(found, pre)| found == name && pre.names.contains(&name)));
    }
    assert_eq!(seen.len(), 91);
    assert_eq!(nearest("smolm"), ["smollm", "olmo", "bloom"]);
}

/// Pieces by Python's regex module (`scripts/tokenizer_fixtures.py`), which runs the look-aheads that
/// [`super::super::split`] replaces.
#[test]
fn rules_split_as_another_engine_does() {
    let fixture: &[u8] = include_bytes!("../../../tests/fixtures/tokenizers/splits.json.gz");
    let fixture = std::io::read_to_string(flate2::read::GzDecoder::new(fixture)).unwrap();
    let fixture: serde_json::Value = serde_json::from_str(&fixture).unwrap();
    let texts = fixture["texts"].as_array().unwrap();
    for pre in PRE_TOKENIZERS {
        let splitter = Splitter::new(pre.patterns).unwrap();
        let expected = fixture["rules"][pre.names[0]].as_array().unwrap();
        assert_eq!((expected.len(), texts.len()), (100, 100));
        for (text, lengths) in texts.iter().zip(expected) {
            let text = text.as_str().unwrap();
            let pieces: Vec<&str> = splitter.split(text).into_iter().map(|piece| &text[piece]).collect();
            let found: Vec<u64> = pieces.iter().map(|piece| piece.chars().count() as u64).collect();
            let expected: Vec<u64> =
                lengths.as_array().unwrap().iter().map(|l| l.as_u64().unwrap()).collect();
            assert_eq!(found, expected, "{}: {text:?} as {pieces:?}", pre.names[0]);
        }
    }
}

/// Pieces as the expressions say literally, by a backtracking engine.
fn literal_pieces(patterns: &[fancy_regex::Regex], text: &str) -> Vec<String> {
    let mut pieces = vec![text.to_owned()];
    for pattern in patterns {
        let mut cut = Vec::new();
        for piece in pieces {
            let mut at = 0;
            for found in pattern.find_iter(&piece) {
                let found = found.unwrap();
                cut.extend([piece[at..found.start()].to_owned(), found.as_str().to_owned()]);
                at = found.end();
            }
            cut.push(piece[at..].to_owned());
        }
        cut.retain(|piece| !piece.is_empty());
        pieces = cut;
    }
    pieces
}

#[test]
fn what_replaces_look_aheads_is_equal_to_them() {
    use rand::{RngExt as _, SeedableRng as _};
    const PARTS: [&str; 36] = [
        " ",
        "  ",
        "\t",
        "\n",
        "\r\n",
        "\u{a0}",
        "\u{3000}",
        "a",
        "B",
        "é",
        "日",
        "か",
        "한",
        "'s",
        "'LL",
        "'",
        "1",
        "22",
        "333",
        "٣",
        "½",
        "²",
        "_",
        ".",
        ",",
        "$",
        "\u{301}",
        "\u{200d}",
        "😀",
        "ǅ",
        "ʰ",
        "ส",
        "/",
        "<sentinel:1>",
        "IMGIMGAZ",
        "\u{85}",
    ];
    let mut rng = rand::rngs::StdRng::seed_from_u64(1);
    for pre in PRE_TOKENIZERS {
        let splitter = Splitter::new(pre.patterns).unwrap();
        let patterns: Vec<_> = pre.patterns.iter().map(|p| fancy_regex::Regex::new(p).unwrap()).collect();
        for _ in 0..1000 {
            let length = rng.random_range(0..14);
            let text: String = (0..length).map(|_| PARTS[rng.random_range(0..PARTS.len())]).collect();
            let found: Vec<&str> = splitter.split(&text).into_iter().map(|piece| &text[piece]).collect();
            assert_eq!(found, literal_pieces(&patterns, &text), "{}: {text:?}", pre.names[0]);
        }
    }
}

/// Lengths of whitespace around the powers of two of `jais-2`.
#[test]
fn whitespace_of_any_length_is_split_as_written() {
    for name in ["jais-2", "llama-bpe", "smollm"] {
        let (_, pre) = find(name).unwrap();
        let splitter = Splitter::new(pre.patterns).unwrap();
        let patterns: Vec<_> = pre.patterns.iter().map(|p| fancy_regex::Regex::new(p).unwrap()).collect();
        for length in (0..40).chain(500..530) {
            for end in ["", "x", "\n", "!", "5"] {
                let text = " ".repeat(length) + end;
                let found: Vec<&str> = splitter.split(&text).into_iter().map(|piece| &text[piece]).collect();
                assert_eq!(found, literal_pieces(&patterns, &text), "{name}: {length} spaces and {end:?}");
            }
        }
    }
}

/// A quarter of a megabyte without much to cut at; quadratic time would take minutes.
#[test]
fn rules_take_linear_time() {
    for pre in PRE_TOKENIZERS {
        let splitter = Splitter::new(pre.patterns).unwrap();
        for unit in [" ", "\n", "7", "٣", "a", "A", "é", "\u{301}", "日", " \n", "\t x", "'", "a "] {
            let text = unit.repeat((1 << 18) / unit.len()) + "x";
            let total: usize = splitter.split(&text).into_iter().map(|piece| piece.len()).sum();
            assert_eq!(total, text.len());
        }
    }
}
