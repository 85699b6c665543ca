//! Reading numbers and strings from untrusted bytes: nothing is taken before it is known to be there.

use crate::GgufError;

/// A place in the file's bytes.
pub struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

/// Whose bytes are being read; made into text only when something is wrong.
pub type What<'a> = &'a dyn Fn() -> String;

impl<'a> Cursor<'a> {
    /// Starts at the first byte.
    pub fn new(bytes: &'a [u8]) -> Cursor<'a> {
        Cursor { bytes, at: 0 }
    }

    /// Bytes read so far.
    pub fn position(&self) -> usize {
        self.at
    }

    /// Bytes not yet read.
    pub fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// The next `count` bytes.
    pub fn take(&mut self, count: u64, what: What) -> Result<&'a [u8], GgufError> {
        self.expect(count, what)?;
        // The check has shown that `count` is at most the length of a slice.
        let (start, end) = (self.at, self.at + count as usize);
        self.at = end;
        Ok(&self.bytes[start..end])
    }

    /// Fails unless `count` more bytes are there.
    pub fn expect(&self, count: u64, what: What) -> Result<(), GgufError> {
        if count > self.left() as u64 {
            return Err(GgufError::Truncated {
                what: what(),
                offset: self.at,
                needed: count,
                left: self.left(),
            });
        }
        Ok(())
    }

    /// Fails unless `count` items of at least `size` bytes can follow; gives the count as `usize`.
    ///
    /// This bounds what a hostile count can make the reader allocate by the file's own size.
    pub fn expect_items(&self, count: u64, size: u64, what: What) -> Result<usize, GgufError> {
        self.expect(count.saturating_mul(size), what)?;
        Ok(count as usize)
    }

    /// The next `N` bytes as an array.
    pub fn array<const N: usize>(&mut self, what: What) -> Result<[u8; N], GgufError> {
        let bytes = self.take(N as u64, what)?;
        Ok(bytes.try_into().expect("invariant: take gives as many bytes as asked"))
    }

    /// A little-endian `u32`.
    pub fn u32(&mut self, what: What) -> Result<u32, GgufError> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    /// A little-endian `u64`.
    pub fn u64(&mut self, what: What) -> Result<u64, GgufError> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    /// A string: its length as `u64`, then UTF-8.
    pub fn string(&mut self, what: What) -> Result<String, GgufError> {
        let length = self.u64(what)?;
        let bytes = self.take(length, what)?;
        match std::str::from_utf8(bytes) {
            Ok(text) => Ok(text.to_owned()),
            Err(e) => Err(GgufError::Malformed { what: what(), problem: format!("not UTF-8 text: {e}") }),
        }
    }

    /// A boolean: one byte, 0 or 1.
    pub fn bool(&mut self, what: What) -> Result<bool, GgufError> {
        match self.array(what)? {
            [0] => Ok(false),
            [1] => Ok(true),
            [other] => Err(GgufError::Malformed { what: what(), problem: format!("{other} is no boolean") }),
        }
    }
}
