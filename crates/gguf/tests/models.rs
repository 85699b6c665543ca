//! The models of this repository: what their files say, their tokenizers, and writing them again.

#![allow(clippy::unwrap_used, reason = "a panic is a failed test")]

use std::path::{Path, PathBuf};

use tallow_gguf::{GgufFile, GgufWriter, TensorSpec, Tokenizer};

fn models() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models")
}

/// The model files, by name, and the one that is made from them.
fn files() -> Vec<(String, PathBuf)> {
    let mut files: Vec<_> = std::fs::read_dir(models())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "gguf"))
        .map(|path| (path.file_stem().unwrap().to_str().unwrap().to_owned(), path))
        .collect();
    files.sort();
    assert!(files.len() >= 2, "the repository has at least two models, found {files:?}");
    for name in ["storyteller-nano-Q4_0", "storyteller-nano-Q4_K_M"] {
        files.push((name.into(), tallow_testmodels::model(name)));
    }
    files
}

#[test]
fn heads_say_what_the_models_are() {
    for (name, path) in files() {
        let file = GgufFile::open(path).unwrap();
        let metadata = file.metadata();
        assert_eq!(file.version(), 3);
        assert_eq!(metadata.get_str("general.architecture").unwrap(), "llama");
        let width = metadata.get_u32("llama.embedding_length").unwrap() as usize;
        let embedding = file.require("token_embd.weight").unwrap();
        assert_eq!(embedding.shape, [8192, width]);
        for tensor in file.tensors() {
            let data = file.tensor_data(tensor).unwrap();
            assert_eq!(data.len(), tensor.format().unwrap().row_bytes(tensor.elements()).unwrap());
            assert!(data.iter().any(|&byte| byte != 0), "{name}: {} is all zeros", tensor.name);
        }
    }
}

#[test]
fn token_ids_are_the_expected_ones() {
    let mut prompts = 0;
    for entry in std::fs::read_dir(models().join("expected")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|e| e != "json") {
            continue;
        }
        // Models that are made from others carry the others' tokenizer.
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let model = models().join(format!("{name}.gguf"));
        let model = if model.exists() { model } else { models().join("storyteller-nano-f16.gguf") };
        let file = GgufFile::open(model).unwrap();
        let tokenizer = Tokenizer::from_metadata(file.metadata()).unwrap();
        let rows: serde_json::Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        for row in rows.as_array().unwrap() {
            let ids = |key: &str| -> Vec<u32> {
                row[key].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
            };
            let prompt = row["prompt"].as_str().unwrap();
            assert_eq!(tokenizer.encode(prompt, true).unwrap(), ids("tokens"), "{name}: {prompt:?}");
            assert_eq!(tokenizer.decode(&ids("tokens")), prompt);
            let greedy = ids("greedy_tokens");
            let text = row["greedy_text"].as_str().unwrap();
            assert_eq!(tokenizer.decode(&greedy), text);
            let mut stream = tokenizer.decode_stream();
            let streamed: String = greedy.iter().filter_map(|&id| stream.push(id)).collect();
            assert_eq!(streamed + &stream.finish().unwrap_or_default(), text);
            prompts += 1;
        }
    }
    assert!(prompts >= 24, "only {prompts} prompts were there");
}

#[test]
fn special_tokens_are_found_only_where_wanted() {
    let file = GgufFile::open(models().join("storyteller-nano-f16.gguf")).unwrap();
    let tokenizer = Tokenizer::from_metadata(file.metadata()).unwrap();
    assert_eq!((tokenizer.bos(), tokenizer.eos(), tokenizer.eot()), (Some(0), Some(1), None));
    assert!(tokenizer.adds_bos() && tokenizer.is_control(0) && tokenizer.is_end(1) && !tokenizer.is_end(0));
    assert_eq!(tokenizer.chat_template(), None);
    assert_eq!(tokenizer.vocab_size(), 8192);
    let text = "a<|end_of_text|>b";
    let ids = tokenizer.encode(text, false).unwrap();
    assert_eq!(ids.len(), 3);
    assert_eq!(ids[1], 1);
    assert_eq!(tokenizer.decode(&ids), "ab");
    let ordinary = tokenizer.encode_ordinary(text, false).unwrap();
    assert!(!ordinary.contains(&1));
    assert_eq!(tokenizer.decode(&ordinary), text);
    assert_eq!(tokenizer.encode("", true).unwrap(), [0]);
    assert_eq!(tokenizer.decode(&[8192, u32::MAX]), "");
}

#[test]
fn any_text_survives_encoding_and_streaming() {
    let file = GgufFile::open(models().join("storyteller-nano-f16.gguf")).unwrap();
    let tokenizer = Tokenizer::from_metadata(file.metadata()).unwrap();
    let long = "   ".repeat(20_000) + &"word ".repeat(5_000) + &"x".repeat(50_000);
    for text in ["", " ", "  a  b\t\r\n\n", "日本語 🦀👩‍👩‍👧 é e\u{301}", "\u{0}\u{7f}\u{fffd}", &long]
    {
        let ids = tokenizer.encode(text, false).unwrap();
        assert_eq!(tokenizer.decode(&ids), text);
        let mut stream = tokenizer.decode_stream();
        let streamed: String = ids.iter().filter_map(|&id| stream.push(id)).collect();
        assert_eq!(streamed, text);
        assert_eq!(stream.finish(), None);
    }
}

#[test]
fn writing_a_model_again_gives_the_same_bytes() {
    for (name, path) in files() {
        let original = std::fs::read(&path).unwrap();
        let file = GgufFile::open(&path).unwrap();
        let specs = file
            .tensors()
            .map(|t| TensorSpec { name: t.name.clone(), shape: t.shape.clone(), format: t.format().unwrap() })
            .collect();
        let mut writer = GgufWriter::create(Vec::new(), file.metadata(), specs).unwrap();
        for tensor in file.tensors() {
            writer.tensor(&tensor.name, file.tensor_data(tensor).unwrap()).unwrap();
        }
        let written = writer.finish().unwrap();
        assert!(written == original, "{name}: {} bytes, the original has {}", written.len(), original.len());
    }
}
