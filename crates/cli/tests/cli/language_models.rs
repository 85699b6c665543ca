//! The guide's chapter on language models.

#![cfg(unix)]

use crate::support::{blocks, link, root, shell};

/// The commands of the chapter, one block after the other. Those that need a device run in other tests.
#[test]
fn the_guide_works() {
    let page = std::fs::read_to_string(root().join("docs/guide/language-models.md")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    link(&["docs", "models"], folder.path());
    let outputs: Vec<String> = blocks(&page, "sh")
        .into_iter()
        .filter(|commands| !commands.starts_with("tallow bench") && !commands.starts_with("tallow verify"))
        .map(|commands| shell(commands, folder.path()))
        .collect();
    assert!(outputs.len() >= 10, "{outputs:?}");
    assert!(outputs[0].ends_with("\nruns: yes\n") && outputs[1].ends_with("\nfits: yes\n"), "{outputs:?}");
    assert!(outputs[2].starts_with("Once upon a time") && outputs[3].starts_with('{'), "{outputs:?}");
}
