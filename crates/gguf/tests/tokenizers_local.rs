//! Comparison with ids that llama.cpp made, over whole vocabularies that are too large for this repository.
//!
//! `TALLOW_VOCABS` names a folder with `X.gguf`, `X.gguf.inp` and `X.gguf.out` as in llama.cpp's `models/`:
//! texts separated by a line, and their ids without special tokens. `X.gguf+NAME.inp` stands for the
//! pre-tokenizer NAME in place of the file's own; `X.gguf.ends` has the ids that end generation, and
//! `X.gguf.special` those of the texts with begin, end and special tokens. `scripts/tokenizer_fixtures.py` writes more of them.
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
    if let Ok(ends) = std::fs::read_to_string(format!("{name}.ends")) {
        let found = (0..tokenizer.vocab_size() as u32).filter(|&id| tokenizer.is_end(id));
        let found = found.map(|id| id.to_string()).collect::<Vec<_>>().join(" ");
        if found != ends.trim_end() {
            return Err(format!("generation ends at {found}, in llama.cpp at {}", ends.trim_end()));
        }
    }
    let texts = std::fs::read_to_string(input).unwrap();
    let texts: Vec<&str> = texts.split(SEPARATOR).collect();
    let ordinary = rows(&format!("{name}.out")).expect("an .out file");
    let special = rows(&format!("{name}.special")).unwrap_or_default();
    let (mut equal, mut first) = (0, String::new());
    for (i, text) in texts.iter().enumerate() {
        let found = [tokenizer.encode_ordinary(text, false), tokenizer.encode(text, true)];
        let expected = [ordinary.get(i), special.get(i)];
        let differs = found.iter().zip(expected).find(|(found, expected)| {
            expected.is_some_and(|expected| found.as_ref().map_or(true, |found| found != expected))
        });
        match differs {
            None => equal += 1,
            Some((found, expected)) if first.is_empty() => {
                first = format!("{text:?}: {found:?} but llama.cpp has {expected:?}");
            }
            Some(_) => (),
        }
    }
    Ok((equal, texts.len(), first))
}

/// The ids of each line of a file, if there is one.
fn rows(path: &str) -> Option<Vec<Vec<u32>>> {
    let text = std::fs::read_to_string(path).ok()?;
    Some(text.lines().map(|row| row.split_whitespace().map(|id| id.parse().unwrap()).collect()).collect())
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
