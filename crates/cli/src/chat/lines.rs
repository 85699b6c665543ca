//! What is typed, or comes through a pipe, line by line.

use std::io::{BufRead, IsTerminal};

use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;

use crate::error::{Error, Result};

/// What stands in front of a line to type.
const PROMPT: &str = "> ";

/// Where lines come from.
pub enum Lines {
    /// A person who edits them.
    Terminal(Box<DefaultEditor>),
    /// A file or a pipe. Bytes that are not UTF-8 become U+FFFD.
    Pipe,
}

/// One turn of a person.
pub enum Line {
    /// A text: a line, and those after it while they end in a backslash.
    Text(String),
    /// Ctrl-C instead of a line.
    Interrupted,
    /// There are no more.
    End,
}

impl Lines {
    /// Of standard input.
    pub fn open() -> Result<Lines> {
        match std::io::stdin().is_terminal() {
            true => Ok(Lines::Terminal(Box::new(DefaultEditor::new().map_err(Error::Terminal)?))),
            false => Ok(Lines::Pipe),
        }
    }

    /// The next text.
    pub fn next(&mut self) -> Result<Line> {
        let mut text = match self.line()? {
            Line::Text(text) => text,
            other => return Ok(other),
        };
        while let Some(start) = text.strip_suffix('\\') {
            text = match self.line()? {
                Line::Text(next) => format!("{start}\n{next}"),
                Line::Interrupted => return Ok(Line::Interrupted),
                Line::End => start.to_owned(),
            };
        }
        if let Lines::Terminal(editor) = self {
            // What cannot be remembered was read all the same.
            let _ = editor.add_history_entry(&text);
        }
        Ok(Line::Text(text))
    }

    fn line(&mut self) -> Result<Line> {
        match self {
            Lines::Terminal(editor) => match editor.readline(PROMPT) {
                Ok(text) => Ok(Line::Text(text)),
                Err(ReadlineError::Interrupted) => Ok(Line::Interrupted),
                Err(ReadlineError::Eof) => Ok(Line::End),
                Err(error) => Err(Error::Terminal(error)),
            },
            Lines::Pipe => {
                let mut bytes = Vec::new();
                let read = std::io::stdin().lock().read_until(b'\n', &mut bytes);
                let count = read.map_err(|source| Error::Read { path: "standard input".into(), source })?;
                if count == 0 {
                    return Ok(Line::End);
                }
                let text = String::from_utf8_lossy(&bytes);
                Ok(Line::Text(text.trim_end_matches(['\n', '\r']).to_owned()))
            }
        }
    }
}
