//! On-disk cache of SPIR-V modules, keyed by a hash of the compiler's inputs.
//!
//! An entry is one file, `<dir>/spirv/<key>.entry`: magic (8 bytes), payload length in bytes (u64), SHA-256 over key
//! and payload (32 bytes), payload. Integers and SPIR-V words are little-endian. The digest covers the key too, so a
//! renamed file is not accepted.
//!
//! Any other file counts as absent and is replaced at the next store. A store renames a complete file over the old one.
//! A reader therefore sees either the old or the new entry, even with several writing processes.
//!
//! The cache never fails: without a usable directory it warns once and caches nothing.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use sha2::{Digest, Sha256};

/// Magic number; the last byte is the version of the file format.
const MAGIC: [u8; 8] = *b"TallowS\x01";

/// Bytes of magic, length and digest.
const HEADER_BYTES: usize = 48;

/// Payload limit. No kernel comes near this size; a larger file is damaged, and reading it would only cost memory.
const MAX_PAYLOAD_BYTES: u64 = 64 << 20;

/// First word of every SPIR-V module (SPIR-V specification, 2.3).
const SPIRV_MAGIC: u32 = 0x0723_0203;

/// SHA-256 over everything that determines the compiler's output.
pub(crate) type Key = [u8; 32];

/// The key for a list of inputs. Each is preceded by its length, so that no two lists have the same encoding.
pub(crate) fn key(parts: &[&[u8]]) -> Key {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.finalize().into()
}

/// A directory of entries, or an empty cache.
pub(crate) struct Cache {
    dir: Option<PathBuf>,
    warned: AtomicBool,
}

impl Cache {
    /// The cache below `dir`, which is created if missing. Without a directory the cache is always empty.
    pub(crate) fn open(dir: Option<&Path>) -> Self {
        let cache = |dir| Cache { dir, warned: AtomicBool::new(false) };
        let Some(dir) = dir.map(|d| d.join("spirv")) else { return cache(None) };
        match fs::create_dir_all(&dir) {
            Ok(()) => cache(Some(dir)),
            Err(error) => {
                let cache = cache(None);
                cache.warn(&dir, &error);
                cache
            }
        }
    }

    fn warn(&self, path: &Path, error: &io::Error) {
        if !self.warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(path = %path.display(), %error, "kernels are not kept: the cache cannot be written");
        }
    }

    fn path(&self, key: &Key) -> Option<PathBuf> {
        let name: String = key.iter().map(|b| format!("{b:02x}")).collect();
        self.dir.as_ref().map(|dir| dir.join(name + ".entry"))
    }

    /// The words stored under `key`; `None` if there are none or the entry is damaged.
    pub(crate) fn load(&self, key: &Key) -> Option<Vec<u32>> {
        let path = self.path(key)?;
        let file = File::open(&path).ok()?;
        let mut bytes = vec![];
        file.take(HEADER_BYTES as u64 + MAX_PAYLOAD_BYTES + 1).read_to_end(&mut bytes).ok()?;
        let words = decode(key, &bytes);
        if words.is_none() {
            tracing::debug!(path = %path.display(), "a damaged cache entry is ignored");
        }
        words
    }

    /// Stores `words` under `key`.
    pub(crate) fn store(&self, key: &Key, words: &[u32]) {
        let (Some(dir), Some(path)) = (&self.dir, self.path(key)) else { return };
        if let Err(error) = write(dir, &path, &encode(key, words)) {
            self.warn(&path, &error);
        }
    }
}

/// Writes to a temporary file in `dir` and renames it to `path`: renaming is atomic only within one file system.
fn write(dir: &Path, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = tempfile::NamedTempFile::new_in(dir)?;
    file.write_all(bytes)?;
    file.persist(path)?;
    Ok(())
}

fn digest(key: &Key, payload: &[u8]) -> [u8; 32] {
    Sha256::new().chain_update(key).chain_update(payload).finalize().into()
}

fn encode(key: &Key, words: &[u32]) -> Vec<u8> {
    let payload: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    let mut bytes = MAGIC.to_vec();
    bytes.extend((payload.len() as u64).to_le_bytes());
    bytes.extend(digest(key, &payload));
    bytes.extend(payload);
    bytes
}

fn decode(key: &Key, bytes: &[u8]) -> Option<Vec<u32>> {
    let (header, payload) = bytes.split_at_checked(HEADER_BYTES)?;
    let length = u64::from_le_bytes(header[8..16].try_into().ok()?);
    if header[..8] != MAGIC || length != payload.len() as u64 || header[16..] != digest(key, payload) {
        return None;
    }
    let (words, []) = payload.as_chunks::<4>() else { return None };
    let words: Vec<u32> = words.iter().map(|word| u32::from_le_bytes(*word)).collect();
    (words.first() == Some(&SPIRV_MAGIC)).then_some(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORDS: [u32; 4] = [SPIRV_MAGIC, 1, 2, u32::MAX];

    #[test]
    fn entries_are_read_back_exactly_or_not_at_all() {
        let key = key(&[b"text"]);
        let good = encode(&key, &WORDS);
        assert_eq!(decode(&key, &good), Some(WORDS.to_vec()));
        for cut in 0..good.len() {
            assert_eq!(decode(&key, &good[..cut]), None, "cut to {cut} bytes");
        }
        for bit in 0..8 * good.len() {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode(&key, &bad), None, "bit {bit}");
        }
        assert_eq!(decode(&key, &[good.as_slice(), &[0]].concat()), None, "a byte more");
        assert_eq!(decode(&super::key(&[b"other"]), &good), None, "under another name");
    }

    /// Valid digests over payloads that are not SPIR-V: wrong endianness, a partial word, nothing.
    #[test]
    fn only_modules_are_entries() {
        let key = key(&[]);
        assert_eq!(decode(&key, &encode(&key, &[SPIRV_MAGIC.swap_bytes()])), None);
        assert_eq!(decode(&key, &encode(&key, &[])), None);
        let payload = [SPIRV_MAGIC.to_le_bytes().as_slice(), &[7]].concat();
        let bytes = [&MAGIC[..], &5u64.to_le_bytes(), &digest(&key, &payload), &payload].concat();
        assert_eq!(decode(&key, &bytes), None);
    }

    #[test]
    fn keys_tell_lists_apart() {
        let keys = [key(&[b"ab", b"c"]), key(&[b"a", b"bc"]), key(&[b"abc"]), key(&[b"abc", b""])];
        for (i, a) in keys.iter().enumerate() {
            assert!(keys[i + 1..].iter().all(|b| a != b));
        }
    }
}
