//! GPT-2's table: a character for each byte.

use std::collections::HashMap;
use std::sync::LazyLock;

/// The character that stands for a byte in a vocabulary: printable Latin-1 characters for
/// themselves, all other bytes in order for the characters from U+0100 on (GPT-2's table).
pub fn byte_char(byte: u8) -> char {
    static CHARS: LazyLock<Vec<char>> = LazyLock::new(|| (0..=u8::MAX).map(compute_byte_char).collect());
    CHARS[usize::from(byte)]
}

fn compute_byte_char(byte: u8) -> char {
    let printable = |b: u8| matches!(b, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    if printable(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|&b| !printable(b)).count() as u32;
    char::from_u32(0x100 + before).expect("invariant: at most 256 characters above U+0100")
}

/// The bytes of a token's text. A text with a character that stands for no byte is itself.
pub fn token_bytes(text: &str) -> Vec<u8> {
    static BYTES: LazyLock<HashMap<char, u8>> =
        LazyLock::new(|| (0..=u8::MAX).map(|b| (byte_char(b), b)).collect());
    text.chars()
        .map(|c| BYTES.get(&c).copied())
        .collect::<Option<Vec<u8>>>()
        .unwrap_or_else(|| text.as_bytes().to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_characters_are_one_to_one() {
        let all: std::collections::HashSet<char> = (0..=u8::MAX).map(byte_char).collect();
        assert_eq!(all.len(), 256);
        assert_eq!((byte_char(b' '), byte_char(b'\n'), byte_char(0xad)), ('Ġ', 'Ċ', 'Ń'));
        assert_eq!(token_bytes("ĠcafÃ©"), " café".as_bytes());
        assert_eq!(token_bytes("日"), "日".as_bytes());
    }
}
