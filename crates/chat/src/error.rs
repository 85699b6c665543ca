//! What goes wrong with templates and saved conversations.

use std::fmt;

use crate::rewrite;

/// A place in a template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Location {
    /// The name that the template was parsed under.
    pub template: String,
    /// The line, counted from 1; 0 if unknown.
    pub line: usize,
    /// That line of the template, without surrounding space, cut to 100 characters.
    pub text: String,
}

/// An error of this crate; each is displayed as one line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChatError {
    /// The template is not valid Jinja.
    #[error("{at}: cannot parse: {why}{}", at.excerpt())]
    Parse {
        /// Where the parser stopped.
        at: Location,
        /// What it found there.
        why: String,
    },
    /// The template uses a value in a way that Jinja does not allow.
    #[error("{at}: cannot render: {why}{}", at.excerpt())]
    Render {
        /// The statement or expression that failed.
        at: Location,
        /// What was wrong with it.
        why: String,
    },
    /// The template refused these messages with `raise_exception`.
    #[error("{at}: the template raised: {message}")]
    Raised {
        /// The call of `raise_exception`.
        at: Location,
        /// The template's own message.
        message: String,
    },
    /// The template takes too many steps, too much memory or writes too much.
    #[error("{at}: stopped: {what}{}", at.excerpt())]
    Limit {
        /// Where it was stopped.
        at: Location,
        /// The limit, with its value.
        what: String,
    },
    /// No built-in template has this name.
    #[error("no built-in chat template is named `{name}`; there are {known}")]
    UnknownBuiltin {
        /// The name asked for.
        name: String,
        /// The names there are, separated by commas.
        known: String,
    },
    /// Text that should be a list of messages is not.
    #[error("not a list of chat messages: {why}")]
    Messages {
        /// What is wrong, with line and column.
        why: String,
    },
}

impl Location {
    /// The line of `source` with this number.
    pub(crate) fn new(template: &str, source: &str, line: usize) -> Self {
        const WIDTH: usize = 100;
        // The engine's lines: those of `rewrite`.
        let source = rewrite::normal_lines(source);
        let whole = line.checked_sub(1).and_then(|index| source.lines().nth(index)).unwrap_or("").trim();
        let mut text: String = whole.chars().take(WIDTH).collect();
        if text.len() < whole.len() {
            text.push_str("...");
        }
        Self { template: one_line(template), line, text: one_line(&text) }
    }

    fn excerpt(&self) -> String {
        if self.text.is_empty() { String::new() } else { format!(", in `{}`", self.text) }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "chat template `{}`", self.template),
            line => write!(f, "chat template `{}`, line {line}", self.template),
        }
    }
}

/// Text with control characters, line ends among them, as spaces.
///
/// Templates are untrusted: what they say must not move the cursor of the terminal that shows the error.
pub(crate) fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}
