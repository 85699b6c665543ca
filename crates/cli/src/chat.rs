//! `tallow chat`: a conversation at the terminal.

mod command;
mod interrupt;

use std::io::{IsTerminal, Write};
use std::ops::ControlFlow;

use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;
use tallow_chat::Conversation;
use tallow_models::chat::{Answer, Chat};
use tallow_models::generate::{GenerateOptions, Stop};
use tallow_models::{Decode, Error as ModelError};

use crate::args::{ChatArgs, SamplingDefaults};
use crate::device::{Chosen, choose_for};
use crate::error::{Error, Result};
use crate::load::{load, open, options};
use crate::template::choose_template;
use command::Command;
use interrupt::Interrupt;

/// What stands in front of a line to type.
const PROMPT: &str = "> ";

/// Lines that `/help` prints.
const HELP: &str = "\
/help           this list
/reset          forget the conversation, but not the system prompt
/system [TEXT]  show the system prompt, or replace it and start over
/save FILE      write the conversation as JSON
/load FILE      go on with a saved conversation
/stats          what the last answer took, and how full the context is
/quit           leave; so does Ctrl-D
Ctrl-C stops an answer. A line that ends in \\ goes on in the next one.";

/// A chat at the terminal.
struct Repl {
    chat: Chat,
    options: GenerateOptions,
    interrupt: Interrupt,
    chosen: Chosen,
    last: Option<Answer>,
}

/// Runs the command.
pub fn chat(args: &ChatArgs) -> Result<()> {
    let sampling = args.sampling.options(SamplingDefaults::CHAT);
    sampling.check()?;
    let file = open(&args.model, args.load.pre.as_deref())?;
    let template = choose_template(args.template.chat_template.as_deref(), &file)?;
    let decode = if sampling.is_greedy() { Decode::Token } else { Decode::Logits };
    let chosen = choose_for(args.load.device.as_deref(), &file, &options(&args.load))?;
    let model = load(file, &chosen.device, &args.load, decode)?;
    let mut chat = Chat::new(model, template);
    chat.set_system(args.template.system.clone());
    if let Some(path) = &args.resume {
        chat.set_conversation(read_conversation(path)?);
    }
    let max_tokens = args.max_tokens.unwrap_or(usize::MAX);
    let options = GenerateOptions { max_tokens, sampling };
    let mut repl = Repl { chat, options, interrupt: Interrupt::install()?, chosen, last: None };
    match &args.prompt {
        Some(question) => repl.ask(question),
        None => repl.run(),
    }
}

impl Repl {
    /// Reads lines until there are no more.
    fn run(&mut self) -> Result<()> {
        let mut editor = DefaultEditor::new().map_err(Error::Terminal)?;
        if std::io::stdin().is_terminal() {
            note("/help lists commands, Ctrl-C stops an answer, Ctrl-D leaves");
        }
        loop {
            let text = match read(&mut editor) {
                Ok(text) if text.trim().is_empty() => continue,
                Ok(text) => text,
                Err(ReadlineError::Interrupted) => {
                    note("Ctrl-D or /quit leaves");
                    continue;
                }
                Err(ReadlineError::Eof) => return Ok(()),
                Err(error) => return Err(Error::Terminal(error)),
            };
            // What cannot be remembered was read all the same.
            let _ = editor.add_history_entry(&text);
            let done = match Command::parse(&text) {
                Some(Ok(Command::Quit)) => return Ok(()),
                Some(Ok(command)) => self.command(command),
                Some(Err(why)) => {
                    note(&why);
                    continue;
                }
                None => self.ask(&text),
            };
            match done {
                Ok(()) => {}
                // Without anyone to read, or a device to compute, there is no going on.
                Err(error @ (Error::Output(_) | Error::Run(ModelError::Tensor(_)))) => return Err(error),
                Err(error) => note(&crate::error::one_line(&error)),
            }
        }
    }

    /// Carries a command out.
    fn command(&mut self, command: Command) -> Result<()> {
        match command {
            Command::Help => note(HELP),
            Command::Reset => {
                self.chat.reset();
                note("the conversation starts over");
            }
            Command::ShowSystem => match self.chat.conversation().system() {
                Some(text) => note(&text),
                None => note("there is no system prompt"),
            },
            Command::System(text) => {
                self.chat.set_system(Some(text));
                note("the conversation starts over with this system prompt");
            }
            Command::Save(path) => {
                let json = self.chat.conversation().to_json()?;
                std::fs::write(&path, json).map_err(|source| Error::Write { path: path.clone(), source })?;
                note(&format!("saved to {}", path.display()));
            }
            Command::Load(path) => {
                self.chat.set_conversation(read_conversation(&path)?);
                note(&format!("{} turns", self.chat.conversation().turns()));
            }
            Command::Stats => note(&self.stats()),
            // The caller leaves.
            Command::Quit => {}
        }
        Ok(())
    }

    /// Prints the model's answer as it comes.
    fn ask(&mut self, question: &str) -> Result<()> {
        let mut out = std::io::stdout().lock();
        let mut failed = None;
        let mut started = false;
        self.interrupt.clear();
        let interrupt = &self.interrupt;
        let answer = self.chat.say(question, &self.options, &mut |piece| {
            if interrupt.raised() {
                return ControlFlow::Break(());
            }
            // Templates leave the space in front of an answer to the model.
            let piece = if started { piece } else { piece.trim_start() };
            started |= !piece.is_empty();
            match out.write_all(piece.as_bytes()).and_then(|()| out.flush()) {
                Ok(()) => ControlFlow::Continue(()),
                Err(error) => {
                    failed = Some(error);
                    ControlFlow::Break(())
                }
            }
        });
        if let Some(error) = failed {
            return Err(error.into());
        }
        writeln!(out)?;
        out.flush()?;
        let answer = answer?;
        self.remark(&answer);
        self.last = Some(answer);
        Ok(())
    }

    /// Says what a reader could not guess of an answer.
    fn remark(&self, answer: &Answer) {
        let context = self.chat.model().context();
        match answer.dropped_turns {
            0 => {}
            1 => note(&format!("the context of {context} tokens is full: the oldest turn was dropped")),
            n => note(&format!("the context of {context} tokens is full: the {n} oldest turns were dropped")),
        }
        let first = self.last.is_none();
        if first && answer.system_in_user_message {
            note("the chat template takes no system prompt: it was put in front of your first message");
        }
        match answer.generation.stop {
            Stop::End => {}
            Stop::MaxTokens => note(&format!("stopped after {} tokens", answer.generation.tokens.len())),
            Stop::Context => note(&format!("stopped: the context of {context} tokens is full (--context)")),
            Stop::Caller => note("stopped"),
        }
    }

    /// What the last answer took, and what the cache holds.
    fn stats(&self) -> String {
        let model = self.chat.model();
        let place = format!(
            "{}; {} of {} positions of the context in use, {} turns",
            self.chosen.describe(),
            model.position(),
            model.context(),
            self.chat.conversation().turns(),
        );
        match &self.last {
            None => place,
            Some(Answer { generation: g, .. }) => format!(
                "{} tokens read at {:.1}/s, {} written at {:.1}/s\n{place}",
                g.prompt_tokens,
                g.prompt_rate(),
                g.tokens.len(),
                g.decode_rate(),
            ),
        }
    }
}

/// A line, and those after it while they end in a backslash.
fn read(editor: &mut DefaultEditor) -> rustyline::Result<String> {
    let prompt = if std::io::stdin().is_terminal() { PROMPT } else { "" };
    let mut text = editor.readline(prompt)?;
    while let Some(start) = text.strip_suffix('\\') {
        text = format!("{start}\n{}", editor.readline(prompt)?);
    }
    Ok(text)
}

fn read_conversation(path: &std::path::Path) -> Result<Conversation> {
    let json = std::fs::read_to_string(path).map_err(|source| Error::Read { path: path.into(), source })?;
    Ok(Conversation::from_json(&json)?)
}

/// A remark of the program, on standard error: standard output has the answers alone.
fn note(text: &str) {
    let _ = writeln!(std::io::stderr(), "[{text}]");
}
