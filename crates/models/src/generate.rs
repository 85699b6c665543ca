//! Generating text: feed the prompt, then draw and feed one token at a time. Where the best token is always the next
//! one, the device chooses it, and no logits are read.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use tallow_gguf::{DecodeStream, Tokenizer};

use crate::error::Result;
use crate::model::Model;
use crate::sampler::{Sampler, SamplingOptions};
use crate::tokens::check_tokens;

/// How long and how to generate.
#[derive(Clone, Debug, PartialEq)]
pub struct GenerateOptions {
    /// The most tokens to generate.
    pub max_tokens: usize,
    /// How each token is chosen.
    pub sampling: SamplingOptions,
}

/// Why a text ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The model produced an end token.
    End,
    /// As many tokens as asked for.
    MaxTokens,
    /// The context is full. What there is of a character that is not complete is left out of the text.
    Context,
    /// The caller did not want more.
    Caller,
}

/// A generated text and its figures.
#[derive(Clone, Debug, PartialEq)]
pub struct Generation {
    /// The text, without the prompt.
    pub text: String,
    /// Its tokens, without the prompt's and without the end token.
    pub tokens: Vec<u32>,
    /// Why it ended.
    pub stop: Stop,
    /// Tokens of the prompt that were computed: all but those that the cache held before.
    pub prompt_tokens: usize,
    /// Time that the prompt took.
    pub prompt_time: Duration,
    /// Steps that took one token each.
    pub decode_steps: usize,
    /// Time that these steps took, choosing included.
    pub decode_time: Duration,
}

impl Generation {
    /// No text, as the caller wanted none.
    fn stopped() -> Generation {
        let zero = Duration::ZERO;
        let (text, tokens) = (String::new(), Vec::new());
        Generation {
            text,
            tokens,
            stop: Stop::Caller,
            prompt_tokens: 0,
            prompt_time: zero,
            decode_steps: 0,
            decode_time: zero,
        }
    }

    /// Appends what was generated after this, on a prompt that was computed anew.
    pub(crate) fn append(&mut self, next: Generation) {
        self.text.push_str(&next.text);
        self.tokens.extend(next.tokens);
        self.stop = next.stop;
        self.prompt_tokens += next.prompt_tokens;
        self.prompt_time += next.prompt_time;
        self.decode_steps += next.decode_steps;
        self.decode_time += next.decode_time;
    }

    /// Prompt tokens per second.
    pub fn prompt_rate(&self) -> f64 {
        rate(self.prompt_tokens, self.prompt_time)
    }

    /// Decode steps per second; 0 if there were none.
    pub fn decode_rate(&self) -> f64 {
        rate(self.decode_steps, self.decode_time)
    }
}

fn rate(count: usize, time: Duration) -> f64 {
    if count == 0 { 0.0 } else { count as f64 / time.as_secs_f64().max(1e-9) }
}

/// Starts a new text with `prompt` and generates. `on_text` gets each piece as soon as its characters are
/// complete, and may end the text by returning `Break`.
///
/// # Errors
/// When the prompt is empty or does not fit the context, an option is out of its range, a logit is NaN, or
/// the device fails.
pub fn generate(
    model: &mut Model,
    prompt: &[u32],
    options: &GenerateOptions,
    on_text: &mut dyn FnMut(&str) -> ControlFlow<()>,
) -> Result<Generation> {
    model.reset();
    generate_after(model, prompt, options, on_text)
}

/// As [`generate`], but computes only what the cache does not hold of `prompt` already: the next turn of a chat costs
/// its own tokens. Keys and values of tokens that were generated stay as decode steps computed them, so that a text
/// may differ in rounding from one that starts anew. `on_text` is also called with an empty piece before each part of
/// a long prompt, so that a caller can end it there.
///
/// # Errors
/// As there. The cache then holds what was computed before.
pub fn generate_after(
    model: &mut Model,
    prompt: &[u32],
    options: &GenerateOptions,
    on_text: &mut dyn FnMut(&str) -> ControlFlow<()>,
) -> Result<Generation> {
    let mut sampler = Sampler::new(options.sampling.clone())?;
    check_tokens(prompt, 0, model.context(), model.vocabulary())?;
    let start = Instant::now();
    let on_device = options.sampling.is_greedy();
    let cached = model.keep_prefix(prompt);
    let mut logits = Vec::new();
    for part in prompt[cached..].chunks(model.chunk()) {
        if on_text("").is_break() {
            let (prompt_tokens, prompt_time) = (model.position() - cached, start.elapsed());
            return Ok(Generation { prompt_tokens, prompt_time, ..Generation::stopped() });
        }
        model.feed_into(part, &mut logits)?;
    }
    let mut next = sampler.sample(&logits, prompt)?;
    let prompt_time = start.elapsed();

    let start = Instant::now();
    let tokenizer = model.tokenizer().clone();
    let mut text = Text {
        tokenizer: &tokenizer,
        decoder: tokenizer.decode_stream_after(prompt),
        text: String::new(),
        tokens: prompt.to_vec(),
        most: prompt.len().saturating_add(options.max_tokens),
        on_text,
    };
    let mut decode_steps = 0;
    let mut stop = text.take(next);
    if on_device && stop.is_none() && model.position() < model.context() {
        let left = text.most - text.tokens.len();
        decode_steps = model.follow_greedy(next, left, &mut |token| {
            stop = text.take(token);
            if stop.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
    }
    let stop = loop {
        if let Some(stop) = stop {
            break stop;
        }
        if model.position() == model.context() {
            break Stop::Context;
        }
        model.feed_into(&[next], &mut logits)?;
        next = sampler.sample(&logits, &text.tokens)?;
        decode_steps += 1;
        stop = text.take(next);
    };
    let decode_time = start.elapsed();
    match stop {
        Stop::End | Stop::MaxTokens => text.finish(),
        // Where the context is full, a caller may go on, and complete the character.
        Stop::Context | Stop::Caller => {}
    }
    let Text { text, tokens: mut all, .. } = text;
    let tokens = all.split_off(prompt.len());
    let prompt_tokens = prompt.len() - cached;
    Ok(Generation { text, tokens, stop, prompt_tokens, prompt_time, decode_steps, decode_time })
}

/// The text so far, and who listens to it.
struct Text<'a> {
    tokenizer: &'a Tokenizer,
    decoder: DecodeStream<'a>,
    text: String,
    /// The prompt's and those of the text.
    tokens: Vec<u32>,
    /// As many as there may be.
    most: usize,
    on_text: &'a mut dyn FnMut(&str) -> ControlFlow<()>,
}

impl Text<'_> {
    /// Appends a token; says why the text ends with it or before it.
    fn take(&mut self, token: u32) -> Option<Stop> {
        if self.tokens.len() >= self.most {
            return Some(Stop::MaxTokens);
        }
        if self.tokenizer.is_end(token) {
            return Some(Stop::End);
        }
        self.tokens.push(token);
        if let Some(piece) = self.decoder.push(token) {
            self.text.push_str(&piece);
            if (self.on_text)(&piece).is_break() {
                return Some(Stop::Caller);
            }
        }
        (self.tokens.len() == self.most).then_some(Stop::MaxTokens)
    }

    /// Gives what is left of characters that are not complete.
    fn finish(&mut self) {
        if let Some(rest) = self.decoder.finish() {
            self.text.push_str(&rest);
            // The text has ended, whatever the caller answers.
            let _ = (self.on_text)(&rest);
        }
    }
}
