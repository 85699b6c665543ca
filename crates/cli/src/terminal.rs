//! Text of models and files on a terminal: it must not move the cursor, nor write to the clipboard.

use std::borrow::Cow;
use std::io::{IsTerminal, Write};

/// Standard output for text that a model generates. On a terminal, control characters but line ends and tabs are left
/// out; a file or a pipe gets them as they are.
pub struct Output {
    out: std::io::StdoutLock<'static>,
    is_terminal: bool,
}

impl Output {
    /// Locks standard output.
    pub fn lock() -> Output {
        let out = std::io::stdout().lock();
        Output { is_terminal: out.is_terminal(), out }
    }

    /// Writes a piece of text at once.
    pub fn write(&mut self, text: &str) -> std::io::Result<()> {
        let text = if self.is_terminal { printable(text) } else { Cow::Borrowed(text) };
        self.out.write_all(text.as_bytes())?;
        self.out.flush()
    }

    /// Ends the line.
    pub fn end_line(&mut self) -> std::io::Result<()> {
        self.write("\n")
    }
}

/// The text without control characters, but for line ends and tabs.
fn printable(text: &str) -> Cow<'_, str> {
    let bad = |c: char| c.is_control() && c != '\n' && c != '\t';
    if text.contains(bad) {
        text.chars().filter(|c| !bad(*c)).collect::<String>().into()
    } else {
        text.into()
    }
}

/// The text with control characters escaped, for a line about a file.
pub fn escaped(text: &str) -> String {
    let escape = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
    text.chars().map(escape).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_do_not_reach_a_terminal() {
        assert_eq!(printable("a\tb\nc é"), "a\tb\nc é");
        assert_eq!(printable("\u{1b}]52;c;aGk=\u{7}x\r\u{9b}"), "]52;c;aGk=x");
        assert_eq!(escaped("\u{1b}[31m\n"), "\\u{1b}[31m\\n");
    }
}
