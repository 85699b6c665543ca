//! The messages of one chat, and what of their text a model has yet to read.

use crate::{ChatError, Context, Message, Template};

const SYSTEM: &str = "system";
const USER: &str = "user";
const ASSISTANT: &str = "assistant";

/// The messages of one chat: perhaps a system prompt, then turns that each start with the user's message.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Conversation {
    messages: Vec<Message>,
}

/// A conversation as the text that the model reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendering {
    /// The whole text, special tokens among it.
    pub text: String,
    /// Whether the system prompt stands in the user's first message, since the template has no system role.
    pub system_folded: bool,
}

/// What to feed next to a model whose KV cache holds an earlier text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Feed<'a> {
    /// The cache holds the start of the text: feed this rest of it, which may be empty.
    Append(&'a str),
    /// The texts differ after this many bytes, a border between characters: cut the cache there or start over.
    Restart(usize),
}

impl Conversation {
    /// A chat without a system prompt.
    pub fn new() -> Self {
        Self::default()
    }

    /// A chat with a system prompt.
    pub fn with_system(prompt: impl Into<String>) -> Self {
        Self { messages: vec![Message::new(SYSTEM, prompt)] }
    }

    /// The system prompt, if there is one.
    pub fn system(&self) -> Option<String> {
        self.messages.first().filter(|message| message.role == SYSTEM).map(Message::text)
    }

    /// Replaces, adds or removes the system prompt.
    pub fn set_system(&mut self, prompt: Option<String>) {
        let old = self.history_start();
        self.messages.splice(..old, prompt.map(|prompt| Message::new(SYSTEM, prompt)));
    }

    /// All messages, the system prompt first.
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// The number of turns: messages of the user, each with what follows it.
    pub fn turns(&self) -> usize {
        self.messages.iter().filter(|message| message.role == USER).count()
    }

    /// Adds a message of the user.
    pub fn push_user(&mut self, text: impl Into<String>) {
        self.push(Message::new(USER, text));
    }

    /// Adds a reply of the model.
    pub fn push_assistant(&mut self, text: impl Into<String>) {
        self.push(Message::new(ASSISTANT, text));
    }

    /// Adds any message, such as a tool's result.
    pub fn push(&mut self, message: Message) {
        self.messages.push(message);
    }

    /// Takes back the last message, unless only the system prompt is left.
    pub fn pop(&mut self) -> Option<Message> {
        if self.messages.len() > self.history_start() { self.messages.pop() } else { None }
    }

    /// Forgets everything but the system prompt.
    pub fn reset(&mut self) {
        self.messages.truncate(self.history_start());
    }

    /// Removes up to `count` of the oldest turns and returns how many; the system prompt and the last turn stay.
    ///
    /// A turn goes as a whole, so that roles alternate as before. Afterwards the text differs early: the model's KV
    /// cache must be cut or filled again, as [`Rendering::after`] says.
    pub fn drop_oldest_turns(&mut self, count: usize) -> usize {
        let start = self.history_start();
        let users: Vec<usize> =
            (start..self.messages.len()).filter(|&index| self.messages[index].role == USER).collect();
        let dropped = count.min(users.len().saturating_sub(1));
        if dropped > 0 {
            self.messages.drain(start..users[dropped]);
        }
        dropped
    }

    /// The messages as JSON, a list as OpenAI's API takes it.
    pub fn to_json(&self) -> Result<String, ChatError> {
        serde_json::to_string_pretty(&self.messages).map_err(|error| json_error(&error))
    }

    /// Reads a list of messages as [`to_json`](Self::to_json) writes it.
    pub fn from_json(json: &str) -> Result<Self, ChatError> {
        serde_json::from_str(json).map(|messages| Self { messages }).map_err(|error| json_error(&error))
    }

    /// Renders these messages with the other variables of `context`, whose own messages do not count.
    ///
    /// Where the template refuses the system role or leaves its text out, the system prompt is put in front of the
    /// user's first message instead, and [`Rendering::system_folded`] says so.
    pub fn render(&self, template: &Template, context: &Context) -> Result<Rendering, ChatError> {
        let render = |messages| template.render(&Context { messages, ..context.clone() });
        let plain = render(self.messages.clone());
        let Some(system) = self.system().filter(|text| !text.trim().is_empty()) else {
            return Ok(Rendering { text: plain?, system_folded: false });
        };
        let missing = match &plain {
            Ok(text) => !text.contains(system.trim()),
            Err(error) => matches!(error, ChatError::Raised { .. }),
        };
        if !missing {
            return Ok(Rendering { text: plain?, system_folded: false });
        }
        match (render(self.folded(&system)), plain) {
            (Ok(text), _) if text.contains(system.trim()) => Ok(Rendering { text, system_folded: true }),
            // Escaped, perhaps, or the template takes no text of ours: then its own rendering is the better one.
            (_, Ok(text)) => Ok(Rendering { text, system_folded: false }),
            (Ok(text), Err(_)) => Ok(Rendering { text, system_folded: true }),
            // The system role was not all that it refused.
            (Err(error), Err(_)) => Err(error),
        }
    }

    /// The messages with the system prompt in the user's first one.
    fn folded(&self, system: &str) -> Vec<Message> {
        let mut messages = self.messages[self.history_start()..].to_vec();
        match messages.iter_mut().find(|message| message.role == USER) {
            Some(first) => first.prepend(system),
            None => messages.insert(0, Message::new(USER, system)),
        }
        messages
    }

    fn history_start(&self) -> usize {
        usize::from(self.messages.first().is_some_and(|message| message.role == SYSTEM))
    }
}

impl Rendering {
    /// What to feed to a model that has read `fed`: earlier renderings and the replies that it wrote itself.
    ///
    /// A template that rewrites replies, say by trimming them or by leaving reasoning out, makes a restart necessary.
    pub fn after(&self, fed: &str) -> Feed<'_> {
        if let Some(rest) = self.text.strip_prefix(fed) {
            return Feed::Append(rest);
        }
        let same = self.text.chars().zip(fed.chars()).take_while(|(a, b)| a == b);
        Feed::Restart(same.map(|(c, _)| c.len_utf8()).sum())
    }
}

fn json_error(error: &serde_json::Error) -> ChatError {
    ChatError::Messages { why: error.to_string() }
}
