//! House rules that neither rustc nor clippy knows, checked over every file of the repository.
//!
//! Each rule is a row of [`checks::CHECKS`]: a function from the tree to its findings, and small trees that
//! must and must not be found fault with. One test runs the rows over the repository, the other over
//! their own examples, so that no rule can go blind unnoticed.

mod checks;
mod function_rules;
mod import_rules;
mod name_rules;
mod prose_rules;
mod rust_text;
mod source_rules;
mod tree;
mod tree_rules;

use checks::CHECKS;
use tree::Tree;

#[test]
fn repository_is_tidy() {
    let tree = Tree::of_repository();
    assert!(tree.files.len() > 20, "only {} files found: is this the repository?", tree.files.len());
    for line in source_rules::long_files(&tree) {
        eprintln!("long: {line}");
    }
    let findings: Vec<String> = CHECKS
        .iter()
        .flat_map(|check| (check.run)(&tree).into_iter().map(move |f| format!("{}: {f}", check.name)))
        .collect();
    assert!(findings.is_empty(), "{} findings\n{}", findings.len(), findings.join("\n"));
}

#[test]
fn every_check_finds_its_bad_examples_only() {
    for check in CHECKS {
        let bad = (check.bad)();
        assert!(!bad.is_empty(), "{} has no bad example, so nothing shows that it can fail", check.name);
        for tree in bad {
            assert!(!(check.run)(&tree).is_empty(), "{} passes a bad example: {tree:#?}", check.name);
        }
        let findings = (check.run)(&(check.good)());
        assert!(findings.is_empty(), "{} finds fault with its good example: {findings:?}", check.name);
    }
}
