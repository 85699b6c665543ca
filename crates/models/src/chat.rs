//! A chat with a model: a conversation, the template that renders it, and answers that continue the cache.
//!
//! Each turn renders the whole conversation and encodes it; the cache keeps what it has in common with that, so that a
//! turn costs its own tokens. Where the context is full, the oldest turns are dropped.

use std::ops::ControlFlow;

use tallow_chat::{ChatError, Content, Context, Conversation, Message, Template};
use tallow_gguf::Tokenizer;

use crate::error::{Error, Result};
use crate::generate::{GenerateOptions, Generation, Stop, generate_after};
use crate::model::Model;

/// The template where neither the caller nor the file has one.
const DEFAULT_TEMPLATE: &str = "chatml";

/// The share of the context that is kept free for an answer: 1 / 4, or what was asked for if that is less.
const ANSWER_SHARE: usize = 4;

/// The role of what the model wrote.
const ASSISTANT: &str = "assistant";

/// Encloses the number of a text that is put into a rendering after it was encoded. A private-use character: no
/// template looks for it.
const MARK: char = '\u{f8ff}';

/// A model that chats.
#[derive(Debug)]
pub struct Chat {
    model: Model,
    template: Template,
    context: Context,
    conversation: Conversation,
}

/// An answer and what it took.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// The answer's text and figures.
    pub generation: Generation,
    /// Turns that were dropped because the context was full.
    pub dropped_turns: usize,
    /// Whether the template takes no system prompt, which was put in front of the first message then.
    pub system_in_user_message: bool,
}

/// An encoded conversation.
struct Prompt {
    ids: Vec<u32>,
    dropped_turns: usize,
    system_in_user_message: bool,
}

/// The template of a model file, named after its metadata key; the built-in `chatml` where it has none.
///
/// # Errors
/// [`ChatError::Parse`], with the line, when it is not valid Jinja.
pub fn template_of(tokenizer: &Tokenizer) -> std::result::Result<Template, ChatError> {
    match tokenizer.chat_template() {
        Some(source) => Template::parse("tokenizer.chat_template", source),
        None => Template::builtin(DEFAULT_TEMPLATE),
    }
}

/// The variables of a template: the texts of the tokens that begin and end a text, and a prompt for an answer.
pub fn context_of(tokenizer: &Tokenizer) -> Context {
    let mut context = Context { add_generation_prompt: true, ..Context::default() };
    for (name, id) in [("bos_token", tokenizer.bos()), ("eos_token", tokenizer.eos())] {
        context.token(name, id.and_then(|id| tokenizer.token_text(id)).unwrap_or_default());
    }
    context
}

/// The ids of one question to a model, as its template renders it.
///
/// # Errors
/// When the template cannot be rendered, or the vocabulary cannot spell the text.
pub fn encode_question(
    tokenizer: &Tokenizer,
    template: &Template,
    system: Option<&str>,
    question: &str,
) -> Result<Vec<u32>> {
    let mut conversation = Conversation::new();
    conversation.set_system(system.map(str::to_owned));
    conversation.push_user(question);
    Ok(encode(tokenizer, template, &context_of(tokenizer), &conversation)?.0)
}

impl Chat {
    /// A chat without a system prompt. `template` is [`template_of`] the model's tokenizer, or another one.
    pub fn new(model: Model, template: Template) -> Chat {
        let context = context_of(model.tokenizer());
        Chat { model, template, context, conversation: Conversation::new() }
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// What was said.
    pub fn conversation(&self) -> &Conversation {
        &self.conversation
    }

    /// Goes on with another conversation.
    pub fn set_conversation(&mut self, conversation: Conversation) {
        self.conversation = conversation;
    }

    /// Changes the system prompt, and forgets what was said under the other one.
    pub fn set_system(&mut self, prompt: Option<String>) {
        self.conversation.set_system(prompt);
        self.conversation.reset();
    }

    /// Forgets everything but the system prompt.
    pub fn reset(&mut self) {
        self.conversation.reset();
    }

    /// Says `text` to the model and gives its answer, which becomes part of the conversation. `on_text` is called as by
    /// [`generate_after`]; an answer that it ends stays as far as it got.
    ///
    /// # Errors
    /// When the template cannot be rendered, `text` alone is longer than the context, or generating fails. The
    /// conversation is then what it was, but for turns that were dropped.
    pub fn say(
        &mut self,
        text: &str,
        options: &GenerateOptions,
        on_text: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Answer> {
        self.conversation.push_user(text);
        let answer = self.answer(options, on_text);
        match &answer {
            Ok(answer) => self.conversation.push_assistant(answer.generation.text.trim()),
            Err(_) => {
                self.conversation.pop();
            }
        }
        answer
    }

    /// Generates an answer to the conversation. Where the context is full before its end, older turns make room, and it
    /// goes on.
    fn answer(
        &mut self,
        options: &GenerateOptions,
        on_text: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Answer> {
        let mut whole: Option<Answer> = None;
        loop {
            let written = whole.as_ref().map_or(&[][..], |answer| &answer.generation.tokens);
            let left = options.max_tokens - written.len();
            let prompt = match self.prompt(written, left) {
                Ok(prompt) => prompt,
                // There is nothing left to drop: the answer ends here.
                Err(Error::PromptTooLong { .. }) if whole.is_some() => break,
                Err(error) => return Err(error),
            };
            let options = GenerateOptions { max_tokens: left, ..options.clone() };
            let part = generate_after(&mut self.model, &prompt.ids, &options, on_text)?;
            let full = part.stop == Stop::Context;
            let (dropped_turns, system_in_user_message) =
                (prompt.dropped_turns, prompt.system_in_user_message);
            match &mut whole {
                None => whole = Some(Answer { generation: part, dropped_turns, system_in_user_message }),
                Some(answer) => {
                    answer.generation.append(part);
                    answer.dropped_turns += dropped_turns;
                }
            }
            if !full {
                break;
            }
        }
        // The loop ends only with an answer or an error.
        whole.ok_or(Error::EmptyPrompt)
    }

    /// The conversation and the `written` part of an answer as ids, with the oldest turns dropped until there is room for
    /// `wanted` tokens more, or for a share of the context.
    fn prompt(&mut self, written: &[u32], wanted: usize) -> Result<Prompt> {
        let context = self.model.context();
        let reserve = wanted.min(context / ANSWER_SHARE).max(1);
        let mut dropped_turns = 0;
        loop {
            let tokenizer = self.model.tokenizer();
            let (mut ids, system_in_user_message) =
                encode(tokenizer, &self.template, &self.context, &self.conversation)?;
            ids.extend(written);
            if ids.len() + reserve <= context {
                return Ok(Prompt { ids, dropped_turns, system_in_user_message });
            }
            if self.conversation.drop_oldest_turns(1) == 0 {
                // One turn alone may use what was kept for the answer.
                return match ids.len() < context {
                    true => Ok(Prompt { ids, dropped_turns, system_in_user_message }),
                    false => Err(Error::PromptTooLong { tokens: ids.len(), context }),
                };
            }
            dropped_turns += 1;
        }
    }
}

/// The ids of a conversation, and whether its system prompt went into the first message.
///
/// Control tokens count in what the template and the model wrote. In what a user wrote they are ordinary text, so that
/// no message can end its turn or speak for another role.
fn encode(
    tokenizer: &Tokenizer,
    template: &Template,
    context: &Context,
    conversation: &Conversation,
) -> Result<(Vec<u32>, bool)> {
    let mut quoted = Vec::new();
    let mut safe = Conversation::new();
    for message in conversation.messages() {
        safe.push(quote(tokenizer, message, &mut quoted));
    }
    let rendering = safe.render(template, context)?;
    let mut ids = Vec::new();
    for (index, part) in rendering.text.split(MARK).enumerate() {
        // Between two marks stands a number.
        let text = if index % 2 == 1 { part.parse().ok().and_then(|n: usize| quoted.get(n)) } else { None };
        match text {
            Some(text) => ids.extend(tokenizer.encode_ordinary(text, false)?),
            None => ids.extend(tokenizer.encode(part, false)?),
        }
    }
    // Templates that write the begin token do it themselves.
    if tokenizer.adds_bos() && ids.first().copied() != tokenizer.bos() {
        ids.splice(0..0, tokenizer.bos());
    }
    Ok((ids, rendering.system_in_user_message))
}

/// A message in whose text each control token that its author spelled out, and each mark, is the number of an entry of
/// `quoted` between marks.
fn quote(tokenizer: &Tokenizer, message: &Message, quoted: &mut Vec<String>) -> Message {
    let text = message.text();
    let mut controls: Vec<&str> =
        tokenizer.control_texts().filter(|control| text.contains(control)).collect();
    // Where one begins with another, the longer one counts.
    controls.sort_by_key(|control| std::cmp::Reverse(control.len()));
    if message.role == ASSISTANT || (controls.is_empty() && !text.contains(MARK)) {
        return message.clone();
    }
    let mut safe = String::with_capacity(text.len());
    let mut rest = text.as_str();
    while let Some(first) = rest.chars().next() {
        let control = controls.iter().find(|control| rest.starts_with(**control)).copied();
        let length = match (control, first == MARK) {
            (Some(control), _) => control.len(),
            (None, true) => MARK.len_utf8(),
            (None, false) => {
                safe.push(first);
                rest = &rest[first.len_utf8()..];
                continue;
            }
        };
        safe.push_str(&format!("{MARK}{}{MARK}", quoted.len()));
        quoted.push(rest[..length].to_owned());
        rest = &rest[length..];
    }
    Message { content: Some(Content::Text(safe)), ..message.clone() }
}
