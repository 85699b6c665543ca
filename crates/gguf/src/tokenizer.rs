//! The tokenizer that a model file carries in its metadata (`tokenizer.ggml.*`).
//!
//! Two kinds: `gpt2`, byte-level BPE, whose merging and pre-splitting the `tokenizers` crate does
//! ([`bpe`]), and `llama`, SentencePiece BPE with scores ([`spm`]). Special tokens are cut out of a
//! text first ([`special`]); the stretches between them go to the kind's encoder. Decoding needs no
//! such help: a token is a fixed string of bytes.

mod bpe;
mod special;
mod spm;
mod stream;
mod vocab;

pub use stream::DecodeStream;

use special::{Fragment, SpecialTokens};
use vocab::{TokenKind, Vocab};

use crate::{GgufError, Metadata, optional};

/// Texts of control tokens that end a turn or a text, in the chat formats in use. Files often name
/// only one of them in their metadata, while the model may produce another.
const END_TEXTS: [&str; 9] = [
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|im_end|>",
    "<|end|>",
    "<|endoftext|>",
    "<end_of_turn>",
    "<EOT>",
    "</s>",
];

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
    vocab: Vocab,
    special: SpecialTokens,
    encoder: Encoder,
    /// SentencePiece only: texts are taken to start with a space.
    add_space_prefix: bool,
    add_bos: bool,
    add_eos: bool,
    bos: Option<u32>,
    eos: Option<u32>,
    eot: Option<u32>,
    ends: Vec<u32>,
    chat_template: Option<String>,
}

/// What turns text without special tokens into ids.
enum Encoder {
    ByteLevel(Box<bpe::ByteLevelBpe>),
    SentencePiece(spm::SentencePiece),
}

impl Tokenizer {
    /// Builds the tokenizer that the metadata describes.
    ///
    /// # Errors
    /// When a key is missing or has the wrong type, the kind (`tokenizer.ggml.model`,
    /// `tokenizer.ggml.pre`) is not supported, or the parts do not fit together.
    pub fn from_metadata(metadata: &Metadata) -> Result<Tokenizer, GgufError> {
        let model = metadata.get_str("tokenizer.ggml.model")?;
        let vocab = match model {
            "gpt2" => Vocab::byte_level(metadata)?,
            "llama" => Vocab::sentence_piece(metadata)?,
            other => {
                return Err(GgufError::UnsupportedTokenizer {
                    key: "tokenizer.ggml.model",
                    value: other.to_owned(),
                    supported: "gpt2 and llama",
                });
            }
        };
        let (encoder, add_bos_default) = if model == "gpt2" {
            let bpe = bpe::ByteLevelBpe::from_metadata(metadata, &vocab)?;
            let add_bos = bpe.adds_bos_by_default();
            (Encoder::ByteLevel(Box::new(bpe)), add_bos)
        } else {
            (Encoder::SentencePiece(spm::SentencePiece::from_metadata(metadata, &vocab)?), true)
        };
        let flag = |key, default| optional(metadata.get_bool(key)).map(|value| value.unwrap_or(default));
        let add_space_prefix = match encoder {
            Encoder::ByteLevel(_) => false,
            Encoder::SentencePiece(_) => flag("tokenizer.ggml.add_space_prefix", true)?,
        };
        let eos = vocab.id_at(metadata, "tokenizer.ggml.eos_token_id")?;
        let eot = vocab.id_at(metadata, "tokenizer.ggml.eot_token_id")?;
        let ends = end_ids(&vocab, eos, eot);
        Ok(Tokenizer {
            special: SpecialTokens::new(&vocab),
            add_space_prefix,
            add_bos: flag("tokenizer.ggml.add_bos_token", add_bos_default)?,
            add_eos: flag("tokenizer.ggml.add_eos_token", false)?,
            bos: vocab.id_at(metadata, "tokenizer.ggml.bos_token_id")?,
            eos,
            eot,
            ends,
            chat_template: optional(metadata.get_str("tokenizer.chat_template"))?.map(str::to_owned),
            vocab,
            encoder,
        })
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
        if add_special && self.add_bos {
            ids.extend(self.bos);
        }
        let mut after_special = true;
        for fragment in fragments {
            match fragment {
                Fragment::Special(id) => ids.push(id),
                Fragment::Text(text) => match &self.encoder {
                    Encoder::ByteLevel(bpe) => bpe.encode(text, &mut ids)?,
                    Encoder::SentencePiece(spm) => {
                        spm.encode(text, self.add_space_prefix && after_special, &self.vocab, &mut ids)?;
                    }
                },
            }
            after_special = matches!(fragment, Fragment::Special(_));
        }
        if add_special && self.add_eos {
            ids.extend(self.eos);
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
            Some(rest) if self.add_space_prefix => rest.to_owned(),
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
        self.bos
    }

    /// The token that ends a text, if the model has one.
    pub fn eos(&self) -> Option<u32> {
        self.eos
    }

    /// The token that ends a turn, if the metadata names one.
    pub fn eot(&self) -> Option<u32> {
        self.eot
    }

    /// Whether generation ends with this token: end of text, end of turn, or a control token that
    /// chat formats use for either.
    pub fn is_end(&self, id: u32) -> bool {
        self.ends.contains(&id)
    }

    /// Whether [`Tokenizer::encode`] puts the begin token in front when asked for special tokens.
    pub fn adds_bos(&self) -> bool {
        self.add_bos && self.bos.is_some()
    }

    /// The chat template in Jinja's language, if the file has one.
    pub fn chat_template(&self) -> Option<&str> {
        self.chat_template.as_deref()
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = match self.encoder {
            Encoder::ByteLevel(_) => "gpt2",
            Encoder::SentencePiece(_) => "llama",
        };
        f.debug_struct("Tokenizer").field("kind", &kind).field("tokens", &self.vocab_size()).finish()
    }
}

fn end_ids(vocab: &Vocab, eos: Option<u32>, eot: Option<u32>) -> Vec<u32> {
    let mut ends: Vec<u32> = eos.into_iter().chain(eot).collect();
    let known = END_TEXTS.iter().filter_map(|text| vocab.id(text));
    ends.extend(known.filter(|&id| vocab.kind(id) == Some(TokenKind::Control)));
    ends.sort_unstable();
    ends.dedup();
    ends
}
