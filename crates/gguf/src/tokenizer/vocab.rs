//! The tokens: their texts, their kinds, and the bytes that they stand for.

use std::collections::HashMap;

use super::byte_level::token_bytes as byte_level_bytes;
use crate::{GgufError, Metadata, optional};

/// What a token is for (`tokenizer.ggml.token_type`, `enum llama_token_type`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TokenKind {
    /// Ordinary text.
    Normal,
    /// Stands for what the vocabulary cannot spell.
    Unknown,
    /// Marks a place, such as the begin of a text; has no text of its own.
    Control,
    /// Text that is always one token.
    UserDefined,
    /// Reserved.
    Unused,
    /// One byte, spelled `<0x0A>`.
    Byte,
}

/// How the texts of ordinary tokens spell what they stand for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TokenSpelling {
    /// A character is a byte (GPT-2's table).
    Bytes,
    /// UTF-8; a space is `▁` (U+2581).
    Escaped,
}

/// All tokens, by id.
pub struct Vocab {
    tokens: Vec<Token>,
    ids: HashMap<String, u32>,
}

struct Token {
    text: String,
    kind: TokenKind,
    /// What decoding gives.
    bytes: Box<[u8]>,
}

impl Vocab {
    /// Reads `tokenizer.ggml.tokens` and `tokenizer.ggml.token_type`. What tokens stand for follows with
    /// [`Vocab::spell`].
    pub fn from_metadata(metadata: &Metadata) -> Result<Vocab, GgufError> {
        let texts = metadata.get_strs("tokenizer.ggml.tokens")?;
        if texts.is_empty() || texts.len() > i32::MAX as usize {
            return Err(GgufError::Tokenizer(format!("a vocabulary of {} tokens", texts.len())));
        }
        let kinds = optional(metadata.get_i32s("tokenizer.ggml.token_type"))?;
        if let Some(kinds) = &kinds
            && kinds.len() < texts.len()
        {
            let (tokens, kinds) = (texts.len(), kinds.len());
            return Err(GgufError::Tokenizer(format!("{tokens} tokens, but {kinds} token types")));
        }
        let mut tokens = Vec::with_capacity(texts.len());
        let mut ids = HashMap::with_capacity(texts.len());
        for (id, text) in texts.iter().enumerate() {
            let kind = kinds.as_ref().map_or(Ok(TokenKind::Normal), |kinds| token_kind(kinds[id], text))?;
            // The name that llama.cpp gives it; an empty text can occur nowhere.
            let text = if text.is_empty() { format!("[EMPTY_{id}]") } else { text.clone() };
            if let Some(other) = ids.insert(text.clone(), id as u32) {
                return Err(GgufError::Tokenizer(format!("tokens {other} and {id} are both {text:?}")));
            }
            tokens.push(Token { text, kind, bytes: Box::default() });
        }
        Ok(Vocab { tokens, ids })
    }

    /// Fills in what each token stands for, once the kinds are final.
    pub fn spell(&mut self, spelling: TokenSpelling) {
        for token in &mut self.tokens {
            let text = token.text.as_str();
            let bytes = match (token.kind, spelling) {
                (TokenKind::Control | TokenKind::Unknown, _) => Vec::new(),
                (TokenKind::UserDefined, _) => text.as_bytes().to_vec(),
                (TokenKind::Byte, _) if byte_of(text).is_some() => byte_of(text).into_iter().collect(),
                (TokenKind::Normal | TokenKind::Unused | TokenKind::Byte, TokenSpelling::Bytes) => {
                    byte_level_bytes(text)
                }
                (TokenKind::Normal | TokenKind::Unused | TokenKind::Byte, TokenSpelling::Escaped) => {
                    text.replace('\u{2581}', " ").into_bytes()
                }
            };
            token.bytes = bytes.into();
        }
    }

    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Ids, texts and kinds of all tokens.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &str, TokenKind)> {
        (0..).zip(&self.tokens).map(|(id, token)| (id, token.text.as_str(), token.kind))
    }

    /// The id of a text.
    pub fn id(&self, text: &str) -> Option<u32> {
        self.ids.get(text).copied()
    }

    /// The id of a text that encoding may give for ordinary text: what a user typed is no control token.
    pub fn ordinary_id(&self, text: &str) -> Option<u32> {
        self.id(text).filter(|&id| self.kind(id) != Some(TokenKind::Control))
    }

    /// The ids of `<0x00>` to `<0xFF>`.
    pub fn byte_ids(&self) -> Vec<Option<u32>> {
        (0..=u8::MAX).map(|byte| self.id(&format!("<0x{byte:02X}>"))).collect()
    }

    /// A token as the vocabulary spells it.
    pub fn text(&self, id: u32) -> Option<&str> {
        self.tokens.get(id as usize).map(|token| token.text.as_str())
    }

    /// What a token is for.
    pub fn kind(&self, id: u32) -> Option<TokenKind> {
        self.tokens.get(id as usize).map(|token| token.kind)
    }

    /// Corrects what a token is for.
    pub fn set_kind(&mut self, id: u32, kind: TokenKind) {
        if let Some(token) = self.tokens.get_mut(id as usize) {
            token.kind = kind;
        }
    }

    /// What decoding a token gives.
    pub fn bytes(&self, id: u32) -> &[u8] {
        self.tokens.get(id as usize).map_or(&[], |token| &token.bytes)
    }

    /// The token id that a metadata key holds, if the key is there.
    pub fn id_at(&self, metadata: &Metadata, key: &str) -> Result<Option<u32>, GgufError> {
        let id = optional(metadata.get_u32(key))?;
        match id {
            Some(id) if id as usize >= self.len() => Err(GgufError::Tokenizer(format!(
                "{key} is {id}, but the vocabulary has {} tokens",
                self.len()
            ))),
            id => Ok(id),
        }
    }

    /// `tokenizer.ggml.scores`: one score a token.
    pub fn scores(&self, metadata: &Metadata) -> Result<Vec<f32>, GgufError> {
        let key = "tokenizer.ggml.scores";
        let scores: Vec<f32> = match metadata.get_f32s(key) {
            Ok(scores) => scores.to_vec(),
            // Some converters write whole numbers.
            Err(error) => match metadata.get_i32s(key) {
                Ok(scores) => scores.into_iter().map(|score| score as f32).collect(),
                Err(_) => return Err(error),
            },
        };
        if scores.len() < self.len() {
            let (tokens, scores) = (self.len(), scores.len());
            return Err(GgufError::Tokenizer(format!("{tokens} tokens, but {scores} scores")));
        }
        Ok(scores)
    }
}

fn token_kind(number: i32, text: &str) -> Result<TokenKind, GgufError> {
    Ok(match number {
        1 => TokenKind::Normal,
        2 => TokenKind::Unknown,
        3 => TokenKind::Control,
        4 => TokenKind::UserDefined,
        0 | 5 => TokenKind::Unused,
        6 => TokenKind::Byte,
        other => return Err(GgufError::Tokenizer(format!("token {text:?} has the unknown type {other}"))),
    })
}

/// The byte that a token like `<0x0A>` spells.
fn byte_of(text: &str) -> Option<u8> {
    let hex = text.strip_prefix("<0x")?.strip_suffix('>')?;
    if hex.len() == 2 { u8::from_str_radix(hex, 16).ok() } else { None }
}
