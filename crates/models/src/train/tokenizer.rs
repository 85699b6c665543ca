//! Tokenizers from files: that of a GGUF file, or a `tokenizer.json`, as the metadata that an exported model carries.

use std::path::{Path, PathBuf};

use serde_json::Value as Json;
use tallow_gguf::{Array, GgufFile, Metadata, Tokenizer, Value};

use super::error::TrainError;
use crate::error::Result;

/// Names of tokens that begin a text, in the order in which they are looked for.
const BEGIN: [&str; 4] = ["<|begin_of_text|>", "<s>", "<|startoftext|>", "<|endoftext|>"];
/// Names of tokens that end a text.
const END: [&str; 3] = ["<|end_of_text|>", "</s>", "<|endoftext|>"];
/// Names of tokens that fill up a batch.
const PADDING: [&str; 2] = ["<|pad|>", "<pad>"];
/// Kinds of tokens in `tokenizer.ggml.token_type`.
const NORMAL: i32 = 1;
const CONTROL: i32 = 3;

/// A tokenizer with the metadata that describes it.
pub struct TokenizerFile {
    /// The tokenizer.
    pub tokenizer: Tokenizer,
    /// The keys `tokenizer.*` of a GGUF file.
    pub metadata: Metadata,
}

impl TokenizerFile {
    /// Reads a GGUF file's tokenizer, or a `tokenizer.json` whose model is byte-level BPE with GPT-2's pre-tokenizer.
    ///
    /// # Errors
    /// When the file cannot be read, or is neither.
    pub fn open(path: &Path) -> Result<TokenizerFile> {
        let is_json = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("json"));
        let metadata = if is_json { of_json(path)? } else { of_gguf(path)? };
        let tokenizer = Tokenizer::from_metadata(&metadata)
            .map_err(|error| TrainError::Tokenizer { path: path.into(), why: error.to_string() })?;
        Ok(TokenizerFile { tokenizer, metadata })
    }
}

fn of_gguf(path: &Path) -> Result<Metadata> {
    let file = GgufFile::open(path)?;
    let mut metadata = Metadata::new();
    for (key, value) in file.metadata().iter().filter(|(key, _)| key.starts_with("tokenizer.")) {
        metadata.insert(key, value.clone());
    }
    Ok(metadata)
}

fn of_json(path: &Path) -> Result<Metadata> {
    let text = std::fs::read(path).map_err(|source| TrainError::Read { path: path.into(), source })?;
    let parsed = serde_json::from_slice(&text).map_err(|error| error.to_string());
    let made = parsed.and_then(|json| metadata_of(&json));
    Ok(made.map_err(|why| TrainError::Tokenizer { path: PathBuf::from(path), why })?)
}

/// The metadata of a `tokenizer.json`.
fn metadata_of(json: &Json) -> Result<Metadata, String> {
    let is = |value: &Json, name: &str| value["type"].as_str() == Some(name);
    if !is(&json["model"], "BPE") || !is(&json["pre_tokenizer"], "ByteLevel") || !json["normalizer"].is_null()
    {
        return Err(
            "only byte-level BPE without a normalizer is supported; a GGUF file may hold others".into()
        );
    }
    let vocabulary = json["model"]["vocab"].as_object().ok_or("model.vocab is missing")?;
    let mut named: Vec<(&str, u64, i32)> = vec![];
    for (text, id) in vocabulary {
        named.push((text, id.as_u64().ok_or("a token has no id")?, NORMAL));
    }
    for token in json["added_tokens"].as_array().into_iter().flatten() {
        let (text, id) = (token["content"].as_str(), token["id"].as_u64());
        let (text, id) = text.zip(id).ok_or("an added token has no content or no id")?;
        named.push((text, id, CONTROL));
    }
    let size = named.iter().map(|(_, id, _)| id + 1).max().unwrap_or(0);
    // An id beyond the number of tokens leaves a gap, and must not take memory.
    if size > named.len() as u64 {
        return Err(format!("{} tokens have ids up to {}", named.len(), size - 1));
    }
    let (mut texts, mut kinds) = (vec![None; size as usize], vec![NORMAL; size as usize]);
    for (text, id, kind) in named {
        texts[id as usize] = Some(text.to_owned());
        kinds[id as usize] = kind;
    }
    let missing = texts.iter().position(Option::is_none);
    if let Some(id) = missing {
        return Err(format!("no token has id {id}"));
    }
    let texts: Vec<String> = texts.into_iter().flatten().collect();
    let merges = json["model"]["merges"].as_array().ok_or("model.merges is missing")?;
    let merges: Option<Vec<String>> = merges.iter().map(merge).collect();
    let find = |names: &[&str]| names.iter().find_map(|name| texts.iter().position(|text| text == name));
    let special = [("bos", find(&BEGIN)), ("eos", find(&END)), ("padding", find(&PADDING))];
    let mut metadata = Metadata::new();
    metadata.insert("tokenizer.ggml.model", Value::String("gpt2".into()));
    metadata.insert("tokenizer.ggml.pre", Value::String("gpt-2".into()));
    metadata.insert("tokenizer.ggml.tokens", Value::Array(Array::String(texts.clone())));
    metadata.insert("tokenizer.ggml.token_type", Value::Array(Array::I32(kinds)));
    let merges = merges.ok_or("a merge is neither a text nor two")?;
    metadata.insert("tokenizer.ggml.merges", Value::Array(Array::String(merges)));
    for (role, id) in special {
        if let Some(id) = id {
            metadata.insert(format!("tokenizer.ggml.{role}_token_id"), Value::U32(id as u32));
        }
    }
    metadata.insert("tokenizer.ggml.add_bos_token", Value::Bool(special[0].1.is_some()));
    metadata.insert("tokenizer.ggml.add_eos_token", Value::Bool(false));
    metadata.insert("tokenizer.ggml.add_space_prefix", Value::Bool(false));
    Ok(metadata)
}

/// A merge, `"a b"` or `["a", "b"]`.
fn merge(value: &Json) -> Option<String> {
    match value.as_array().map(Vec::as_slice) {
        Some([first, second]) => Some(format!("{} {}", first.as_str()?, second.as_str()?)),
        _ => value.as_str().map(str::to_owned),
    }
}
