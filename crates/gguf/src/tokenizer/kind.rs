//! The kinds of tokenizers (`tokenizer.ggml.model`), and what each takes for granted.

use super::TokenizerOptions;
use super::bpe;
use super::pre::{self, PreTokenizer};
use super::roles::DefaultIds;
use super::vocab::TokenSpelling;
use crate::{GgufError, Metadata, optional};

/// A kind, with its pre-tokenizer if it has one.
#[derive(Clone, Copy)]
pub enum Kind {
    /// Merges with ranks, behind a pre-tokenizer.
    Bpe {
        /// The value of `tokenizer.ggml.model`.
        model: &'static str,
        /// The name that the pre-tokenizer was asked for by.
        pre_name: &'static str,
        /// The pre-tokenizer.
        pre: &'static PreTokenizer,
    },
    /// SentencePiece BPE.
    SentencePiece,
    /// SentencePiece unigram model.
    Unigram,
    /// BERT's WordPiece.
    WordPiece,
}

impl Kind {
    /// Reads the kind and, where it has one, the pre-tokenizer.
    pub fn from_metadata(metadata: &Metadata, options: &TokenizerOptions) -> Result<Kind, GgufError> {
        let requested = options.pre.as_deref();
        let kind = match metadata.get_str("tokenizer.ggml.model")? {
            "gpt2" => {
                let stored = optional(metadata.get_str("tokenizer.ggml.pre"))?;
                return bpe_kind("gpt2", requested.or(stored).unwrap_or(pre::DEFAULT));
            }
            "gemma4" => return bpe_kind("gemma4", requested.unwrap_or("gemma4")),
            "llama" => Kind::SentencePiece,
            "t5" => Kind::Unigram,
            "bert" => Kind::WordPiece,
            other => {
                let hint = match other {
                    "no_vocab" | "none" => "the file holds no vocabulary",
                    _ => "supported are gpt2, gemma4, llama, t5 and bert",
                };
                return Err(GgufError::UnsupportedTokenizer {
                    key: "tokenizer.ggml.model",
                    value: other.to_owned(),
                    hint: hint.to_owned(),
                });
            }
        };
        match requested {
            Some(name) => Err(GgufError::Tokenizer(format!(
                "kind {} has no pre-tokenizer, {name:?} was asked for",
                kind.name()
            ))),
            None => Ok(kind),
        }
    }

    /// The value of `tokenizer.ggml.model`.
    pub fn name(&self) -> &'static str {
        match self {
            Kind::Bpe { model, .. } => model,
            Kind::SentencePiece => "llama",
            Kind::Unigram => "t5",
            Kind::WordPiece => "bert",
        }
    }

    /// How the vocabulary spells text.
    pub fn spelling(&self) -> TokenSpelling {
        match self {
            Kind::Bpe { pre, .. } => bpe::token_spelling(pre),
            Kind::SentencePiece | Kind::Unigram | Kind::WordPiece => TokenSpelling::Escaped,
        }
    }

    /// The ids that llama.cpp takes where the file names none.
    pub fn default_ids(&self) -> DefaultIds {
        let none = DefaultIds::default();
        match self {
            Kind::Bpe { .. } => none,
            Kind::SentencePiece => DefaultIds { bos: Some(1), eos: Some(2), unknown: Some(0), ..none },
            Kind::Unigram => DefaultIds { eos: Some(1), unknown: Some(2), ..none },
            Kind::WordPiece => {
                DefaultIds { bos: Some(101), unknown: Some(100), separator: Some(102), ..none }
            }
        }
    }

    /// Whether a text begins with the begin token and ends with the end token.
    pub fn adds(&self, metadata: &Metadata) -> Result<(bool, bool), GgufError> {
        let flag = |key, default| optional(metadata.get_bool(key)).map(|value| value.unwrap_or(default));
        let (bos, eos, forced) = match self {
            Kind::Bpe { pre, .. } => (pre.traits.add_bos, false, pre.traits.force_bos),
            Kind::SentencePiece => (true, false, false),
            Kind::Unigram => (false, true, false),
            // The models are trained on texts between two tokens, whatever the flags say.
            Kind::WordPiece => return Ok((true, true)),
        };
        let bos = flag("tokenizer.ggml.add_bos_token", bos)? || forced;
        Ok((bos, flag("tokenizer.ggml.add_eos_token", eos)?))
    }
}

/// BPE with the pre-tokenizer of a name.
fn bpe_kind(model: &'static str, name: &str) -> Result<Kind, GgufError> {
    match pre::find(name) {
        Some((pre_name, pre)) => Ok(Kind::Bpe { model, pre_name, pre }),
        None => Err(GgufError::UnsupportedTokenizer {
            key: "tokenizer.ggml.pre",
            value: name.to_owned(),
            hint: format!("the nearest names are {}; --pre NAME picks one", pre::nearest(name).join(", ")),
        }),
    }
}
