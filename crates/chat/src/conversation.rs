//! The messages of one chat, and their text as a model reads it.

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
    /// Whether the system prompt was put in front of the user's first message, since the template takes none.
    pub system_in_user_message: bool,
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
    /// cache must be cut there and filled again.
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
    /// user's first message instead, and [`Rendering::system_in_user_message`] says so. A blank system prompt that the template
    /// refuses is left out.
    pub fn render(&self, template: &Template, context: &Context) -> Result<Rendering, ChatError> {
        let render = |messages| template.render(&Context { messages, ..context.clone() });
        let plain = render(self.messages.clone());
        let refused = matches!(plain, Err(ChatError::Raised { .. }));
        let Some(system) = self.system() else {
            return Ok(Rendering { text: plain?, system_in_user_message: false });
        };
        if system.trim().is_empty() {
            let text = if refused { render(self.history().to_vec()) } else { plain };
            return Ok(Rendering { text: text?, system_in_user_message: false });
        }
        let plain = match plain {
            Ok(text) => text,
            // The system role may not be all that it refuses.
            Err(_) if refused => {
                return Ok(Rendering { text: render(self.folded(&system))?, system_in_user_message: true });
            }
            Err(error) => return Err(error),
        };
        // The system prompt's own text could stand in the rendering for another reason, so one that stands nowhere in
        // it is looked for. A template that fails on that has read it.
        let probe = absent_from(&plain);
        let shows = |messages| render(messages).map(|text| text.contains(&probe));
        if shows(self.with_system_text(&probe)).unwrap_or(true) {
            return Ok(Rendering { text: plain, system_in_user_message: false });
        }
        // Perhaps the template takes no text of ours: then its own rendering is the better one.
        if shows(self.folded(&probe)).unwrap_or(false)
            && let Ok(text) = render(self.folded(&system))
        {
            return Ok(Rendering { text, system_in_user_message: true });
        }
        Ok(Rendering { text: plain, system_in_user_message: false })
    }

    /// The messages with another text as the system prompt.
    fn with_system_text(&self, text: &str) -> Vec<Message> {
        let mut messages = self.messages.clone();
        if let Some(system) = messages.first_mut() {
            system.replace_text(text);
        }
        messages
    }

    /// The messages with the system prompt in the user's first one.
    fn folded(&self, system: &str) -> Vec<Message> {
        let mut messages = self.history().to_vec();
        match messages.iter_mut().find(|message| message.role == USER) {
            Some(first) => first.prepend(system),
            None => messages.insert(0, Message::new(USER, system)),
        }
        messages
    }

    /// The messages after the system prompt.
    fn history(&self) -> &[Message] {
        &self.messages[self.history_start()..]
    }

    fn history_start(&self) -> usize {
        usize::from(self.messages.first().is_some_and(|message| message.role == SYSTEM))
    }
}

/// A text that is not in `text`: more private-use characters than stand there in a row.
fn absent_from(text: &str) -> String {
    const PROBE: char = '\u{f8fe}';
    let longest = text.split(|c| c != PROBE).map(|run| run.chars().count()).max().unwrap_or(0);
    PROBE.to_string().repeat(longest + 1)
}

fn json_error(error: &serde_json::Error) -> ChatError {
    ChatError::Messages { why: error.to_string() }
}
