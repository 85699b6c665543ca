//! The page `docs/models.md`: which architectures there are, how each was verified, and what a layer takes.

mod counts;
mod sizes;
mod text;

use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;

/// What the planner's counts may differ from those by hand.
const TOLERANCE: usize = 1;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A table of `tests/fixtures`.
fn table<T: DeserializeOwned>(name: &str) -> T {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name);
    let text = std::fs::read_to_string(&path).unwrap();
    toml::from_str(&text).unwrap_or_else(|why| panic!("{name}: {why}"))
}

/// Each fixture's counts are within the tolerance of those by hand, or a gap that is listed, and no other gap is.
#[test]
fn layers_take_what_was_counted_by_hand() {
    let (counted, gaps) = (counts::counted(), counts::gaps());
    let is_wrong = |count: &&counts::Count| {
        let listed = gaps.iter().filter(|gap| gap.fixtures.contains(count.name())).count();
        listed != usize::from(!count.is_close())
    };
    let wrong: Vec<String> = counted.iter().filter(is_wrong).map(|count| format!("{count:?}")).collect();
    assert!(wrong.is_empty(), "entries in layer_gaps.toml of\n{}", wrong.join("\n"));
    for gap in &gaps {
        assert!(!gap.reason.trim().is_empty(), "{gap:?}");
        let is_known = |name: &String| counted.iter().any(|count| count.name() == name);
        assert!(gap.fixtures.iter().all(is_known), "{gap:?}: an unknown fixture");
    }
}

#[test]
fn page_of_models_is_up_to_date() {
    let page = text::page();
    let path = root().join("docs/models.md");
    if std::env::var_os("UPDATE_DOCS").is_some_and(|value| !value.is_empty()) {
        std::fs::write(&path, &page).unwrap();
    }
    let there = std::fs::read_to_string(&path).unwrap();
    assert!(there == page, "docs/models.md is out of date: UPDATE_DOCS=1 writes it");
}
