//! What single tokens are for: begin, end, end of a turn. Files name some of them by id; others are known by
//! their texts, as in llama.cpp, which also corrects the kinds of tokens whose texts look like control.

use super::special::TrimSpace;
use super::vocab::{TokenKind, Vocab};
use crate::{GgufError, Metadata, optional};

/// The ids that a kind of tokenizer takes where the metadata names none.
#[derive(Clone, Copy, Debug, Default)]
pub struct DefaultIds {
    /// Begin of a text.
    pub bos: Option<u32>,
    /// End of a text.
    pub eos: Option<u32>,
    /// What cannot be spelled.
    pub unknown: Option<u32>,
    /// Between two texts.
    pub separator: Option<u32>,
}

/// Tokens with a purpose.
#[derive(Debug)]
pub struct Roles {
    /// Begins a text.
    pub bos: Option<u32>,
    /// Ends a text.
    pub eos: Option<u32>,
    /// Ends a turn, as the metadata says.
    pub eot: Option<u32>,
    /// Stands for what cannot be spelled.
    pub unknown: Option<u32>,
    /// Separates texts.
    pub separator: Option<u32>,
    /// Whatever ends generation.
    pub ends: Vec<u32>,
}

/// A purpose, the keys that name its token, the texts that it is known by, and whether it ends generation.
struct Purpose {
    keys: &'static [&'static str],
    texts: &'static [&'static str],
    ends: bool,
}

const EOT: Purpose = Purpose {
    keys: &["eot_token_id"],
    texts: &[
        "<|eot_id|>",
        "<|im_end|>",
        "<|end|>",
        "<end_of_turn>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<EOT>",
        "_<EOT>",
        "[EOT]",
        "<｜end▁of▁sentence｜>",
        "<end_of_utterance>",
    ],
    ends: true,
};

/// End of a message, and the tokens for filling in the middle of code. The padding, repository and file tokens
/// of the latter appear where a model is done.
const OTHERS: [Purpose; 7] = [
    Purpose { keys: &["eom_token_id"], texts: &["<|eom_id|>"], ends: true },
    Purpose {
        keys: &["prefix_token_id", "fim_pre_token_id"],
        texts: &[
            "<|fim_prefix|>",
            "<fim-prefix>",
            "<fim_prefix>",
            "<｜fim▁begin｜>",
            "<PRE>",
            "▁<PRE>",
            "<|code_prefix|>",
            "<|prefix|>",
        ],
        ends: false,
    },
    Purpose {
        keys: &["suffix_token_id", "fim_suf_token_id"],
        texts: &[
            "<|fim_suffix|>",
            "<fim-suffix>",
            "<fim_suffix>",
            "<｜fim▁hole｜>",
            "<SUF>",
            "▁<SUF>",
            "<|code_suffix|>",
            "<|suffix|>",
        ],
        ends: false,
    },
    Purpose {
        keys: &["middle_token_id", "fim_mid_token_id"],
        texts: &[
            "<|fim_middle|>",
            "<fim-middle>",
            "<fim_middle>",
            "<｜fim▁end｜>",
            "<MID>",
            "▁<MID>",
            "<|code_middle|>",
            "<|middle|>",
        ],
        ends: false,
    },
    Purpose {
        keys: &["fim_pad_token_id"],
        texts: &["<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"],
        ends: true,
    },
    Purpose {
        keys: &["fim_rep_token_id"],
        texts: &["<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"],
        ends: true,
    },
    Purpose { keys: &["fim_sep_token_id"], texts: &["<|file_sep|>"], ends: true },
];

/// Texts that end a turn or a text in the formats in use. Files often name only one of them, while the model
/// may produce another.
const END_TEXTS: [&str; 22] = [
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
];

/// Texts of the harmony format, which are always shown.
const SHOWN_TEXTS: [&str; 4] = ["<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"];

impl Roles {
    /// Reads the ids, finds other tokens by text, and corrects the kinds of those.
    pub fn find(vocab: &mut Vocab, metadata: &Metadata, defaults: DefaultIds) -> Result<Roles, GgufError> {
        let named = |vocab: &Vocab, name: &str, default: Option<u32>| {
            let default = default.filter(|&id| (id as usize) < vocab.len());
            vocab.id_at(metadata, &format!("tokenizer.ggml.{name}")).map(|id| id.or(default))
        };
        let eos = named(vocab, "eos_token_id", defaults.eos)?;
        let eot = purpose(vocab, metadata, &EOT)?;
        let mut ends: Vec<u32> = eos.into_iter().chain(eot).collect();
        for other in &OTHERS {
            let id = purpose(vocab, metadata, other)?;
            ends.extend(id.filter(|_| other.ends));
        }
        for id in END_TEXTS.iter().filter_map(|text| vocab.id(text)).collect::<Vec<_>>() {
            vocab.set_kind(id, TokenKind::Control);
            ends.push(id);
        }
        for id in SHOWN_TEXTS.iter().filter_map(|text| vocab.id(text)).collect::<Vec<_>>() {
            vocab.set_kind(id, TokenKind::UserDefined);
        }
        correct_ends(vocab, &mut ends);
        ends.sort_unstable();
        ends.dedup();
        Ok(Roles {
            bos: named(vocab, "bos_token_id", defaults.bos)?,
            eos,
            // Callers ask for what the file says; a token known by its text alone may have another purpose.
            eot: named(vocab, "eot_token_id", None)?,
            unknown: named(vocab, "unknown_token_id", defaults.unknown)?,
            // The key is misspelled in the format.
            separator: named(vocab, "seperator_token_id", defaults.separator)?,
            ends,
        })
    }
}

/// The token of a purpose. One that is known by its text only is a control token, whatever the file says.
fn purpose(vocab: &mut Vocab, metadata: &Metadata, purpose: &Purpose) -> Result<Option<u32>, GgufError> {
    for key in purpose.keys {
        let id = vocab.id_at(metadata, &format!("tokenizer.ggml.{key}"))?;
        if id.is_some() {
            return Ok(id);
        }
    }
    let found = purpose.texts.iter().find_map(|text| vocab.id(text));
    if let Some(id) = found {
        vocab.set_kind(id, TokenKind::Control);
    }
    Ok(found)
}

/// Takes back two texts where others show that they end nothing.
fn correct_ends(vocab: &mut Vocab, ends: &mut Vec<u32>) {
    let has = |ends: &[u32], text: &str| vocab.id(text).is_some_and(|id| ends.contains(&id));
    let calls = has(ends, "<|call|>") || has(ends, "<|calls|>");
    let mut back = Vec::new();
    if calls && (has(ends, "<|return|>") || has(ends, "<|flush|>")) {
        back.push(("<|end|>", TokenKind::UserDefined));
    }
    if has(ends, "<|tool_response>") || has(ends, "<|plamo:eos|>") {
        back.push(("</s>", TokenKind::Normal));
    }
    for (text, kind) in back {
        if let Some(id) = vocab.id(text)
            && ends.contains(&id)
        {
            ends.retain(|&end| end != id);
            vocab.set_kind(id, kind);
        }
    }
}

/// The whitespace that tokens take with them. Files do not say so; these are the models known for it.
pub fn trimmed_space(
    metadata: &Metadata,
    vocab: &Vocab,
) -> Result<impl Fn(u32) -> TrimSpace + use<>, GgufError> {
    let text = |key| optional(metadata.get_str(key)).map(|text| text.unwrap_or_default());
    let (pre, arch) = (text("tokenizer.ggml.pre")?, text("general.architecture")?);
    let name = text("general.name")?.to_lowercase();
    let contains = |text: &str, parts: &[&str]| parts.iter().any(|part| text.contains(part));
    let (mut left, mut right, mut exempt) = (None, false, Vec::new());
    if contains(pre, &["jina-v2-de", "jina-v2-es", "jina-v2-code"])
        || contains(arch, &["nomic-bert-moe", "jina-bert-v3"])
    {
        left = vocab.id("<mask>");
    } else if contains(&name, &["phi-3", "phi3"]) {
        right = true;
        exempt.extend(["<unk>", "<s>", "<|endoftext|>"].iter().filter_map(|text| vocab.id(text)));
    } else if contains(&name, &["modern-bert"]) {
        left = vocab.id("[MASK]");
    }
    Ok(move |id| TrimSpace { left: left == Some(id), right: right && !exempt.contains(&id) })
}
