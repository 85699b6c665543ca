//! What a template can see.

use std::collections::BTreeMap;

use jiff::civil::DateTime;
use serde_json::{Map, Value};

use crate::Message;

/// The variables of a rendering, under the names that Hugging Face's transformers gives them.
#[derive(Debug, Clone, Default)]
pub struct Context {
    /// `messages`: the chat so far.
    pub messages: Vec<Message>,
    /// `tools`: JSON schemas of the functions that the model may call; `None` to the template if absent.
    pub tools: Option<Vec<Value>>,
    /// `documents`: texts for retrieval-augmented generation; `None` to the template if absent.
    pub documents: Option<Vec<Value>>,
    /// `add_generation_prompt`: whether to end with what starts the assistant's message.
    pub add_generation_prompt: bool,
    /// Texts of special tokens under names such as `bos_token` and `eos_token`; others are undefined.
    pub special_tokens: BTreeMap<String, String>,
    /// More variables, such as `enable_thinking`; they win over those above.
    pub variables: Map<String, Value>,
    /// The local time that `strftime_now` formats; the clock's if absent.
    pub now: Option<DateTime>,
}

impl Context {
    /// Names the text of a special token, as in `context.token("bos_token", "<s>")`.
    pub fn token(&mut self, name: impl Into<String>, text: impl Into<String>) -> &mut Self {
        self.special_tokens.insert(name.into(), text.into());
        self
    }
}
