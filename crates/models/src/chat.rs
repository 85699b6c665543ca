//! A chat with a model: a conversation, the template that renders it, and answers that continue the cache.
//!
//! Each turn renders the whole conversation and encodes it; the cache keeps what it has in common with that, so that a
//! turn costs its own tokens. Where the context is full, the oldest turns are dropped.

use std::ops::ControlFlow;

use tallow_chat::{ChatError, Context, Conversation, Template};
use tallow_gguf::Tokenizer;

use crate::error::{Error, Result};
use crate::escape::Escaped;
use crate::generate::{GenerateOptions, Generation, Stop, generate_after};
use crate::model::Model;

/// The template where neither the caller nor the file has one.
const DEFAULT_TEMPLATE: &str = "chatml";

/// The share of the context that is kept free for an answer: 1 / 4, or what was asked for if that is less.
const ANSWER_SHARE: usize = 4;

/// A model that chats.
#[derive(Debug)]
pub struct Chat {
    model: Model,
    template: Template,
    context: Context,
    conversation: Conversation,
    /// Texts generated so far: each draws with a seed of its own.
    drawn: u64,
}

/// An answer and what it took.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// The answer's text and figures.
    pub generation: Generation,
    /// Turns that were dropped because the context was full.
    pub dropped_turns: usize,
    /// Whether the template takes no system prompt, which was put in front of the user's first message then.
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

/// The ids of a conversation as a template renders it, with a prompt for an answer. Special tokens count in what the
/// template wrote; those that a message spells out are text.
///
/// # Errors
/// When the template cannot be rendered, or the vocabulary cannot spell the text.
pub fn encode_conversation(
    tokenizer: &Tokenizer,
    template: &Template,
    conversation: &Conversation,
) -> Result<Vec<u32>> {
    Ok(encode(tokenizer, template, &context_of(tokenizer), conversation)?.0)
}

impl Chat {
    /// A chat without a system prompt. `template` is [`template_of`] the model's tokenizer, or another one.
    pub fn new(model: Model, template: Template) -> Chat {
        let context = context_of(model.tokenizer());
        Chat { model, template, context, conversation: Conversation::new(), drawn: 0 }
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
        self.conversation.set_system(prompt.filter(|text| !text.trim().is_empty()));
        self.conversation.reset();
    }

    /// Forgets everything but the system prompt.
    pub fn reset(&mut self) {
        self.conversation.reset();
    }

    /// Says `text` to the model and gives its answer, which becomes part of the conversation. `on_text` is called as by
    /// [`generate_after`]; an answer that it ends stays as far as it got, and one that it ends before the first token
    /// is as if `text` had not been said. The seed of `options` counts up with each answer.
    ///
    /// # Errors
    /// When the template cannot be rendered, `text` alone is longer than the context, or generating fails. The
    /// conversation is then what it was.
    pub fn say(
        &mut self,
        text: &str,
        options: &GenerateOptions,
        on_text: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Answer> {
        let before = self.conversation.clone();
        self.conversation.push_user(text);
        let answer = self.answer(options, on_text);
        match &answer {
            Ok(Answer { generation: Generation { stop: Stop::Caller, tokens, .. }, .. })
                if tokens.is_empty() =>
            {
                self.conversation = before;
            }
            Ok(answer) => self.conversation.push_assistant(answer.generation.text.trim()),
            Err(_) => self.conversation = before,
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
        let mut joined: Option<Answer> = None;
        loop {
            let written = joined.as_ref().map_or(&[][..], |answer| &answer.generation.tokens);
            let left = options.max_tokens - written.len();
            let prompt = match self.prompt(written, left) {
                Ok(prompt) => prompt,
                // There is nothing left to drop: the answer ends here.
                Err(Error::PromptTooLong { .. }) if joined.is_some() => break,
                Err(error) => return Err(error),
            };
            let mut options = GenerateOptions { max_tokens: left, ..options.clone() };
            options.sampling.seed = options.sampling.seed.wrapping_add(self.drawn);
            self.drawn += 1;
            let part = generate_after(&mut self.model, &prompt.ids, &options, on_text)?;
            let full = part.stop == Stop::Context;
            let (dropped_turns, system_in_user_message) =
                (prompt.dropped_turns, prompt.system_in_user_message);
            match &mut joined {
                None => joined = Some(Answer { generation: part, dropped_turns, system_in_user_message }),
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
        joined.ok_or(Error::EmptyPrompt)
    }

    /// The conversation and the `written` part of an answer as ids, with the oldest turns dropped until there is room for
    /// `wanted` tokens more, or for a share of the context. None is dropped where that does not help.
    fn prompt(&mut self, written: &[u32], wanted: usize) -> Result<Prompt> {
        let context = self.model.context();
        let reserve = wanted.min(context / ANSWER_SHARE).max(1);
        let mut conversation = self.conversation.clone();
        let mut dropped_turns = 0;
        loop {
            let (mut ids, system_in_user_message) =
                encode(self.model.tokenizer(), &self.template, &self.context, &conversation)?;
            ids.extend(written);
            if ids.len() + reserve > context && conversation.drop_oldest_turns(1) > 0 {
                dropped_turns += 1;
                continue;
            }
            // One turn alone may use what is kept for the answer.
            if ids.len() >= context {
                return Err(Error::PromptTooLong { tokens: ids.len(), context });
            }
            self.conversation = conversation;
            return Ok(Prompt { ids, dropped_turns, system_in_user_message });
        }
    }
}

/// The ids of a conversation, and whether its system prompt went into the first message.
///
/// Special tokens count in what the template wrote; in messages they are text ([`crate::escape`]).
pub(crate) fn encode(
    tokenizer: &Tokenizer,
    template: &Template,
    context: &Context,
    conversation: &Conversation,
) -> Result<(Vec<u32>, bool)> {
    let mut escaped = Escaped::new(template, conversation.messages());
    let mut safe = Conversation::new();
    for message in conversation.messages() {
        safe.push(escaped.message(tokenizer, template, message));
    }
    let rendering = safe.render(template, context)?;
    let mut ids = tokenizer.encode_parts(&escaped.parts(&rendering.text))?;
    // Templates that write the begin token do it themselves.
    if tokenizer.adds_bos() && ids.first().copied() != tokenizer.bos() {
        ids.splice(0..0, tokenizer.bos());
    }
    Ok((ids, rendering.system_in_user_message))
}
