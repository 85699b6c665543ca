//! The tokenizer that a model file carries in its metadata (`tokenizer.ggml.*`).
//!
//! Special tokens are cut out of a text first ([`special`]); the stretches between them go to the encoder of
//! the kind: BPE ([`bpe`]) behind one of the pre-tokenizers of a table ([`pre`]), SentencePiece BPE with scores
//! ([`spm`]), a unigram model ([`unigram`]) or WordPiece ([`wordpiece`]). Decoding needs no such help: a token is
//! a fixed string of bytes.

mod bpe;
mod charsmap;
mod pre;
mod roles;
mod special;
mod split;
mod spm;
mod stream;
mod unigram;
mod vocab;
mod wordpiece;

pub use stream::DecodeStream;

use roles::{DefaultIds, Roles};
use special::{Fragment, SpecialTokens};
use vocab::{TokenKind, TokenSpelling, Vocab};

use crate::{GgufError, Metadata, optional};

/// What a user may say about a tokenizer that its file does not, or says wrongly.
#[derive(Clone, Debug, Default)]
pub struct TokenizerOptions {
    /// The pre-tokenizer to use in place of `tokenizer.ggml.pre`.
    pub pre: Option<String>,
}

/// Texts to token ids and back.
///
/// ```no_run
/// use tallow_gguf::{GgufFile, Tokenizer};
/// let file = GgufFile::open("model.gguf")?;
/// let tokenizer = Tokenizer::from_metadata(file.metadata())?;
/// let ids = tokenizer.encode("Once upon a time", true)?;
/// assert_eq!(tokenizer.decode(&ids), "Once upon a time");
/// # Ok::<(), tallow_gguf::GgufError>(())
/// ```
pub struct Tokenizer {
    kind: Kind,
    vocab: Vocab,
    special: SpecialTokens,
    encoder: Encoder,
    roles: Roles,
    /// Encoding puts a space in front of a text, and decoding takes it away.
    strip_space: bool,
    /// What encoding puts around a text.
    begin: Option<u32>,
    end: Option<u32>,
    chat_template: Option<String>,
}

/// The values of `tokenizer.ggml.model` that are supported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Gpt2,
    Gemma4,
    Llama,
    T5,
    Bert,
}

impl Kind {
    const ALL: [(&'static str, Kind); 5] = [
        ("gpt2", Kind::Gpt2),
        ("gemma4", Kind::Gemma4),
        ("llama", Kind::Llama),
        ("t5", Kind::T5),
        ("bert", Kind::Bert),
    ];

    fn from_name(name: &str) -> Result<Kind, GgufError> {
        Kind::ALL.iter().find(|(known, _)| *known == name).map(|&(_, kind)| kind).ok_or_else(|| {
            let names: Vec<&str> = Kind::ALL.iter().map(|(name, _)| *name).collect();
            let hint = match name {
                "no_vocab" | "none" => "the file holds no vocabulary".to_owned(),
                _ => format!("supported are {}", names.join(", ")),
            };
            GgufError::UnsupportedTokenizer { key: "tokenizer.ggml.model", value: name.to_owned(), hint }
        })
    }

    fn name(self) -> &'static str {
        Kind::ALL.iter().find(|&&(_, kind)| kind == self).map_or("", |(name, _)| name)
    }

    /// The ids that llama.cpp takes where the file names none.
    fn default_ids(self) -> DefaultIds {
        match self {
            Kind::Gpt2 | Kind::Gemma4 => DefaultIds::default(),
            Kind::Llama => DefaultIds { bos: Some(1), eos: Some(2), unknown: Some(0), separator: None },
            Kind::T5 => DefaultIds { bos: None, eos: Some(1), unknown: Some(2), separator: None },
            Kind::Bert => DefaultIds { bos: Some(101), eos: None, unknown: Some(100), separator: Some(102) },
        }
    }

    /// Whether begin and end tokens are added where the file does not say.
    fn adds_by_default(self, pre: Option<&pre::PreTokenizer>) -> (bool, bool) {
        match self {
            Kind::Gpt2 | Kind::Gemma4 => (pre.is_some_and(|pre| pre.traits.add_bos), false),
            Kind::Llama | Kind::Bert => (true, false),
            Kind::T5 => (false, true),
        }
    }
}

/// What turns text without special tokens into ids.
enum Encoder {
    Bpe(Box<bpe::Bpe>),
    SentencePiece(spm::SentencePiece),
    Unigram(Box<unigram::Unigram>),
    WordPiece(Box<wordpiece::WordPiece>),
}

impl Tokenizer {
    /// Builds the tokenizer that the metadata describes.
    ///
    /// # Errors
    /// When a key is missing or has the wrong type, the kind (`tokenizer.ggml.model`,
    /// `tokenizer.ggml.pre`) is not supported, or the parts do not fit together.
    pub fn from_metadata(metadata: &Metadata) -> Result<Tokenizer, GgufError> {
        Tokenizer::with_options(metadata, &TokenizerOptions::default())
    }

    /// Builds the tokenizer that the metadata describes, except for what the options say.
    ///
    /// # Errors
    /// As for [`Tokenizer::from_metadata`], and when a pre-tokenizer is given to a kind without one.
    pub fn with_options(metadata: &Metadata, options: &TokenizerOptions) -> Result<Tokenizer, GgufError> {
        let kind = Kind::from_name(metadata.get_str("tokenizer.ggml.model")?)?;
        let pre = pre_tokenizer(kind, metadata, options)?;
        let mut vocab = Vocab::from_metadata(metadata)?;
        let roles = Roles::find(&mut vocab, metadata, kind.default_ids())?;
        vocab.spell(pre.map_or(TokenSpelling::Escaped, bpe::token_spelling));
        let flag = |key, default| optional(metadata.get_bool(key)).map(|value| value.unwrap_or(default));
        let add_space_prefix = flag("tokenizer.ggml.add_space_prefix", kind == Kind::Llama)?;
        let (encoder, strip_space) = match (kind, pre) {
            (Kind::Llama, _) => {
                let encoder = spm::SentencePiece::from_metadata(metadata, &vocab, roles.unknown)?;
                (Encoder::SentencePiece(encoder), add_space_prefix)
            }
            (Kind::T5, _) => {
                let unknown = roles.unknown;
                let encoder = unigram::Unigram::from_metadata(metadata, &vocab, unknown, add_space_prefix)?;
                (Encoder::Unigram(Box::new(encoder)), add_space_prefix)
            }
            (Kind::Bert, _) => {
                let encoder = wordpiece::WordPiece::from_metadata(metadata, &vocab, roles.unknown)?;
                (Encoder::WordPiece(Box::new(encoder)), true)
            }
            (Kind::Gpt2 | Kind::Gemma4, pre) => {
                let pre = pre.ok_or_else(|| GgufError::MissingKey("tokenizer.ggml.pre".to_owned()))?;
                (Encoder::Bpe(Box::new(bpe::Bpe::from_metadata(metadata, &vocab, pre)?)), false)
            }
        };
        let (add_bos, add_eos) = kind.adds_by_default(pre);
        let add_bos =
            flag("tokenizer.ggml.add_bos_token", add_bos)? || pre.is_some_and(|pre| pre.traits.force_bos);
        let add_eos = flag("tokenizer.ggml.add_eos_token", add_eos)?;
        let (begin, end) = match kind {
            // BERT's models are trained on texts between two tokens, whatever the flags say.
            Kind::Bert => (roles.bos, roles.separator),
            Kind::Gpt2 | Kind::Gemma4 | Kind::Llama | Kind::T5 => {
                (roles.bos.filter(|_| add_bos), roles.eos.filter(|_| add_eos))
            }
        };
        Ok(Tokenizer {
            kind,
            special: SpecialTokens::new(&vocab, roles::strips(metadata, &vocab)?)?,
            strip_space,
            begin,
            end,
            chat_template: optional(metadata.get_str("tokenizer.chat_template"))?.map(str::to_owned),
            roles,
            vocab,
            encoder,
        })
    }

    /// The names of all pre-tokenizers, which [`TokenizerOptions::pre`] takes.
    pub fn pre_names() -> impl Iterator<Item = &'static str> {
        pre::names()
    }

    /// The kind, as `tokenizer.ggml.model` names it.
    pub fn kind(&self) -> &'static str {
        self.kind.name()
    }

    /// The pre-tokenizer, by the first of the names that share its rules, if the kind has one.
    pub fn pre(&self) -> Option<&'static str> {
        match &self.encoder {
            Encoder::Bpe(bpe) => bpe.pre().names.first().copied(),
            Encoder::SentencePiece(_) | Encoder::Unigram(_) | Encoder::WordPiece(_) => None,
        }
    }

    /// The ids of a text in which special tokens may be spelled out, as in a rendered chat template.
    /// With `add_special`, the begin and end tokens that the model was trained with are added.
    ///
    /// # Errors
    /// When the vocabulary has no token for some byte of the text.
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, GgufError> {
        self.encode_fragments(self.special.split(text), add_special)
    }

    /// The ids of a text in which control tokens are ordinary text: what a user typed cannot end a
    /// turn or start another role's.
    ///
    /// # Errors
    /// When the vocabulary has no token for some byte of the text.
    pub fn encode_ordinary(&self, text: &str, add_special: bool) -> Result<Vec<u32>, GgufError> {
        self.encode_fragments(self.special.split_ordinary(text), add_special)
    }

    fn encode_fragments(&self, fragments: Vec<Fragment>, add_special: bool) -> Result<Vec<u32>, GgufError> {
        let mut ids = Vec::new();
        if add_special {
            ids.extend(self.begin);
        }
        let mut after_special = true;
        for fragment in fragments {
            match fragment {
                Fragment::Special(id) => ids.push(id),
                Fragment::Text(text) => match &self.encoder {
                    Encoder::Bpe(bpe) => bpe.encode(text, &self.vocab, &mut ids)?,
                    Encoder::SentencePiece(spm) => {
                        spm.encode(text, self.strip_space && after_special, &self.vocab, &mut ids)?;
                    }
                    Encoder::Unigram(unigram) => unigram.encode(text, &mut ids)?,
                    Encoder::WordPiece(words) => words.encode(text, &self.vocab, &mut ids)?,
                },
            }
            after_special = matches!(fragment, Fragment::Special(_));
        }
        if add_special {
            ids.extend(self.end);
        }
        Ok(ids)
    }

    /// The text of ids; control tokens and ids that the vocabulary does not have give nothing, bytes
    /// that are not UTF-8 give U+FFFD.
    pub fn decode(&self, ids: &[u32]) -> String {
        let bytes: Vec<u8> = ids.iter().flat_map(|&id| self.token_bytes(id)).copied().collect();
        let text = String::from_utf8_lossy(&bytes);
        // The space that encoding put in front.
        match text.strip_prefix(' ') {
            Some(rest) if self.strip_space => rest.to_owned(),
            _ => text.into_owned(),
        }
    }

    /// A decoder that is given one id at a time and never cuts a character in two. It continues a
    /// text, so that a space in front is kept.
    pub fn decode_stream(&self) -> DecodeStream<'_> {
        DecodeStream::new(self)
    }

    /// The bytes that a token stands for; none for control tokens and unknown ids.
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        self.vocab.bytes(id)
    }

    /// A token as the vocabulary spells it, control tokens too.
    pub fn token_text(&self, id: u32) -> Option<&str> {
        self.vocab.text(id)
    }

    /// The id of a token as the vocabulary spells it.
    pub fn token_id(&self, text: &str) -> Option<u32> {
        self.vocab.id(text)
    }

    /// Number of tokens.
    pub fn vocab_size(&self) -> usize {
        self.vocab.len()
    }

    /// Whether the id is a control token, which has no text of its own.
    pub fn is_control(&self, id: u32) -> bool {
        self.vocab.kind(id) == Some(TokenKind::Control)
    }

    /// The token that begins a text, if the model has one.
    pub fn bos(&self) -> Option<u32> {
        self.roles.bos
    }

    /// The token that ends a text, if the model has one.
    pub fn eos(&self) -> Option<u32> {
        self.roles.eos
    }

    /// The token that ends a turn, if the metadata names one.
    pub fn eot(&self) -> Option<u32> {
        self.roles.eot
    }

    /// Whether generation ends with this token: end of text, end of turn, or a control token that
    /// chat formats use for either.
    pub fn is_end(&self, id: u32) -> bool {
        self.roles.ends.contains(&id)
    }

    /// Whether [`Tokenizer::encode`] puts the begin token in front when asked for special tokens.
    pub fn adds_bos(&self) -> bool {
        self.begin.is_some()
    }

    /// The chat template in Jinja's language, if the file has one.
    pub fn chat_template(&self) -> Option<&str> {
        self.chat_template.as_deref()
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer").field("kind", &self.kind()).field("tokens", &self.vocab_size()).finish()
    }
}

/// The pre-tokenizer of a BPE kind.
fn pre_tokenizer(
    kind: Kind,
    metadata: &Metadata,
    options: &TokenizerOptions,
) -> Result<Option<&'static pre::PreTokenizer>, GgufError> {
    let name = match (kind, &options.pre) {
        (Kind::Gpt2 | Kind::Gemma4, Some(name)) => name,
        (Kind::Gpt2, None) => optional(metadata.get_str("tokenizer.ggml.pre"))?.unwrap_or(pre::DEFAULT),
        (Kind::Gemma4, None) => "gemma4",
        (Kind::Llama | Kind::T5 | Kind::Bert, None) => return Ok(None),
        (Kind::Llama | Kind::T5 | Kind::Bert, Some(name)) => {
            let kind = kind.name();
            return Err(GgufError::Tokenizer(format!(
                "kind {kind} has no pre-tokenizer, {name:?} was asked for"
            )));
        }
    };
    pre::find(name).map(Some).ok_or_else(|| GgufError::UnsupportedTokenizer {
        key: "tokenizer.ggml.pre",
        value: name.to_owned(),
        hint: format!("the nearest names are {}; --pre NAME picks one", pre::nearest(name).join(", ")),
    })
}
