//! The table of rules, with the examples that show each of them at work.

use crate::function_rules::*;
use crate::import_rules::import_circle;
use crate::name_rules::{COINED_WORDS, coined_name};
use crate::prose_rules::*;
use crate::source_rules::*;
use crate::tree::{File, Tree};
use crate::tree_rules::*;

/// A rule over the whole tree.
pub struct Check {
    /// Names the rule in findings.
    pub name: &'static str,
    /// Gives one line per violation.
    pub run: fn(&Tree) -> Vec<String>,
    /// Trees that the rule must find fault with.
    pub bad: fn() -> Vec<Tree>,
    /// A tree that keeps the rule, close to the border.
    pub good: fn() -> Tree,
}

/// All rules.
pub const CHECKS: &[Check] = &[
    Check {
        name: "file_length",
        run: file_length,
        bad: || vec![Tree { files: vec![File::new("crates/a/src/lib.rs", "x\n".repeat(MAX_FILE + 1))] }],
        good: || Tree { files: vec![File::new("crates/a/src/lib.rs", "x\n".repeat(MAX_FILE))] },
    },
    Check {
        name: "module_docs",
        run: module_docs,
        bad: || {
            trees(
                "crates/a/src/lib.rs",
                &["fn f() {}", "", "// A comment.\nfn f() {}", "/// Of f.\nfn f() {}"],
            )
        },
        good: || Tree::example(&[("a.rs", "//! Doc.\n"), ("b.rs", "#![cfg(unix)]\n\n//! Doc.\nfn f() {}")]),
    },
    Check {
        name: "unsafe_place",
        run: unsafe_place,
        bad: || {
            let mut trees = trees("crates/ir/src/lib.rs", &["unsafe { f() }", "#![allow(unsafe_code)]"]);
            trees.extend([Tree::example(&[("crates/gguf/src/read.rs", "unsafe impl A for B {}")])]);
            trees
        },
        good: || {
            Tree::example(&[
                ("crates/runtime/src/vulkan/a.rs", "#![allow(unsafe_code)]\nunsafe { f() }"),
                ("crates/gguf/src/mmap.rs", "unsafe { f() }"),
                (
                    "crates/ir/src/lib.rs",
                    "// unsafe\nlet s = \"unsafe\"; not_unsafe();\n#![forbid(unsafe_code)]",
                ),
            ])
        },
    },
    Check {
        name: "safety_comment",
        run: safety_comment,
        bad: || {
            trees(
                "crates/runtime/src/vulkan/a.rs",
                &[
                    "unsafe { f() }",
                    "// Quick.\nunsafe { f() }",
                    "// SAFETY: of another statement.\ng();\nunsafe { f() }",
                    "// SAFETY: of the first only.\nunsafe { f() }\nunsafe { g() }",
                    "unsafe impl Send for A {}",
                    "let s = \"// SAFETY: no comment\";\nunsafe { f() }",
                ],
            )
        },
        good: || {
            let text = "// SAFETY: because.\nunsafe { f() }\n\
                        // SAFETY: a long one,\n// in two lines.\nlet x =\n    unsafe { f() };\n\
                        unsafe { f() } // SAFETY: because.\n\
                        /// # Safety\n/// The caller's.\npub unsafe fn f() {}\n\
                        let call: unsafe fn() = f;\nlet s = \"unsafe\"; // unsafe\n";
            Tree::example(&[("crates/runtime/src/vulkan/a.rs", text)])
        },
    },
    Check {
        name: "note_without_issue",
        run: note_without_issue,
        bad: || {
            let [a, b, c] = NOTES.map(|note| format!("// {note}: later\n"));
            trees("crates/a/src/a.rs", &[&a, &b, &c])
        },
        good: || Tree { files: vec![File::new("a.rs", format!("// {} (#12): later\nTODOS\n", NOTES[0]))] },
    },
    Check {
        name: "library_unwrap",
        run: library_unwrap,
        bad: || {
            let after =
                "//! Doc.\n#[cfg(test)]\nmod tests { fn f() { a.unwrap() } }\nfn g() { a\n    .unwrap(); }";
            trees(
                "crates/a/src/a.rs",
                &["fn f() { a.unwrap() }", after, "fn f() { a.expect(\"no reason\") }"],
            )
        },
        good: || {
            let tested = "/// a.unwrap()\nfn f(p: P) { a.unwrap_or(1); p.expect(b',') }\n#[cfg(test)]\nmod tests { fn f() { a.unwrap() } }";
            Tree::example(&[
                ("crates/a/src/a.rs", tested),
                ("crates/a/src/lib.rs", "mod a;\n#[cfg(test)]\nmod checks;\n"),
                ("crates/a/src/b.rs", "fn f() { a.expect(\"invariant: never empty\") }"),
                ("crates/a/src/checks.rs", "fn f() { a.unwrap() }"),
                ("crates/a/tests/a.rs", "fn f() { a.unwrap() }"),
            ])
        },
    },
    Check {
        name: "long_function",
        run: long_function,
        bad: || {
            let arm = format!("        A => {{\n{}        }}\n", "            a();\n".repeat(MAX_ARM + 1));
            let long = [
                function(&"    a();\n".repeat(MAX_FUNCTION - 1)),
                function(&"    a();\n    match x {\n        A => a(),\n    }\n".repeat(MAX_FUNCTION / 4)),
                function(&flat_match(&arm, 0)),
                function(&flat_match("", MAX_OUTSIDE - 1)),
            ];
            long.map(|text| Tree::example(&[("crates/a/src/a.rs", &text)])).into_iter().collect()
        },
        good: || {
            let arm = format!("        A => {{\n{}        }}\n", "            a();\n".repeat(MAX_ARM));
            let short = function(&"    a();\n".repeat(MAX_FUNCTION - 2));
            let trait_of = format!("trait A {{\n    fn f(\n    );\n}}\n{short}");
            Tree::example(&[
                ("crates/a/src/a.rs", &function(&flat_match(&arm, MAX_OUTSIDE - 2))),
                ("crates/a/src/b.rs", &trait_of),
            ])
        },
    },
    Check {
        name: "many_parameters",
        run: many_parameters,
        bad: || {
            let texts = [
                "fn f(a: A, b: B, c: C, d: D, e: E, f: F, g: G) {}",
                "impl A {\n    pub(crate) const fn f<T: Fn(A) -> B>(\n        &self,\n        (a, (b, c)): (A, (B, C)),\n        t: T,\n        d: D,\n        e: E,\n        f: F,\n    ) -> A {\n    }\n}",
                "fn f(a: (A, A, A, A), b: (B, B, B));",
            ];
            trees("crates/a/src/a.rs", &texts)
        },
        good: || {
            let text = "fn f(&mut self, a: A<B, C>, b: [D; 2], c: impl Fn(A, B) -> C, d: a::D, (e, f): (E, F)) {}\n\
                        fn g() {\n    h(1, 2, 3, 4, 5, 6, 7);\n}\n";
            let candles = "pub fn sdpa(q: T, k: T, v: T, mask: M, causal: bool, scale: f32, cap: f32) {}";
            Tree::example(&[("crates/a/src/a.rs", text), ("tests/tests/candle/nn.rs", candles)])
        },
    },
    Check {
        name: "import_circle",
        run: import_circle,
        bad: || {
            let a = ("crates/a/src/a.rs", "use crate::b::{B, c::C};");
            let b = |text| ("crates/a/src/b.rs", text);
            vec![
                Tree::example(&[a, b("use super::a::A;")]),
                Tree::example(&[a, b("fn f() -> crate::a::A {}")]),
                Tree::example(&[a, b("use crate::A;"), ("crates/a/src/lib.rs", "pub use a::Z as A;")]),
                Tree::example(&[a, b("use crate::c::C;"), ("crates/a/src/c.rs", "use crate::a;")]),
            ]
        },
        good: || {
            let b = "use crate::{Other, c};\n#[cfg(test)]\nmod tests { use crate::a::A; }";
            Tree::example(&[
                ("crates/a/src/lib.rs", "pub use a::A;\nuse b::B;"),
                ("crates/a/src/a.rs", "use crate::b::B; // crate::b"),
                ("crates/a/src/b.rs", b),
                ("crates/a/src/b/part.rs", "use super::B;\nuse crate::c::C;"),
                ("crates/a/src/c.rs", "use crate::c::C;"),
                ("crates/b/src/b.rs", "use crate::a::A;"),
            ])
        },
    },
    Check {
        name: "coined_name",
        run: coined_name,
        bad: || {
            let names = COINED_WORDS.iter().map(|(word, _)| format!("fn is_{word}() {{}}"));
            let mut all: Vec<String> = names.collect();
            all.extend(
                ["struct RunsAhead;", "const TOGETHER: u32 = 1;", "fn f(turns: u32) {}"].map(String::from),
            );
            trees("crates/ir/src/a.rs", &all.iter().map(String::as_str).collect::<Vec<_>>())
        },
        good: || {
            Tree::example(&[
                ("crates/ir/src/a.rs", "// kept\nlet s = \"late\"; a.strip_prefix(b); let stripes = latest;"),
                ("crates/chat/src/a.rs", "fn turns() {}"),
            ])
        },
    },
    Check {
        name: "tree_size",
        run: tree_size,
        bad: || vec![data_of(MAX_TREE_BYTES)],
        good: || data_of(MAX_TREE_BYTES - 1),
    },
    Check {
        name: "machine_text",
        run: machine_text,
        bad: || {
            let lock = "source = \"registry+https://packages.example/index\"".to_owned();
            let mut trees: Vec<Tree> = MACHINE_TEXT
                .iter()
                .map(|text| Tree { files: vec![File::new("README.md", format!("see {text}a"))] })
                .collect();
            trees.push(Tree { files: vec![File::new("Cargo.lock", lock)] });
            trees
        },
        good: || {
            Tree::example(&[
                ("Cargo.lock", "source = \"registry+https://github.com/rust-lang/crates.io-index\""),
                ("README.md", "docs/work/list, ~/work/, https://crates.io/crates/ash"),
            ])
        },
    },
    Check {
        name: "test_out_of_place",
        run: test_out_of_place,
        bad: || {
            vec![
                Tree::example(&[("crates/ir/Cargo.toml", "[[test]]\npath = \"plan.rs\"")]),
                Tree::example(&[("tools/Cargo.toml", ""), ("tools/tests/a.rs", "")]),
            ]
        },
        good: || {
            Tree::example(&[
                ("Cargo.toml", ""),
                ("crates/ir/Cargo.toml", "[[test]]\nname = \"plan\"\n\n[lib]\npath = \"lib.rs\""),
                ("crates/ir/tests/plan.rs", ""),
                ("fuzz/Cargo.toml", ""),
                ("tests/Cargo.toml", ""),
                ("tests/tests/tidy/main.rs", ""),
                ("tests/candle-core/Cargo.toml", ""),
                ("tests/candle-core/tests/a.rs", ""),
            ])
        },
    },
    Check {
        name: "pass_without_filetests",
        run: pass_without_filetests,
        bad: || {
            vec![Tree::example(&[
                ("crates/ir/src/passes/fold.rs", ""),
                ("crates/ir/src/passes/fuse.rs", ""),
                ("tests/filetests/passes/fold/a.ir", ""),
            ])]
        },
        good: || {
            Tree::example(&[
                ("crates/ir/src/passes/fold.rs", ""),
                ("crates/ir/src/passes/fold/rules.rs", ""),
                ("tests/filetests/passes/fold/a.ir", ""),
            ])
        },
    },
    Check {
        name: "dead_link",
        run: dead_link,
        bad: || {
            let mut trees = trees("README.md", &["[a](docs/a.md)", "see [a](a.md#part) here", "![a](/docs)"]);
            trees.push(Tree::example(&[("docs/b.md", "[a](../c.md)"), ("docs/c.md", "")]));
            trees
        },
        good: || {
            let text = "[a](docs/a.md#part) [b](docs) [c](https://example.org/x) [d](#part) `[e](none)`\n```\n[f](none)\n```\n";
            Tree::example(&[("README.md", text), ("docs/a.md", "[r](../README.md)")])
        },
    },
    Check {
        name: "missing_path",
        run: missing_path,
        bad: || trees("docs/a.md", &["see `crates/a/src/b.rs`", "a `x` b `docs/b/` c"]),
        good: || {
            let text = "`crates/a/` `docs/a.md` `crates/<name>/x.rs` `src/none.rs` crates/none\n```\n`docs/none`\n```\n";
            Tree::example(&[
                ("docs/a.md", text),
                ("crates/a/Cargo.toml", ""),
                ("CHANGELOG.md", "`docs/none`"),
            ])
        },
    },
    Check {
        name: "long_prose",
        run: long_prose,
        bad: || {
            let long = "é".repeat(MAX_PROSE + 1);
            trees("docs/a.md", &[&long, &format!("- {long}"), &format!("```\n```\n{long}")])
        },
        good: || {
            let text = "é".repeat(MAX_PROSE);
            let long = "x".repeat(MAX_PROSE + 1);
            let exempt = format!("| {long} |\n# {long}\n[a](docs/a.md) {long}\n```\n{long}\n```\n");
            Tree::example(&[("docs/a.md", &format!("{text}\n{exempt}")), ("a.rs", &long)])
        },
    },
    Check {
        name: "coined_term",
        run: coined_term,
        bad: || {
            let each = COINED.iter().map(|(term, _)| File::new("docs/a.md", format!("a {term}.")));
            let mut trees: Vec<Tree> = each.map(|file| Tree { files: vec![file] }).collect();
            trees.push(Tree::example(&[("README.md", "`code` Matrix hardware multiplies.")]));
            trees.push(Tree::example(&[("a.rs", "fn f() {}\n    // By matrix hardware.")]));
            trees.push(Tree::example(&[("a.comp", "// Weights on their way.")]));
            trees
        },
        good: || {
            let text = "cooperative matrices `matrix hardware` endear awakening\n```text\nasleep\n```\n";
            Tree::example(&[("docs/a.md", text), ("a.rs", "let a = \"matrix hardware\";")])
        },
    },
    Check {
        name: "page_outside_book",
        run: page_outside_book,
        bad: || {
            let pages = [("docs/SUMMARY.md", "- [A](a.md)"), ("docs/a.md", ""), ("docs/b/a.md", "")];
            vec![Tree::example(&pages)]
        },
        good: || {
            let summary = "- [A](a.md)\n  - [B](b/a.md)\n";
            let pages = [("docs/SUMMARY.md", summary), ("docs/a.md", ""), ("docs/b/a.md", ""), ("a.md", "")];
            Tree::example(&pages)
        },
    },
    Check {
        name: "device_type",
        run: device_type,
        bad: || {
            let texts = ["fn f(c: &C) -> bool { c.device_type == T }", "use a::DeviceType;"];
            let files = texts.map(|text| Tree::example(&[("crates/codegen/src/a.rs", text)]));
            files.into_iter().chain([Tree::example(&[("crates/ir/src/a.rs", texts[0])])]).collect()
        },
        good: || {
            let text = "use a::DeviceType;";
            Tree::example(&[
                ("crates/ir/src/caps.rs", text),
                ("crates/ir/src/cost.rs", text),
                ("crates/runtime/src/a.rs", text),
                ("crates/ir/src/a.rs", "// DeviceType"),
            ])
        },
    },
    Check {
        name: "searched_text",
        run: searched_text,
        bad: || {
            let calls = [
                "fn f(text: &str) -> bool { text.contains(\"subgroup\") }",
                "fn f(text: &str) -> bool { text\n    .contains(&format!(\"{a}(\")) }",
            ];
            trees("crates/codegen/src/kinds/a.rs", &calls)
        },
        good: || {
            let search = "fn f(text: &str) -> bool { text.contains(\"subgroup\") }";
            let tested = "// a.contains(\"b\")\nfn f(all: &[&str]) -> bool { all.contains(&A) || a.contains(' ') }\n#[cfg(test)]\nmod tests { fn f() { a.contains(\"b\") } }";
            Tree::example(&[
                ("crates/codegen/src/a.rs", tested),
                ("crates/codegen/src/spirv.rs", search),
                ("crates/codegen/tests/a.rs", search),
                ("crates/ir/src/a.rs", search),
            ])
        },
    },
    Check {
        name: "lints_inherited",
        run: lints_inherited,
        bad: || {
            trees(
                "crates/a/Cargo.toml",
                &["[package]\nname = \"a\"\n", "[lints]\nrust.missing_docs = \"allow\"\n"],
            )
        },
        good: || {
            Tree::example(&[
                ("crates/a/Cargo.toml", "[lints]\nworkspace = true\n"),
                ("fuzz/Cargo.toml", "[package]\n\n[workspace]\n"),
                ("Cargo.toml", "[workspace]"),
            ])
        },
    },
    Check {
        name: "unused_dependency",
        run: unused_dependency,
        bad: || {
            let manifest = "[dependencies]\nsome-crate.workspace = true\n";
            let inner = ("tests/inner/Cargo.toml", "[lints]\n");
            let dev = "[dev-dependencies]\nsome-crate = \"1\"\n";
            vec![
                Tree::example(&[
                    ("crates/a/Cargo.toml", manifest),
                    ("crates/a/src/lib.rs", "use some_crates;"),
                ]),
                Tree::example(&[("crates/a/Cargo.toml", dev), ("crates/b/src/lib.rs", "use some_crate;")]),
                Tree::example(&[
                    ("tests/Cargo.toml", manifest),
                    inner,
                    ("tests/inner/src/lib.rs", "use some_crate;"),
                ]),
            ]
        },
        good: || {
            let manifest = "[features]\na = [\"b\"]\n\n[dependencies]\nsome-crate.workspace = true\n\n[lints]\nc.d = true\n";
            Tree::example(&[("crates/a/Cargo.toml", manifest), ("crates/a/src/b.rs", "use some_crate::C;")])
        },
    },
    Check {
        name: "rust_version",
        run: rust_version,
        bad: || {
            vec![
                Tree::example(&[
                    ("Cargo.toml", "rust-version = \"1.90\"\n"),
                    ("scripts/setup.sh", "min_rust=1.88\n"),
                ]),
                Tree::example(&[("Cargo.toml", "rust-version = \"1.90\"\n"), ("scripts/setup.sh", "\n")]),
            ]
        },
        good: || {
            Tree::example(&[
                ("Cargo.toml", "rust-version = \"1.90\"\n"),
                ("scripts/setup.sh", "min_rust=1.90\n"),
            ])
        },
    },
    Check {
        name: "test_settings",
        run: test_settings,
        bad: || trees("Makefile", &["export LP_NUM_THREADS := 0\n", "a: b\nexport GALLIVM_PERF := nopt\n"]),
        good: || Tree::example(&[("Makefile", "test: export LP_NUM_THREADS := 0\nexport PATH := a\n")]),
    },
];

/// One tree per text, each with that one file.
fn trees(path: &str, texts: &[&str]) -> Vec<Tree> {
    texts.iter().map(|text| Tree::example(&[(path, text)])).collect()
}

fn function(body: &str) -> String {
    format!("fn f() {{\n{body}}}\n")
}

/// A match of many arms, and one more, with so many other lines around it.
fn flat_match(arm: &str, others: usize) -> String {
    let arms = "        A => a(),\n".repeat(MAX_FUNCTION);
    format!("{}    match x {{\n{arms}{arm}    }}\n", "    a();\n".repeat(others))
}

fn data_of(bytes: u64) -> Tree {
    Tree { files: vec![File { path: "models/a.gguf".to_owned(), bytes, text: None }] }
}
