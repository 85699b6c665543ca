//! Tokenizers whose metadata is wrong: errors that say what, never a panic.
#![allow(clippy::unwrap_used, reason = "a panic is a failed test")]

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tallow_gguf::{Array, Metadata, Tokenizer, TokenizerOptions, Value};

fn texts(texts: &[&str]) -> Value {
    Value::Array(Array::String(texts.iter().map(|&text| text.to_owned()).collect()))
}

/// A small tokenizer of each kind, all from the same tokens.
fn metadata(model: &str) -> Metadata {
    let mut metadata = Metadata::new();
    metadata.insert("tokenizer.ggml.model", Value::String(model.to_owned()));
    let tokens = ["<unk>", "<s>", "</s>", "a", "b", "ab", "▁", "▁a", "▁ab", "<tool>"];
    metadata.insert("tokenizer.ggml.tokens", texts(&tokens));
    metadata
        .insert("tokenizer.ggml.token_type", Value::Array(Array::I32(vec![2, 3, 3, 1, 1, 1, 1, 1, 1, 4])));
    let scores = (0..10u8).map(|i| -f32::from(i)).collect();
    metadata.insert("tokenizer.ggml.scores", Value::Array(Array::F32(scores)));
    metadata.insert("tokenizer.ggml.merges", texts(&["a b", "▁ a", "▁ ab"]));
    metadata.insert("tokenizer.ggml.unknown_token_id", Value::U32(0));
    metadata.insert("tokenizer.ggml.precompiled_charsmap", Value::Array(Array::U8(charsmap())));
    metadata
}

/// Maps "b" to "ab": a root, and its one child with a value.
fn charsmap() -> Vec<u8> {
    let child = usize::from(b'b') ^ 1;
    let mut trie = vec![0u32; 256];
    // The root's children are at 1 ^ label; the child's value is at child ^ 3.
    trie[0] = 1 << 10;
    trie[child] = 3 << 10 | 1 << 8 | u32::from(b'b');
    trie[child ^ 3] = 1 << 31 | 1;
    let mut blob = (trie.len() as u32 * 4).to_le_bytes().to_vec();
    blob.extend(trie.iter().flat_map(|unit| unit.to_le_bytes()));
    blob.extend(b"\0ab\0");
    blob
}

const MODELS: [&str; 5] = ["gpt2", "gemma4", "llama", "t5", "bert"];

fn error(model: &str, key: &str, value: Value) -> String {
    let mut metadata = metadata(model);
    metadata.insert(key, value);
    Tokenizer::from_metadata(&metadata).unwrap_err().to_string()
}

#[test]
fn the_small_tokenizers_work() {
    for model in MODELS {
        let tokenizer = Tokenizer::from_metadata(&metadata(model)).unwrap();
        assert_eq!(tokenizer.kind(), model);
        let ids = tokenizer.encode_ordinary("ab<tool>", false).unwrap();
        let expected: &[u32] = match model {
            "gpt2" | "gemma4" => &[5, 9],
            // The map makes "aab" of it.
            "t5" => &[3, 5, 9],
            _ => &[8, 9],
        };
        assert_eq!(ids, expected, "{model}");
    }
}

#[test]
fn wrong_metadata_is_an_error_that_says_so() {
    for model in MODELS {
        let id = |id| error(model, "tokenizer.ggml.eos_token_id", id);
        assert!(id(Value::U32(10)).contains("eos_token_id is 10, but the vocabulary has 10 tokens"));
        assert!(id(Value::I32(-1)).contains("expected an integer that fits u32, found i32 -1"));
        assert!(id(Value::U64(u64::MAX)).contains("expected an integer that fits u32"));
        let tokens = |tokens: &[&str]| error(model, "tokenizer.ggml.tokens", texts(tokens));
        assert_eq!(tokens(&[]), "tokenizer: a vocabulary of 0 tokens");
        assert_eq!(tokens(&["a", "b", "a"]), "tokenizer: tokens 0 and 2 are both \"a\"");
        assert!(
            error(model, "tokenizer.ggml.tokens", Value::U32(1)).contains("expected an array of strings")
        );
        let kinds = |kinds| error(model, "tokenizer.ggml.token_type", Value::Array(Array::I32(kinds)));
        assert_eq!(kinds(vec![1]), "tokenizer: 10 tokens, but 1 token types");
        assert_eq!(kinds(vec![-7; 10]), "tokenizer: token \"<unk>\" has the unknown type -7");
    }
    for model in ["llama", "t5"] {
        let scores = error(model, "tokenizer.ggml.scores", Value::Array(Array::F32(vec![0.0])));
        assert_eq!(scores, "tokenizer: 10 tokens, but 1 scores");
    }
    for name in ["no_vocab", "none", "rwkv", ""] {
        let error = error("gpt2", "tokenizer.ggml.model", Value::String(name.to_owned()));
        assert!(error.contains(if name.starts_with('n') { "holds no vocabulary" } else { "supported are" }));
    }
    let options = TokenizerOptions { pre: Some("smollm".to_owned()) };
    assert_eq!(Tokenizer::with_options(&metadata("gpt2"), &options).unwrap().pre(), Some("smollm"));
    let error = Tokenizer::with_options(&metadata("llama"), &options).unwrap_err().to_string();
    assert_eq!(error, "tokenizer: kind llama has no pre-tokenizer, \"smollm\" was asked for");
}

/// Empty tokens get llama.cpp's names and stand in nobody's way.
#[test]
fn empty_tokens_are_named() {
    let mut metadata = metadata("gpt2");
    metadata.insert("tokenizer.ggml.tokens", texts(&["", "", "a", "b", "ab", "▁", "▁a", "▁ab", "c", "d"]));
    metadata
        .insert("tokenizer.ggml.token_type", Value::Array(Array::I32(vec![3, 4, 1, 1, 1, 1, 1, 1, 1, 1])));
    let tokenizer = Tokenizer::from_metadata(&metadata).unwrap();
    assert_eq!(tokenizer.token_text(1), Some("[EMPTY_1]"));
    assert_eq!(tokenizer.encode("ab", false).unwrap(), [4]);
}

#[test]
fn a_broken_charsmap_is_an_error() {
    let whole = charsmap();
    let read = |blob: &[u8]| {
        let mut metadata = metadata("t5");
        metadata.insert("tokenizer.ggml.precompiled_charsmap", Value::Array(Array::U8(blob.to_vec())));
        Tokenizer::from_metadata(&metadata)
    };
    for length in 1..whole.len() {
        // Cut within the replacements, it may still be whole ones.
        if whole[length - 1] != 0 || length < whole.len() - 3 {
            assert!(read(&whole[..length]).is_err(), "{length} bytes");
        }
    }
    assert!(read(&[]).is_ok());
    let huge = [&u32::MAX.to_le_bytes()[..], &[0; 64]].concat();
    assert!(read(&huge).unwrap_err().to_string().contains("a broken charsmap of 68 bytes"));
    // A trie that leads outside, and replacements outside or in the midst of a character.
    let mut rng = StdRng::seed_from_u64(3);
    let mut refused = 0;
    for _ in 0..3000 {
        let mut blob = whole.clone();
        for _ in 0..rng.random_range(1..6) {
            let used =
                [4, 5, 6, 7, 4 + 99 * 4, 5 + 99 * 4, 6 + 99 * 4, 4 + 96 * 4, 5 + 96 * 4, 1028, 1029, 1030];
            let at = if rng.random() {
                used[rng.random_range(0..used.len())]
            } else {
                rng.random_range(0..blob.len())
            };
            blob[at] = rng.random();
        }
        match read(&blob) {
            Ok(tokenizer) => refused += usize::from(tokenizer.encode("bab aéb日", true).is_err()),
            Err(_) => refused += 1,
        }
    }
    assert!(refused > 300, "{refused}");
}

/// Values of any type and size under every key of a tokenizer.
#[test]
fn random_metadata_never_panics() {
    let keys = [
        "model",
        "pre",
        "tokens",
        "token_type",
        "scores",
        "merges",
        "bos_token_id",
        "eos_token_id",
        "eot_token_id",
        "unknown_token_id",
        "seperator_token_id",
        "fim_pad_token_id",
        "add_bos_token",
        "add_eos_token",
        "add_space_prefix",
        "remove_extra_whitespaces",
        "precompiled_charsmap",
        "normalizer.lowercase",
    ];
    let mut rng = StdRng::seed_from_u64(4);
    let mut built = 0;
    for i in 0..20_000 {
        let mut metadata = metadata(MODELS[i % MODELS.len()]);
        for _ in 0..rng.random_range(1..4) {
            let key = format!("tokenizer.ggml.{}", keys[rng.random_range(0..keys.len())]);
            if rng.random_bool(0.2) {
                metadata.remove(&key);
            } else {
                let value = random_value(&mut rng);
                metadata.insert(key, value);
            }
        }
        if let Ok(tokenizer) = Tokenizer::from_metadata(&metadata) {
            built += 1;
            for text in ["ab <s>b<tool>\n", "", "é日\u{0}x"] {
                let ids = tokenizer.encode(text, true).unwrap_or_default();
                tokenizer.decode(&ids);
                let _ = tokenizer.encode_ordinary(text, true);
            }
        }
    }
    assert!(built > 3000, "{built}");
}

fn random_value(rng: &mut StdRng) -> Value {
    let words = [
        "a", "b", "ab", "▁", "", "a b", " ", "  a", "a  b", "<0x41>", "é", "</s>", "\0", "gpt-2", "smollm",
        "t5", "bert",
    ];
    let count = rng.random_range(0..14);
    match rng.random_range(0..9) {
        0 => Value::U32(rng.random_range(0..12)),
        1 => Value::I64(rng.random()),
        2 => Value::Bool(rng.random()),
        3 => Value::String(words[rng.random_range(0..words.len())].to_owned()),
        4 => texts(&(0..count).map(|_| words[rng.random_range(0..words.len())]).collect::<Vec<_>>()),
        5 => Value::Array(Array::I32((0..count).map(|_| rng.random_range(-1..8)).collect())),
        6 => {
            let odd = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0, -0.0, -1.0, 3e38];
            Value::Array(Array::F32((0..count).map(|_| odd[rng.random_range(0..odd.len())]).collect()))
        }
        7 => Value::Array(Array::U8((0..count).map(|_| rng.random()).collect())),
        _ => Value::F32(1.0),
    }
}
