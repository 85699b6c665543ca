//! Decoding one token at a time without cutting characters in two.

use super::Tokenizer;

/// A decoder of a growing text; see [`Tokenizer::decode_stream`].
#[derive(Debug)]
pub struct DecodeStream<'t> {
    tokenizer: &'t Tokenizer,
    /// The begin of a character whose other bytes are still to come.
    pending: Vec<u8>,
}

impl<'t> DecodeStream<'t> {
    pub(super) fn new(tokenizer: &'t Tokenizer) -> DecodeStream<'t> {
        DecodeStream { tokenizer, pending: Vec::new() }
    }

    /// Adds a token and gives the text that is complete now, if any. Bytes that can become no
    /// character give U+FFFD.
    pub fn push(&mut self, id: u32) -> Option<String> {
        self.pending.extend(self.tokenizer.token_bytes(id));
        let complete = complete_length(&self.pending);
        self.take(complete)
    }

    /// Gives what is left of a character that never was completed, as U+FFFD.
    pub fn finish(&mut self) -> Option<String> {
        self.take(self.pending.len())
    }

    fn take(&mut self, length: usize) -> Option<String> {
        if length == 0 {
            return None;
        }
        let bytes: Vec<u8> = self.pending.drain(..length).collect();
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// Length of `bytes` without the incomplete character at its end.
fn complete_length(bytes: &[u8]) -> usize {
    let mut done = 0;
    loop {
        match std::str::from_utf8(&bytes[done..]) {
            Ok(_) => return bytes.len(),
            Err(e) => {
                done += e.valid_up_to();
                match e.error_len() {
                    Some(wrong) => done += wrong,
                    None => return done,
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_unfinished_character_waits() {
        let euro = "€".as_bytes();
        assert_eq!(complete_length(b"abc"), 3);
        assert_eq!(complete_length(&euro[..1]), 0);
        assert_eq!(complete_length(&[b"ab", &euro[..2]].concat()), 2);
        assert_eq!(complete_length(euro), 3);
        // A continuation byte on its own, a start byte that none follows, a byte that UTF-8 never uses.
        assert_eq!(complete_length(b"\x82"), 1);
        assert_eq!(complete_length(b"\xe2a\xff"), 3);
        assert_eq!(complete_length(b"\xff\xe2\x82"), 1);
    }
}
