//! Messages whose texts cannot act as special tokens: what a user typed must not end a turn or speak for another role.
//!
//! Each special token that a message spells out is replaced by a placeholder before the template sees it, and encoded
//! as plain text where the placeholder stands in the rendering.

use serde_json::Value;
use tallow_chat::{Message, Template};
use tallow_gguf::{Recognize, Tokenizer};

/// Encloses a placeholder. A private-use character: no template looks for it.
const MARK: char = '\u{f8ff}';

/// The role of what the model wrote.
const ASSISTANT: &str = "assistant";

/// Placeholders and the texts that they stand for.
pub(crate) struct Escaped {
    /// How each placeholder begins; in no message and not in the template.
    opening: String,
    texts: Vec<String>,
}

impl Escaped {
    /// No placeholders yet, for these messages under this template.
    pub(crate) fn new(template: &Template, messages: &[Message]) -> Escaped {
        let mut all: Vec<String> = vec![template.source().to_owned()];
        messages.iter().for_each(|message| {
            let value = serde_json::to_value(message).unwrap_or_default();
            each_string(&value, &mut |text| all.push(text.to_owned()));
        });
        let opening = (0u32..)
            .map(|key| format!("{MARK}{key}."))
            .find(|opening| !all.iter().any(|text| text.contains(opening.as_str())))
            .expect("invariant: finitely many texts do not contain all numbers");
        Escaped { opening, texts: Vec::new() }
    }

    /// The message with placeholders.
    pub(crate) fn message(
        &mut self,
        tokenizer: &Tokenizer,
        template: &Template,
        message: &Message,
    ) -> Message {
        let value = serde_json::to_value(message).unwrap_or_default();
        let mut found: Vec<&str> = tokenizer.control_texts().collect();
        // Some files call the markers of roles user-defined. Models write such tokens themselves, for example around
        // what they think, so that those in their own messages keep their meaning.
        if message.role != ASSISTANT {
            found.extend(tokenizer.user_defined_texts().filter(|text| template.source().contains(text)));
        }
        let mut strings = Vec::new();
        each_string(&value, &mut |text| strings.push(text.to_owned()));
        found.retain(|special| !special.is_empty() && strings.iter().any(|text| text.contains(special)));
        if found.is_empty() {
            return message.clone();
        }
        // Where one begins with another, the longer one counts.
        found.sort_by_key(|special| std::cmp::Reverse(special.len()));
        // The names of fields stay: a file may call a token `role`.
        let escaped = match value {
            Value::Object(fields) => {
                let mut field = |value| map_strings(value, &mut |text| self.text(&found, text));
                Value::Object(fields.into_iter().map(|(name, value)| (name, field(value))).collect())
            }
            other => other,
        };
        serde_json::from_value(escaped).expect("invariant: strings stay strings, so that the message is one")
    }

    /// `text` with a placeholder for each of `special`.
    fn text(&mut self, special: &[&str], text: &str) -> String {
        let mut escaped = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            let length = match special.iter().find(|special| rest.starts_with(**special)) {
                Some(special) => {
                    escaped.push_str(&format!("{}{}{MARK}", self.opening, self.texts.len()));
                    self.texts.push((*special).to_owned());
                    special.len()
                }
                None => {
                    escaped.push(first);
                    first.len_utf8()
                }
            };
            rest = &rest[length..];
        }
        escaped
    }

    /// The parts of a rendering: around placeholders, special tokens count; their texts are text.
    pub(crate) fn parts<'t>(&'t self, rendering: &'t str) -> Vec<(&'t str, Recognize)> {
        let mut parts = Vec::new();
        let (mut start, mut at) = (0, 0);
        while let Some(found) = rendering[at..].find(&self.opening) {
            let open = at + found;
            let number = open + self.opening.len();
            at = number;
            // What a template cut a placeholder to is text.
            let Some(length) = rendering[number..].find(MARK) else { break };
            let index = rendering[number..number + length].parse::<usize>().ok();
            if let Some(text) = index.and_then(|index| self.texts.get(index)) {
                parts.push((&rendering[start..open], Recognize::Special));
                parts.push((text.as_str(), Recognize::Nothing));
                start = number + length + MARK.len_utf8();
                at = start;
            }
        }
        parts.push((&rendering[start..], Recognize::Special));
        parts
    }
}

/// Calls `each` with every string in a value, keys among them.
fn each_string(value: &Value, each: &mut dyn FnMut(&str)) {
    match value {
        Value::String(text) => each(text),
        Value::Array(values) => values.iter().for_each(|value| each_string(value, each)),
        Value::Object(map) => map.iter().for_each(|(key, value)| {
            each(key);
            each_string(value, each);
        }),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// The value with every string replaced, keys among them.
fn map_strings(value: Value, map: &mut dyn FnMut(&str) -> String) -> Value {
    match value {
        Value::String(text) => Value::String(map(&text)),
        Value::Array(values) => values.into_iter().map(|value| map_strings(value, map)).collect(),
        Value::Object(fields) => Value::Object(
            fields.into_iter().map(|(key, value)| (map(&key), map_strings(value, map))).collect(),
        ),
        Value::Null | Value::Bool(_) | Value::Number(_) => value,
    }
}
