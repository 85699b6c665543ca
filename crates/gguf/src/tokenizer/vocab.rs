//! The tokens: their texts, their kinds, and the bytes that they stand for.

use std::collections::HashMap;

use super::bpe::token_bytes as byte_level_bytes;
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
    /// The vocabulary of a `gpt2` tokenizer: a token's characters are bytes in disguise.
    pub fn byte_level(metadata: &Metadata) -> Result<Vocab, GgufError> {
        Vocab::new(metadata, |text, kind| match kind {
            TokenKind::Normal | TokenKind::Unused | TokenKind::Byte => byte_level_bytes(text),
            TokenKind::UserDefined => text.as_bytes().to_vec(),
            TokenKind::Control | TokenKind::Unknown => Vec::new(),
        })
    }

    /// The vocabulary of a `llama` tokenizer: a space is `▁` (U+2581), a byte is `<0x0A>`.
    pub fn sentence_piece(metadata: &Metadata) -> Result<Vocab, GgufError> {
        Vocab::new(metadata, |text, kind| match kind {
            TokenKind::Normal | TokenKind::Unused => text.replace('\u{2581}', " ").into_bytes(),
            TokenKind::Byte => match byte_of(text) {
                Some(byte) => vec![byte],
                None => text.as_bytes().to_vec(),
            },
            TokenKind::UserDefined => text.as_bytes().to_vec(),
            TokenKind::Control | TokenKind::Unknown => Vec::new(),
        })
    }

    fn new(metadata: &Metadata, bytes: impl Fn(&str, TokenKind) -> Vec<u8>) -> Result<Vocab, GgufError> {
        let texts = metadata.get_strs("tokenizer.ggml.tokens")?;
        if texts.is_empty() || texts.len() > i32::MAX as usize {
            return Err(GgufError::Tokenizer(format!("a vocabulary of {} tokens", texts.len())));
        }
        let kinds = optional(metadata.get_i32s("tokenizer.ggml.token_type"))?;
        if let Some(kinds) = &kinds
            && kinds.len() != texts.len()
        {
            let (tokens, kinds) = (texts.len(), kinds.len());
            return Err(GgufError::Tokenizer(format!("{tokens} tokens, but {kinds} token types")));
        }
        let mut tokens = Vec::with_capacity(texts.len());
        let mut ids = HashMap::with_capacity(texts.len());
        for (id, text) in texts.iter().enumerate() {
            let kind = kinds.as_ref().map_or(Ok(TokenKind::Normal), |kinds| token_kind(kinds[id], text))?;
            tokens.push(Token { text: text.clone(), kind, bytes: bytes(text, kind).into() });
            ids.insert(text.clone(), id as u32);
        }
        Ok(Vocab { tokens, ids })
    }

    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Ids, texts and kinds of all tokens.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &str, TokenKind)> {
        (0..).zip(&self.tokens).map(|(id, token)| (id, token.text.as_str(), token.kind))
    }

    /// The id of a text; of the last one, where several tokens have the same.
    pub fn id(&self, text: &str) -> Option<u32> {
        self.ids.get(text).copied()
    }

    /// A token's text.
    pub fn text(&self, id: u32) -> Option<&str> {
        self.tokens.get(id as usize).map(|token| token.text.as_str())
    }

    /// A token's kind.
    pub fn kind(&self, id: u32) -> Option<TokenKind> {
        self.tokens.get(id as usize).map(|token| token.kind)
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
}

fn token_kind(number: i32, text: &str) -> Result<TokenKind, GgufError> {
    Ok(match number {
        1 => TokenKind::Normal,
        2 => TokenKind::Unknown,
        3 => TokenKind::Control,
        4 => TokenKind::UserDefined,
        5 => TokenKind::Unused,
        6 => TokenKind::Byte,
        other => return Err(GgufError::Tokenizer(format!("token {text:?} has the unknown type {other}"))),
    })
}

/// The byte that a token like `<0x0A>` spells.
fn byte_of(text: &str) -> Option<u8> {
    let hex = text.strip_prefix("<0x")?.strip_suffix('>')?;
    if hex.len() == 2 { u8::from_str_radix(hex, 16).ok() } else { None }
}
