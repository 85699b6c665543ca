//! The page `docs/performance.md`, written from the benchmark results in `benches/results/`.

mod page;
mod results;

use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

#[test]
fn page_equals_the_results() {
    let results = results::read(&root().join("benches/results")).unwrap_or_else(|why| panic!("{why}"));
    let page = page::page(&results);
    let path = root().join("docs/performance.md");
    if std::env::var_os("UPDATE_DOCS").is_some_and(|value| !value.is_empty()) {
        std::fs::write(&path, &page).unwrap();
    }
    let there = std::fs::read_to_string(&path).unwrap();
    assert!(there == page, "docs/performance.md is out of date: UPDATE_DOCS=1 writes it");
}

#[test]
fn results_without_a_date_or_command_are_refused() {
    let row = r#"{"name": "a", "device": "d", "driver": "e", "median_us": 1}"#;
    let error = results::rows("f", row).unwrap_err();
    assert!(error.contains("f:1") && error.contains("date"), "{error}");
    let header = r#"{"date": "2026-01-02", "command": "tallow bench"}"#;
    let rows = results::rows("f", &format!("{header}\n{row}\n")).unwrap();
    assert_eq!((rows[0].date.as_str(), rows[0].command.as_str()), ("2026-01-02", "tallow bench"));
}

#[test]
fn a_later_result_replaces_an_earlier_one() {
    let header = r#"{"date": "2026-01-02", "command": "c", "device": "d", "driver": "e"}"#;
    let text =
        format!("{header}\n{{\"name\": \"a\", \"median_us\": 1}}\n{{\"name\": \"a\", \"median_us\": 2}}\n");
    let rows = results::latest(results::rows("f", &text).unwrap());
    assert_eq!(rows.iter().map(|row| row.median_us).collect::<Vec<_>>(), [Some(2.0)]);
}
