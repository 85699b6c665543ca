//! SentencePiece's precompiled normalization (`tokenizer.ggml.precompiled_charsmap`): a map from the longest
//! prefix of a text to its replacement.
//!
//! The blob is the length of a trie in bytes (`u32`), the trie as a compact double array (darts-clone: base in
//! bits 10 to 30, label in bits 0 to 7, bit 8 if a value follows, bit 9 if the base is shifted), and
//! replacements that end with a zero byte. The crate `spm_precompiled` reads it too, but indexes the trie
//! unchecked, so that a broken file would be a panic.

use crate::{Array, GgufError, Metadata, Value};

/// Longest key that is looked for, in bytes; a broken trie may loop. The keys of NFKC have under 20 bytes.
const LONGEST_KEY: usize = 256;

/// The map.
#[derive(Debug)]
pub struct Charsmap {
    trie: Vec<u32>,
    replacements: Vec<u8>,
}

impl Charsmap {
    /// Reads the blob, if there is one; an empty one maps nothing.
    pub fn from_metadata(metadata: &Metadata) -> Result<Option<Charsmap>, GgufError> {
        let key = "tokenizer.ggml.precompiled_charsmap";
        let blob: Vec<u8> = match metadata.get(key) {
            None => return Ok(None),
            Some(Value::Array(Array::U8(bytes))) => bytes.clone(),
            Some(Value::Array(Array::I8(bytes))) => bytes.iter().map(|&byte| byte as u8).collect(),
            Some(other) => {
                return Err(GgufError::WrongType {
                    key: key.to_owned(),
                    expected: "an array of bytes",
                    found: other.describe(),
                });
            }
        };
        if blob.is_empty() { Ok(None) } else { Charsmap::new(&blob).map(Some) }
    }

    fn new(blob: &[u8]) -> Result<Charsmap, GgufError> {
        let broken = || GgufError::Tokenizer(format!("a broken charsmap of {} bytes", blob.len()));
        let (length, rest) = blob.split_first_chunk::<4>().ok_or_else(broken)?;
        let length = u32::from_le_bytes(*length) as usize;
        let (trie, replacements) = rest.split_at_checked(length).ok_or_else(broken)?;
        let (trie, odd) = trie.as_chunks::<4>();
        if trie.is_empty() || !odd.is_empty() || replacements.last() != Some(&0) {
            return Err(broken());
        }
        Ok(Charsmap {
            trie: trie.iter().map(|word| u32::from_le_bytes(*word)).collect(),
            replacements: replacements.to_vec(),
        })
    }

    /// The longest key that `text` starts with: its length, and its replacement.
    pub fn replace(&self, text: &str) -> Result<Option<(usize, &str)>, GgufError> {
        let mut longest = None;
        let mut node = base(self.unit(0)?);
        for (i, byte) in text.bytes().take(LONGEST_KEY).enumerate() {
            node ^= u32::from(byte);
            let unit = self.unit(node)?;
            // The top bit marks values, which are nobody's child.
            if byte == 0 || unit & (1 << 31 | 0xff) != u32::from(byte) {
                break;
            }
            node ^= base(unit);
            if unit >> 8 & 1 == 1 {
                longest = Some((i + 1, self.unit(node)? & !(1 << 31)));
            }
        }
        let Some((length, offset)) = longest else { return Ok(None) };
        let replacement = self.replacements.get(offset as usize..).and_then(|tail| {
            let end = tail.iter().position(|&byte| byte == 0)?;
            std::str::from_utf8(&tail[..end]).ok()
        });
        match replacement {
            Some(replacement) if text.is_char_boundary(length) => Ok(Some((length, replacement))),
            Some(_) | None => Err(GgufError::Tokenizer("a broken replacement in the charsmap".to_owned())),
        }
    }

    fn unit(&self, index: u32) -> Result<u32, GgufError> {
        let unit = self.trie.get(index as usize).copied();
        unit.ok_or_else(|| GgufError::Tokenizer("a broken trie in the charsmap".to_owned()))
    }
}

/// Where a unit's children are, relative to it.
fn base(unit: u32) -> u32 {
    (unit >> 10) << ((unit & 1 << 9) >> 6)
}
