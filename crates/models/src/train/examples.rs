//! Examples with completions to learn, from JSON lines: conversations, or prompts with their completions.

use std::path::Path;

use serde_json::Value as Json;
use tallow_chat::{Context, Conversation, Template};
use tallow_gguf::Tokenizer;

use super::corpus::mixed;
use super::error::TrainError;
use crate::chat::{context_of, encode};
use crate::error::Result;

/// The role of the messages that are learned.
const ASSISTANT: &str = "assistant";
/// How many of the last tokens are searched for one that ends a turn: templates write a line break after it.
const END_WITHIN: usize = 2;

/// Tokens, and which of them are learned.
#[derive(Clone, Debug, Default, PartialEq)]
struct Example {
    ids: Vec<u32>,
    is_learned: Vec<bool>,
}

/// The examples of a file.
#[derive(Clone, Debug)]
pub struct Examples {
    examples: Vec<Example>,
    /// How many were longer than the context, and lost their ends.
    cut: usize,
    /// How many were left out, as the context ends before what is to be learned.
    dropped: usize,
}

/// What a step takes: `batch * context` elements each.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch {
    /// The tokens.
    pub tokens: Vec<u32>,
    /// The tokens after each.
    pub targets: Vec<u32>,
    /// How much each target counts: 1 where it is learned, else 0.
    pub weights: Vec<f32>,
}

impl Examples {
    /// Reads a file of JSON lines. A line has `messages`, of which the assistant's are learned as the template renders
    /// them, or `prompt` and `completion`, of which the completion and the token that ends a text are. Other keys
    /// and blank lines are skipped. Special tokens that messages spell out are text.
    ///
    /// # Errors
    /// When the file cannot be read or has no examples, or a line is none; the message names the line.
    pub fn read(path: &Path, tokenizer: &Tokenizer, template: &Template) -> Result<Examples> {
        let read = |source| TrainError::Read { path: path.into(), source };
        let text = std::fs::read_to_string(path).map_err(read)?;
        let mut examples = vec![];
        for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty()) {
            let wrong =
                |why: String| TrainError::Data { path: path.into(), why: format!("line {number}: {why}") };
            let json: Json = serde_json::from_str(line).map_err(|error| wrong(error.to_string()))?;
            let example = match (json.get("messages"), json.get("prompt"), json.get("completion")) {
                (Some(messages), None, None) => conversation(tokenizer, template, messages),
                (None, Some(Json::String(prompt)), Some(Json::String(completion))) => {
                    completed(tokenizer, prompt, completion)
                }
                _ => Err("it has neither a list of messages nor texts called prompt and completion".into()),
            };
            examples.push(example.map_err(wrong)?);
        }
        if examples.is_empty() {
            return Err(TrainError::Data { path: path.into(), why: "it has no examples".into() }.into());
        }
        Ok(Examples { examples, cut: 0, dropped: 0 })
    }

    /// Tokens of the longest example that come before another one.
    pub fn longest(&self) -> usize {
        self.examples.iter().map(|example| example.ids.len().saturating_sub(1)).max().unwrap_or(0)
    }

    /// Cuts the examples to a context. Those that end before what is to be learned are left out.
    ///
    /// # Errors
    /// When none is left; `path` is the file.
    pub fn fit(mut self, context: usize, path: &Path) -> Result<Examples> {
        for example in &mut self.examples {
            if example.ids.len() > context + 1 {
                self.cut += 1;
                example.ids.truncate(context + 1);
                example.is_learned.truncate(context + 1);
            }
        }
        let before = self.examples.len();
        self.examples.retain(|example| example.is_learned.iter().skip(1).any(|learned| *learned));
        self.dropped = before - self.examples.len();
        if self.examples.is_empty() {
            let why = format!("no example has a token to learn within a context of {context}");
            return Err(TrainError::Data { path: path.into(), why }.into());
        }
        Ok(self)
    }

    /// The tokens of each example, and which of them are learned.
    pub(super) fn rows(&self) -> impl Iterator<Item = (&[u32], &[bool])> {
        self.examples.iter().map(|example| (example.ids.as_slice(), example.is_learned.as_slice()))
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.examples.len()
    }

    /// How many lost their ends, and how many were left out.
    pub fn shortened(&self) -> [usize; 2] {
        [self.cut, self.dropped]
    }

    /// Tokens of all examples.
    pub fn tokens(&self) -> usize {
        self.examples.iter().map(|example| example.ids.len()).sum()
    }

    /// The order of the examples in a pass: it depends on the seed and the number of the pass alone.
    fn order(&self, seed: u64, pass: u64) -> Vec<usize> {
        let key = mixed(mixed(seed) ^ mixed(pass).rotate_left(32));
        let mut order: Vec<usize> = (0..self.examples.len()).collect();
        order.sort_by_cached_key(|at| (mixed(key ^ *at as u64), *at));
        order
    }
}

/// Examples in the order of the steps: each pass has all of them once.
#[derive(Clone, Debug)]
pub struct Shuffled {
    examples: Examples,
    context: usize,
    batch: usize,
    seed: u64,
    /// The pass of the last batch, and its order.
    pass: (u64, Vec<usize>),
}

impl Shuffled {
    /// `batch` examples a step, each filled up to `context` tokens.
    pub fn new(examples: Examples, context: usize, batch: usize, seed: u64) -> Shuffled {
        let pass = (0, examples.order(seed, 0));
        Shuffled { examples, context, batch, seed, pass }
    }

    /// The examples.
    pub fn examples(&self) -> &Examples {
        &self.examples
    }

    /// The examples of step number `step`.
    pub fn batch(&mut self, step: usize) -> Batch {
        let mut batch = Batch::default();
        for row in 0..self.batch {
            let (number, count) = (step * self.batch + row, self.examples.count().max(1));
            let pass = (number / count) as u64;
            if pass != self.pass.0 {
                self.pass = (pass, self.examples.order(self.seed, pass));
            }
            let example = &self.examples.examples[self.pass.1[number % count]];
            for at in 0..self.context {
                // Padding comes last, so that no token sees it; which token it is does not matter.
                batch.tokens.push(example.ids.get(at).copied().unwrap_or(0));
                batch.targets.push(example.ids.get(at + 1).copied().unwrap_or(0));
                let is_learned = example.is_learned.get(at + 1) == Some(&true);
                batch.weights.push(if is_learned { 1.0 } else { 0.0 });
            }
        }
        batch
    }
}

/// A prompt and its completion. Both are encoded as one text, whose first differing token begins what is learned.
fn completed(tokenizer: &Tokenizer, prompt: &str, completion: &str) -> Result<Example, String> {
    let encode = |text: &str| -> Result<Vec<u32>, String> {
        let ids = tokenizer.encode_ordinary(text, false).map_err(|error| error.to_string())?;
        Ok(tokenizer.bos().filter(|_| tokenizer.adds_bos()).into_iter().chain(ids).collect())
    };
    if completion.is_empty() {
        return Err("the completion is empty".into());
    }
    let mut ids = encode(&format!("{prompt}{completion}"))?;
    let start = common(&ids, &encode(prompt)?);
    ids.extend(tokenizer.eos());
    let is_learned = (0..ids.len()).map(|at| at >= start).collect();
    Ok(Example { ids, is_learned })
}

/// A conversation, of which the assistant's messages are learned.
fn conversation(tokenizer: &Tokenizer, template: &Template, messages: &Json) -> Result<Example, String> {
    let all = Conversation::from_json(&messages.to_string()).map_err(|error| error.to_string())?;
    let asks = context_of(tokenizer);
    let tells = Context { add_generation_prompt: false, ..asks.clone() };
    let render = |count: usize, context: &Context| -> Result<Vec<u32>, String> {
        let mut first = Conversation::new();
        all.messages().iter().take(count).for_each(|message| first.push(message.clone()));
        let encoded = encode(tokenizer, template, context, &first);
        Ok(encoded.map_err(|error| error.to_string())?.0)
    };
    let mut ids = render(all.messages().len(), &tells)?;
    let mut is_learned = vec![false; ids.len()];
    for (at, message) in all.messages().iter().enumerate() {
        if message.role == ASSISTANT {
            // Templates may render a message otherwise once others follow: what agrees is learned.
            let start = common(&ids, &render(at, &asks)?);
            let end = common(&ids, &render(at + 1, &tells)?);
            is_learned.iter_mut().take(end).skip(start).for_each(|learned| *learned = true);
        }
    }
    if !is_learned.contains(&true) {
        return Err("no message of the assistant is rendered".into());
    }
    let is_last_learned = is_learned.last() == Some(&true);
    let ends = ids.iter().rev().take(END_WITHIN).any(|id| tokenizer.is_end(*id));
    if let Some(end) = tokenizer.eos().filter(|_| is_last_learned && !ends) {
        ids.push(end);
        is_learned.push(true);
    }
    Ok(Example { ids, is_learned })
}

/// How many tokens both begin with.
fn common(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}
