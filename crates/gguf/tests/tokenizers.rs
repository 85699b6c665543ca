//! Tokenizers that no model of this repository has.
#![allow(clippy::unwrap_used, reason = "a panic is a failed test")]

use tallow_gguf::{Array, Metadata, Tokenizer, Value};

fn strings(texts: &[&str]) -> Value {
    Value::Array(Array::String(texts.iter().map(|&text| text.to_owned()).collect()))
}

fn text(value: &str) -> Value {
    Value::String(value.to_owned())
}

/// A SentencePiece vocabulary that the sentencepiece library trained (`scripts/spm_fixture.py`),
/// and the texts that it encoded.
fn sentence_piece() -> (Metadata, serde_json::Value) {
    let fixture: serde_json::Value = serde_json::from_str(include_str!("fixtures/spm.json")).unwrap();
    let list = |key: &str| fixture[key].as_array().unwrap().clone();
    let mut metadata = Metadata::new();
    metadata.insert("tokenizer.ggml.model", text("llama"));
    let tokens = list("tokens").iter().map(|t| t.as_str().unwrap().to_owned()).collect();
    metadata.insert("tokenizer.ggml.tokens", Value::Array(Array::String(tokens)));
    let scores = list("scores").iter().map(|s| s.as_f64().unwrap() as f32).collect();
    metadata.insert("tokenizer.ggml.scores", Value::Array(Array::F32(scores)));
    let kinds = list("kinds").iter().map(|k| k.as_i64().unwrap() as i32).collect();
    metadata.insert("tokenizer.ggml.token_type", Value::Array(Array::I32(kinds)));
    metadata.insert("tokenizer.ggml.bos_token_id", Value::U32(1));
    metadata.insert("tokenizer.ggml.eos_token_id", Value::U32(2));
    (metadata, fixture)
}

#[test]
fn sentence_piece_agrees_with_the_library() {
    let (metadata, fixture) = sentence_piece();
    let tokenizer = Tokenizer::from_metadata(&metadata).unwrap();
    for case in fixture["texts"].as_array().unwrap() {
        let text = case["text"].as_str().unwrap();
        let ids: Vec<u32> =
            case["ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect();
        assert_eq!(tokenizer.encode(text, false).unwrap(), ids, "{text:?}");
        assert_eq!(tokenizer.decode(&ids), case["decoded"].as_str().unwrap(), "{text:?}");
        // A model of this kind begins with its begin token unless the file says otherwise.
        assert_eq!(tokenizer.encode(text, true).unwrap(), [&[1], ids.as_slice()].concat());
    }
}

#[test]
fn a_space_is_put_in_front_only_where_a_text_begins() {
    let (mut metadata, _) = sentence_piece();
    let tokenizer = Tokenizer::from_metadata(&metadata).unwrap();
    let the = tokenizer.token_id("▁the").unwrap();
    assert_eq!(tokenizer.encode("the</s>the", true).unwrap(), [1, the, 2, the]);
    assert!(tokenizer.is_end(2));
    // A stream continues a text, whose words are set apart.
    let mut stream = tokenizer.decode_stream();
    assert_eq!(stream.push(the).as_deref(), Some(" the"));
    metadata.insert("tokenizer.ggml.add_space_prefix", Value::Bool(false));
    let tokenizer = Tokenizer::from_metadata(&metadata).unwrap();
    assert_eq!(tokenizer.encode(" the", false).unwrap(), [the]);
    assert_eq!(tokenizer.decode(&[the]), " the");
    assert_ne!(tokenizer.encode("the", false).unwrap(), [the]);
}

#[test]
fn equal_scores_join_from_the_left() {
    let mut metadata = Metadata::new();
    metadata.insert("tokenizer.ggml.model", text("llama"));
    metadata.insert("tokenizer.ggml.tokens", strings(&["<unk>", "a", "b", "aa", "ab"]));
    metadata.insert("tokenizer.ggml.scores", Value::Array(Array::F32(vec![0.0, 0.0, 0.0, -1.0, -1.0])));
    metadata.insert("tokenizer.ggml.token_type", Value::Array(Array::I32(vec![2, 1, 1, 1, 1])));
    metadata.insert("tokenizer.ggml.add_space_prefix", Value::Bool(false));
    metadata.insert("tokenizer.ggml.unknown_token_id", Value::U32(0));
    let tokenizer = Tokenizer::from_metadata(&metadata).unwrap();
    assert_eq!(tokenizer.encode("aaab", false).unwrap(), [3, 4]);
    assert_eq!(tokenizer.encode("aab", false).unwrap(), [3, 2]);
    // No bytes to spell it with.
    assert_eq!(tokenizer.encode("aéa", false).unwrap(), [1, 0, 1]);
}

/// Byte-level BPE with tokens for printable ASCII, "ab", "abc", and a chat format's tokens.
fn byte_level(pre: &str) -> Metadata {
    let mut tokens: Vec<String> = (0x21..0x7fu8).map(|b| char::from(b).to_string()).collect();
    tokens.extend(["Ġ", "ab", "Ġab", "abcd", "<|im_start|>", "<|im_end|>", "<tool>"].map(str::to_owned));
    let mut kinds = vec![1; tokens.len() - 3];
    kinds.extend([3, 3, 4]);
    let mut metadata = Metadata::new();
    metadata.insert("tokenizer.ggml.model", text("gpt2"));
    metadata.insert("tokenizer.ggml.pre", text(pre));
    metadata.insert("tokenizer.ggml.tokens", Value::Array(Array::String(tokens)));
    metadata.insert("tokenizer.ggml.token_type", Value::Array(Array::I32(kinds)));
    metadata.insert("tokenizer.ggml.merges", strings(&["a b", "Ġ ab"]));
    metadata.insert("tokenizer.chat_template", text("{{ messages }}"));
    metadata
}

fn pieces(tokenizer: &Tokenizer, text: &str) -> Vec<String> {
    let ids = tokenizer.encode(text, true).unwrap();
    ids.into_iter().map(|id| tokenizer.token_text(id).unwrap().to_owned()).collect()
}

#[test]
fn kinds_of_byte_level_tokenizers_differ_as_their_models_do() {
    let mut metadata = byte_level("gpt-2");
    let tokenizer = Tokenizer::from_metadata(&metadata).unwrap();
    assert_eq!(pieces(&tokenizer, "abcd ab"), ["ab", "c", "d", "Ġab"]);
    assert_eq!(tokenizer.chat_template(), Some("{{ messages }}"));

    // A word that is a token is taken whole, though no merge leads there; a begin token is added.
    metadata = byte_level("llama-bpe");
    let begin = 98;
    metadata.insert("tokenizer.ggml.bos_token_id", Value::I32(begin));
    let tokenizer = Tokenizer::from_metadata(&metadata).unwrap();
    assert_eq!(pieces(&tokenizer, "abcd ab"), ["<|im_start|>", "abcd", "Ġab"]);

    let tokenizer = Tokenizer::from_metadata(&byte_level("qwen2")).unwrap();
    assert_eq!(pieces(&tokenizer, "abcd ab"), ["ab", "c", "d", "Ġab"]);
}

#[test]
fn control_and_user_defined_tokens_are_told_apart() {
    let tokenizer = Tokenizer::from_metadata(&byte_level("qwen2")).unwrap();
    let chat = "<|im_start|>ab<tool><|im_end|>";
    assert_eq!(pieces(&tokenizer, chat), ["<|im_start|>", "ab", "<tool>", "<|im_end|>"]);
    let ids = tokenizer.encode(chat, false).unwrap();
    assert_eq!(tokenizer.decode(&ids), "ab<tool>");
    assert!(tokenizer.is_end(ids[3]) && !tokenizer.is_end(ids[0]));
    let ordinary = tokenizer.encode_ordinary(chat, false).unwrap();
    assert!(ordinary.contains(&ids[2]) && !ordinary.contains(&ids[0]) && !ordinary.contains(&ids[3]));
    assert_eq!(tokenizer.decode(&ordinary), chat);
}

#[test]
fn inconsistent_metadata_is_an_error() {
    let error = |change: &dyn Fn(&mut Metadata)| {
        let mut metadata = byte_level("gpt-2");
        change(&mut metadata);
        Tokenizer::from_metadata(&metadata).unwrap_err().to_string()
    };
    let set = |key: &'static str, value: Value| {
        error(&move |metadata| {
            metadata.insert(key, value.clone());
        })
    };
    assert_eq!(
        set("tokenizer.ggml.model", text("rwkv")),
        "tokenizer tokenizer.ggml.model = \"rwkv\" is not supported; supported are gpt2, gemma4, llama, t5 and bert"
    );
    assert_eq!(
        set("tokenizer.ggml.pre", text("qwen3")),
        "tokenizer tokenizer.ggml.pre = \"qwen3\" is not supported; the nearest names are qwen2, qwen35, \
         gpt-2; --pre NAME picks one"
    );
    assert_eq!(
        set("tokenizer.ggml.token_type", Value::Array(Array::I32(vec![1]))),
        "tokenizer: 101 tokens, but 1 token types"
    );
    assert_eq!(
        set("tokenizer.ggml.eos_token_id", Value::U32(101)),
        "tokenizer: tokenizer.ggml.eos_token_id is 101, but the vocabulary has 101 tokens"
    );
    assert_eq!(set("tokenizer.ggml.merges", strings(&["ab"])), "tokenizer: merge \"ab\" is not two tokens");
    assert!(set("tokenizer.ggml.merges", strings(&["a zz"])).contains("zz"));
    let missing = error(&|metadata| {
        metadata.remove("tokenizer.ggml.merges");
    });
    assert_eq!(missing, "metadata has no key tokenizer.ggml.merges");
}

/// llama.cpp leaves such bytes out, and merges nothing across them.
#[test]
fn bytes_without_a_token_are_left_out() {
    let tokenizer = Tokenizer::from_metadata(&byte_level("gpt-2")).unwrap();
    let ids = |text: &str| tokenizer.encode(text, false).unwrap();
    assert_eq!(ids("ab\u{4}"), ids("ab"));
    assert_eq!(tokenizer.decode(&ids("a\u{4}b")), "ab");
    assert_eq!(ids("a\u{4}b"), [ids("a"), ids("b")].concat());
    assert!(ids("\u{4}").is_empty());
}
