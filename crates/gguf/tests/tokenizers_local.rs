//! Comparison with ids that llama.cpp made, over whole vocabularies that are too large for this repository.
//!
//! `TALLOW_VOCABS` names a folder with `X.gguf`, `X.gguf.inp` and `X.gguf.out` as in llama.cpp's `models/`:
//! texts separated by a line, and their ids without special tokens. `X.gguf+NAME.inp` stands for the
//! pre-tokenizer NAME in place of the file's own. `scripts/tokenizer_fixtures.py` writes more of them.
#![allow(clippy::unwrap_used, reason = "a panic is a failed test")]

use std::path::Path;

use tallow_gguf::{GgufFile, Tokenizer, TokenizerOptions};

const SEPARATOR: &str = "\n__ggml_vocab_test__\n";

/// Number of texts with equal ids, of all texts, and the first that differs.
fn compare(input: &Path) -> Result<(usize, usize, String), String> {
    let name = input.to_str().unwrap().strip_suffix(".inp").unwrap();
    let (model, pre) = match name.rsplit_once(".gguf+") {
        Some((model, pre)) => (format!("{model}.gguf"), Some(pre.to_owned())),
        None => (name.to_owned(), None),
    };
    let file = GgufFile::open(&model).map_err(|e| e.to_string())?;
    let tokenizer =
        Tokenizer::with_options(file.metadata(), &TokenizerOptions { pre }).map_err(|e| e.to_string())?;
    let texts = std::fs::read_to_string(input).unwrap();
    let output = std::fs::read_to_string(format!("{name}.out")).unwrap();
    let mut outcome = (0, 0, String::new());
    for (text, ids) in texts.split(SEPARATOR).zip(output.lines()) {
        let expected: Vec<u32> = ids.split_whitespace().map(|id| id.parse().unwrap()).collect();
        outcome.1 += 1;
        match tokenizer.encode_ordinary(text, false) {
            Ok(found) if found == expected => outcome.0 += 1,
            found if outcome.2.is_empty() => {
                let show = |ids: &[u32]| {
                    ids.iter()
                        .map(|&id| tokenizer.token_text(id).unwrap_or("?"))
                        .collect::<Vec<_>>()
                        .join(" ")
                };
                let found = found.map_or_else(|e| e.to_string(), |ids| show(&ids));
                outcome.2 = format!("{text:?}: {} but llama.cpp has {}", found, show(&expected));
            }
            _ => (),
        }
    }
    Ok(outcome)
}

#[test]
#[ignore = "needs vocabularies that are not part of the repository; TALLOW_VOCABS names their folder"]
fn whole_vocabularies_agree_with_llama_cpp() {
    let folder = std::env::var("TALLOW_VOCABS").expect("TALLOW_VOCABS names a folder");
    let mut inputs: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    inputs.retain(|path| path.extension().is_some_and(|extension| extension == "inp"));
    inputs.sort();
    assert!(!inputs.is_empty(), "no .inp files");
    let mut differ = 0;
    for input in &inputs {
        let name = input.file_name().unwrap().to_str().unwrap();
        match compare(input) {
            Ok((equal, all, _)) if equal == all => println!("{name}: all {all} equal"),
            Ok((equal, all, first)) => {
                differ += 1;
                println!("{name}: {equal} of {all} equal; {first}");
            }
            Err(error) => {
                differ += 1;
                println!("{name}: {error}");
            }
        }
    }
    assert_eq!(differ, 0, "of {} files", inputs.len());
}
