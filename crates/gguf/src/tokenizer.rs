//! The tokenizer that a model file carries in its metadata (`tokenizer.ggml.*`).
//!
//! Special tokens are cut out of a text first ([`special`]); the stretches between them go to the encoder of
//! the kind: BPE ([`bpe`]) behind one of the pre-tokenizers of a table ([`pre`]), SentencePiece BPE with scores
//! ([`spm`]), a unigram model ([`unigram`]) or WordPiece ([`wordpiece`]). Decoding needs no such help: a token is
//! a fixed string of bytes.

mod bpe;
mod byte_level;
mod charsmap;
mod kind;
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

use kind::Kind;
use roles::Roles;
use special::{Fragment, SpecialTokens};
use vocab::{TokenKind, Vocab};

use crate::{GgufError, Metadata, optional};

/// What a user may say about a tokenizer that its file does not, or says wrongly.
#[derive(Clone, Debug, Default)]
pub struct TokenizerOptions {
    /// The pre-tokenizer to use in place of `tokenizer.ggml.pre`.
    pub pre: Option<String>,
}

/// Which tokens are found in a text before it is encoded; see [`Tokenizer::encode_parts`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recognize {
    /// Control, unknown and user-defined tokens, as in a rendered chat template.
    Special,
    /// User-defined tokens.
    UserDefined,
    /// None: all of it is text.
    Nothing,
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
    trim_space: bool,
    /// What encoding puts around a text.
    begin: Option<u32>,
    end: Option<u32>,
    chat_template: Option<String>,
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
        let kind = Kind::from_metadata(metadata, options)?;
        let mut vocab = Vocab::from_metadata(metadata)?;
        let roles = Roles::find(&mut vocab, metadata, kind.default_ids())?;
        vocab.spell(kind.spelling());
        let prefix = |default| {
            optional(metadata.get_bool("tokenizer.ggml.add_space_prefix")).map(|flag| flag.unwrap_or(default))
        };
        let (encoder, trim_space, end) = match kind {
            Kind::Bpe { pre, .. } => {
                let bpe = bpe::Bpe::from_metadata(metadata, &vocab, pre)?;
                (Encoder::Bpe(Box::new(bpe)), false, roles.eos)
            }
            Kind::SentencePiece => {
                let spm = spm::SentencePiece::from_metadata(metadata, &vocab, roles.unknown)?;
                (Encoder::SentencePiece(spm), prefix(true)?, roles.eos)
            }
            Kind::Unigram => {
                let prefix = prefix(false)?;
                let unigram = unigram::Unigram::from_metadata(metadata, &vocab, roles.unknown, prefix)?;
                (Encoder::Unigram(Box::new(unigram)), prefix, roles.eos)
            }
            Kind::WordPiece => {
                let words = wordpiece::WordPiece::from_metadata(metadata, &vocab, roles.unknown)?;
                (Encoder::WordPiece(Box::new(words)), true, roles.separator)
            }
        };
        let (adds_bos, adds_eos) = kind.adds(metadata)?;
        Ok(Tokenizer {
            kind,
            special: SpecialTokens::new(&vocab, roles::trimmed_space(metadata, &vocab)?)?,
            trim_space,
            begin: roles.bos.filter(|_| adds_bos),
            end: end.filter(|_| adds_eos),
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

    /// The name of the pre-tokenizer, if the kind has one.
    pub fn pre(&self) -> Option<&'static str> {
        match self.kind {
            Kind::Bpe { pre_name, .. } => Some(pre_name),
            Kind::SentencePiece | Kind::Unigram | Kind::WordPiece => None,
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

    /// The ids of a text of several parts, in each of which other special tokens count. Nothing is added to them.
    ///
    /// # Errors
    /// When the vocabulary has no token for some character of the text.
    pub fn encode_parts(&self, parts: &[(&str, Recognize)]) -> Result<Vec<u32>, GgufError> {
        let fragments =
            parts.iter().filter(|(text, _)| !text.is_empty()).flat_map(|(text, what)| match what {
                Recognize::Special => self.special.split(text),
                Recognize::UserDefined => self.special.split_ordinary(text),
                Recognize::Nothing => vec![Fragment::Text(text)],
            });
        self.encode_fragments(fragments.collect(), false)
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
                        spm.encode(text, self.trim_space && after_special, &self.vocab, &mut ids)?;
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
            Some(rest) if self.trim_space => rest.to_owned(),
            _ => text.into_owned(),
        }
    }

    /// A decoder that is given one id at a time and never cuts a character in two. It continues a
    /// text, so that a space in front is kept.
    pub fn decode_stream(&self) -> DecodeStream<'_> {
        DecodeStream::new(self)
    }

    /// As [`Tokenizer::decode_stream`], after `ids`: a character that they began is completed.
    pub fn decode_stream_after(&self, ids: &[u32]) -> DecodeStream<'_> {
        let mut stream = DecodeStream::new(self);
        // A character has four bytes at most, and each token that is part of one has a byte at least.
        for &id in &ids[ids.len().saturating_sub(3)..] {
            stream.push(id);
        }
        stream
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

    /// The texts of all control and unknown tokens.
    pub fn control_texts(&self) -> impl Iterator<Item = &str> {
        let special = |kind| matches!(kind, TokenKind::Control | TokenKind::Unknown);
        self.vocab.iter().filter(move |(_, _, kind)| special(*kind)).map(|(_, text, _)| text)
    }

    /// The texts of all user-defined tokens.
    pub fn user_defined_texts(&self) -> impl Iterator<Item = &str> {
        self.vocab.iter().filter(|(_, _, kind)| *kind == TokenKind::UserDefined).map(|(_, text, _)| text)
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

    /// Whether [`Tokenizer::encode`] puts an end token behind when asked for special tokens.
    pub fn adds_end(&self) -> bool {
        self.end.is_some()
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
