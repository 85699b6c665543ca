//! Byte-level BPE (`tokenizer.ggml.model` = `gpt2`): a regular expression cuts the text into words,
//! each word's bytes become characters, and merges join them in the order of their ranks.

use tokenizers::models::bpe::BPE;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::tokenizer::SplitDelimiterBehavior;

use super::vocab::Vocab;
use crate::{GgufError, Metadata};

/// A kind of word splitting (`tokenizer.ggml.pre`).
struct PreTokenizer {
    names: &'static [&'static str],
    /// What one word is; the alternatives are tried in order.
    pattern: &'static str,
    /// A word that is a token is that token, whether merges lead there or not.
    ignore_merges: bool,
    /// Whether the begin token is added where the metadata does not say.
    add_bos: bool,
}

/// The kinds, with the patterns that their models' authors published.
const PRE_TOKENIZERS: [PreTokenizer; 3] = [
    PreTokenizer {
        names: &["gpt-2"],
        pattern: r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
        ignore_merges: false,
        add_bos: false,
    },
    PreTokenizer {
        names: &["llama-bpe", "llama3", "llama-v3"],
        pattern: r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ignore_merges: true,
        add_bos: true,
    },
    PreTokenizer {
        names: &["qwen2"],
        pattern: r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ignore_merges: false,
        add_bos: false,
    },
];

/// The encoder.
pub struct ByteLevelBpe {
    tokenizer: tokenizers::Tokenizer,
    /// Bytes for which there is no token, and which would be dropped without a word.
    missing: Vec<u8>,
    add_bos: bool,
}

impl ByteLevelBpe {
    /// Builds the encoder from `tokenizer.ggml.pre` and `tokenizer.ggml.merges`.
    pub fn from_metadata(metadata: &Metadata, vocab: &Vocab) -> Result<ByteLevelBpe, GgufError> {
        let name = metadata.get_str("tokenizer.ggml.pre")?;
        let pre = PRE_TOKENIZERS.iter().find(|pre| pre.names.contains(&name)).ok_or_else(|| {
            GgufError::UnsupportedTokenizer {
                key: "tokenizer.ggml.pre",
                value: name.to_owned(),
                supported: "gpt-2, llama-bpe and qwen2",
            }
        })?;
        let merges = metadata
            .get_strs("tokenizer.ggml.merges")?
            .iter()
            .map(|merge| match merge.split_once(' ') {
                Some((a, b)) => Ok((a.to_owned(), b.to_owned())),
                None => Err(GgufError::Tokenizer(format!("merge {merge:?} is not two tokens"))),
            })
            .collect::<Result<Vec<_>, _>>()?;
        let ids: tokenizers::models::bpe::Vocab =
            vocab.iter().map(|(id, text, _)| (text.to_owned(), id)).collect();
        let missing =
            (0..=u8::MAX).filter(|&b| vocab.id(byte_char(b).encode_utf8(&mut [0; 4])).is_none()).collect();
        let bpe = BPE::builder()
            .vocab_and_merges(ids, merges)
            .ignore_merges(pre.ignore_merges)
            .build()
            .map_err(|e| GgufError::Tokenizer(e.to_string()))?;
        let mut tokenizer = tokenizers::Tokenizer::new(bpe);
        tokenizer.with_pre_tokenizer(Some(word_splitter(pre)?));
        Ok(ByteLevelBpe { tokenizer, missing, add_bos: pre.add_bos })
    }

    /// Whether texts begin with the begin token unless the metadata says otherwise.
    pub fn adds_bos_by_default(&self) -> bool {
        self.add_bos
    }

    /// Appends the ids of a text without special tokens.
    pub fn encode(&self, text: &str, ids: &mut Vec<u32>) -> Result<(), GgufError> {
        if let Some(byte) = text.bytes().find(|byte| self.missing.contains(byte)) {
            return Err(GgufError::Tokenizer(format!("the vocabulary has no token for byte {byte:#04x}")));
        }
        let encoding =
            self.tokenizer.encode_fast(text, false).map_err(|e| GgufError::Tokenizer(e.to_string()))?;
        ids.extend(encoding.get_ids());
        Ok(())
    }
}

/// Cuts into words, then turns each byte into its character.
fn word_splitter(pre: &PreTokenizer) -> Result<Sequence, GgufError> {
    let pattern = SplitPattern::Regex(pre.pattern.to_owned());
    let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false)
        .map_err(|e| GgufError::Tokenizer(e.to_string()))?;
    Ok(Sequence::new(vec![split.into(), ByteLevel::new(false, false, false).into()]))
}

/// The character that stands for a byte in a vocabulary: printable Latin-1 characters for
/// themselves, all other bytes in order for the characters from U+0100 on (GPT-2's table).
fn byte_char(byte: u8) -> char {
    let printable = |b: u8| matches!(b, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    if printable(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|&b| !printable(b)).count() as u32;
    char::from_u32(0x100 + before).expect("invariant: at most 256 characters above U+0100")
}

/// The bytes of a token's text. A text with a character that stands for no byte is itself.
pub fn token_bytes(text: &str) -> Vec<u8> {
    static BYTES: std::sync::LazyLock<std::collections::HashMap<char, u8>> =
        std::sync::LazyLock::new(|| (0..=u8::MAX).map(|b| (byte_char(b), b)).collect());
    text.chars()
        .map(|c| BYTES.get(&c).copied())
        .collect::<Option<Vec<u8>>>()
        .unwrap_or_else(|| text.as_bytes().to_vec())
}

#[cfg(test)]
mod tests {
    use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer as _};

    use super::*;

    /// The words that a kind cuts a text into.
    fn words(name: &str, text: &str) -> Vec<String> {
        let pre = PRE_TOKENIZERS.iter().find(|pre| pre.names.contains(&name)).unwrap();
        let mut pretokenized = PreTokenizedString::from(text);
        word_splitter(pre).unwrap().pre_tokenize(&mut pretokenized).unwrap();
        let splits = pretokenized.get_splits(OffsetReferential::Original, OffsetType::Byte);
        splits.into_iter().map(|(word, _, _)| String::from_utf8(token_bytes(word)).unwrap()).collect()
    }

    #[test]
    fn bytes_and_characters_are_one_to_one() {
        let all: std::collections::HashSet<char> = (0..=u8::MAX).map(byte_char).collect();
        assert_eq!(all.len(), 256);
        assert_eq!((byte_char(b' '), byte_char(b'\n'), byte_char(0xad)), ('Ġ', 'Ċ', 'Ń'));
        assert_eq!(token_bytes("ĠcafÃ©"), " café".as_bytes());
        assert_eq!(token_bytes("日"), "日".as_bytes());
    }

    #[test]
    fn each_kind_cuts_words_as_published() {
        // Expected words by Python's regex module, another engine.
        let cases: [(&str, &str, &[&str]); 12] = [
            (
                "gpt-2",
                "I'LL say it's 12345 times,  don't\n\n  you?",
                &[
                    "I", "'", "LL", " say", " it", "'s", " 12345", " times", ",", " ", " don", "'t", "\n\n ",
                    " you", "?",
                ],
            ),
            (
                "gpt-2",
                "x=[1];\r\n\tif (a != b)  {}   ",
                &["x", "=[", "1", "];", "\r\n", "\t", "if", " (", "a", " !=", " b", ")", " ", " {}", "   "],
            ),
            ("gpt-2", "日本語 ½ café's ...\n", &["日本語", " ½", " café", "'s", " ...", "\n"]),
            (
                "gpt-2",
                "a\u{a0}b\u{3000} c 1e-5",
                &["a", "\u{a0}", "b", "\u{3000}", " c", " 1", "e", "-", "5"],
            ),
            (
                "llama-bpe",
                "I'LL say it's 12345 times,  don't\n\n  you?",
                &[
                    "I", "'LL", " say", " it", "'s", " ", "123", "45", " times", ",", " ", " don", "'t",
                    "\n\n", " ", " you", "?",
                ],
            ),
            (
                "llama-bpe",
                "x=[1];\r\n\tif (a != b)  {}   ",
                &["x", "=[", "1", "];\r\n", "\tif", " (", "a", " !=", " b", ")", " ", " {}", "   "],
            ),
            ("llama-bpe", "日本語 ½ café's ...\n", &["日本語", " ", "½", " café", "'s", " ...\n"]),
            (
                "llama-bpe",
                "a\u{a0}b\u{3000} c 1e-5",
                &["a", "\u{a0}b", "\u{3000}", " c", " ", "1", "e", "-", "5"],
            ),
            (
                "qwen2",
                "I'LL say it's 12345 times,  don't\n\n  you?",
                &[
                    "I", "'LL", " say", " it", "'s", " ", "1", "2", "3", "4", "5", " times", ",", " ",
                    " don", "'t", "\n\n", " ", " you", "?",
                ],
            ),
            (
                "qwen2",
                "x=[1];\r\n\tif (a != b)  {}   ",
                &["x", "=[", "1", "];\r\n", "\tif", " (", "a", " !=", " b", ")", " ", " {}", "   "],
            ),
            ("qwen2", "日本語 ½ café's ...\n", &["日本語", " ", "½", " café", "'s", " ...\n"]),
            (
                "qwen2",
                "a\u{a0}b\u{3000} c 1e-5",
                &["a", "\u{a0}b", "\u{3000}", " c", " ", "1", "e", "-", "5"],
            ),
        ];
        for (name, text, expected) in cases {
            assert_eq!(words(name, text), expected, "{name}: {text:?}");
        }
    }
}
