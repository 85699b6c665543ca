//! Messages of a chat, in the JSON form that OpenAI's API introduced.

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

/// One message of a chat; fields that this crate does not know are kept for the template.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// Who speaks: `system`, `user`, `assistant`, `tool`, or what else the template knows.
    pub role: String,
    /// What is said; absent and null are different to templates.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub content: Option<Content>,
    /// The speaker's or the tool's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The calls of tools in an assistant's message, as the template expects them.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<Value>,
    /// The call that a tool's message answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// All other fields, in their order.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// The content of a message.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Content {
    /// Plain text.
    Text(String),
    /// Parts such as `{"type": "text", "text": ".."}`.
    Parts(Vec<Value>),
    /// Null, as beside `tool_calls`.
    Null,
}

impl Message {
    /// A message of plain text.
    pub fn new(role: impl Into<String>, text: impl Into<String>) -> Self {
        Self {
            role: role.into(),
            content: Some(Content::Text(text.into())),
            name: None,
            tool_calls: None,
            tool_call_id: None,
            other: Map::new(),
        }
    }

    /// The text of the message: that of its text parts one after another, empty if it has none.
    pub fn text(&self) -> String {
        match &self.content {
            Some(Content::Text(text)) => text.clone(),
            Some(Content::Parts(parts)) => {
                parts.iter().filter_map(|part| part.get("text").and_then(Value::as_str)).collect()
            }
            Some(Content::Null) | None => String::new(),
        }
    }

    /// Makes `text` the whole text of a message that has one, in the form that its content has.
    pub(crate) fn replace_text(&mut self, text: &str) {
        let Some(Content::Parts(parts)) = &mut self.content else {
            self.content = Some(Content::Text(text.to_owned()));
            return;
        };
        let mut text = Some(text);
        for part in parts.iter_mut().filter_map(|part| part.get_mut("text")).filter(|part| part.is_string()) {
            *part = Value::from(text.take().unwrap_or(""));
        }
    }

    /// Puts `text` and an empty line in front of the message's content.
    pub(crate) fn prepend(&mut self, text: &str) {
        match &mut self.content {
            Some(Content::Text(content)) => *content = format!("{text}\n\n{content}"),
            Some(Content::Parts(parts)) => {
                parts.insert(0, serde_json::json!({"type": "text", "text": format!("{text}\n\n")}));
            }
            Some(Content::Null) | None => self.content = Some(Content::Text(text.to_owned())),
        }
    }
}

/// Reads a field that is there, so that null is `Some`.
fn present<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}
