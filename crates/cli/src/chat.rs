//! `tallow chat`: a conversation at the terminal.

mod command;
mod interrupt;
mod lines;

use std::io::Write;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use tallow_chat::Conversation;
use tallow_models::chat::{Answer, Chat};
use tallow_models::generate::{GenerateOptions, Stop};
use tallow_models::{Decode, Error as ModelError, LoadOptions};

use crate::args::{ChatArgs, SamplingDefaults};
use crate::device::{Chosen, choose_for};
use crate::error::{Error, Result};
use crate::fit::dry_run;
use crate::load::{load_to_run, open_adapted, options};
use crate::template::choose_template;
use crate::terminal::{Output, escaped};
use crate::unfinished::Unfinished;
use command::ChatCommand;
use interrupt::{INTERRUPTED, Interrupt};
use lines::{Line, Lines};

/// Lines that `/help` prints.
const HELP: &str = "\
/help           this list
/reset          forget the conversation, but not the system prompt
/system [TEXT]  show the system prompt, or replace it and start over
/save FILE      write the conversation as JSON, without turns that were dropped
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
    model: PathBuf,
    last: Option<Answer>,
}

/// Runs the command.
pub fn chat(args: &ChatArgs) -> Result<()> {
    let sampling = args.sampling.options(SamplingDefaults::CHAT);
    sampling.check()?;
    let file = open_adapted(&args.model, args.load.pre.as_deref(), &args.load.lora)?;
    let decode = if sampling.is_greedy() { Decode::Token } else { Decode::Logits };
    if args.dry_run {
        let options = LoadOptions { decode, ..options(&args.load) };
        return dry_run(&file, args.load.device.as_deref(), &options, false);
    }
    let template = choose_template(args.template.chat_template.as_deref(), &file)?;
    let chosen = choose_for(args.load.device.as_deref(), &file, &options(&args.load))?;
    let model = load_to_run((file, &args.model), &chosen.device, &args.load, decode)?;
    let mut chat = Chat::new(model, template);
    let mut conversation = match &args.resume {
        Some(path) => read_conversation(path)?,
        None => Conversation::new(),
    };
    if let Some(system) = &args.template.system {
        conversation.set_system(Some(system.clone()).filter(|text| !text.trim().is_empty()));
    }
    chat.set_conversation(conversation);
    let max_tokens = args.max_tokens.unwrap_or(usize::MAX);
    let options = GenerateOptions { max_tokens, sampling };
    let mut repl = Repl {
        chat,
        options,
        interrupt: Interrupt::install()?,
        chosen,
        model: args.model.clone(),
        last: None,
    };
    match &args.prompt {
        Some(question) => {
            if repl.ask(question)? {
                std::process::exit(INTERRUPTED);
            }
            Ok(())
        }
        None => repl.run(),
    }
}

impl Repl {
    /// Reads lines until there are no more.
    fn run(&mut self) -> Result<()> {
        let mut lines = Lines::open()?;
        if matches!(lines, Lines::Terminal(_)) {
            note("/help lists commands, Ctrl-C stops an answer, Ctrl-D leaves");
        }
        loop {
            let text = match lines.next()? {
                Line::Text(text) if text.trim().is_empty() => continue,
                Line::Text(text) => text,
                Line::Interrupted => {
                    note("Ctrl-D or /quit leaves");
                    continue;
                }
                Line::End => return Ok(()),
            };
            let done = match ChatCommand::parse(&text) {
                Some(Ok(ChatCommand::Quit)) => return Ok(()),
                Some(Ok(command)) => self.command(command),
                Some(Err(why)) => {
                    note(&why);
                    continue;
                }
                None => self.ask(&text).map(|_| ()),
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
    fn command(&mut self, command: ChatCommand) -> Result<()> {
        match command {
            ChatCommand::Help => note(HELP),
            ChatCommand::Reset => {
                self.chat.reset();
                note("the conversation starts over");
            }
            ChatCommand::ShowSystem => match self.chat.conversation().system() {
                Some(text) => note(&escaped(&text)),
                None => note("there is no system prompt"),
            },
            ChatCommand::System(text) => {
                self.chat.set_system(Some(text));
                note("the conversation starts over with this system prompt");
            }
            ChatCommand::Save(path) => {
                self.save(&path)?;
                note(&format!("saved to {}", path.display()));
            }
            ChatCommand::Load(path) => {
                self.chat.set_conversation(read_conversation(&path)?);
                note(&format!("{} turns", self.chat.conversation().turns()));
            }
            ChatCommand::Stats => note(&self.stats()),
            // The caller leaves.
            ChatCommand::Quit => {}
        }
        Ok(())
    }

    /// Writes the conversation to a file, whole or not at all.
    fn save(&self, path: &Path) -> Result<()> {
        // The model is mapped: its bytes must not change.
        if path.exists() && same_file(path, &self.model) {
            return Err(Error::IsModel(path.into()));
        }
        let json = self.chat.conversation().to_json()?;
        let write = || {
            let (unfinished, mut file) = Unfinished::create(path)?;
            file.write_all(json.as_bytes())?;
            unfinished.finish(&file)
        };
        write().map_err(|source| Error::Write { path: path.into(), source })?;
        Ok(())
    }

    /// Prints the model's answer as it comes; true if it was stopped.
    fn ask(&mut self, question: &str) -> Result<bool> {
        let mut out = Output::lock();
        let mut failed = None;
        let mut started = false;
        self.interrupt.begin();
        let interrupt = &self.interrupt;
        let answer = self.chat.say(question, &self.options, &mut |piece| {
            // Models often start an answer with a space.
            let piece = if started { piece } else { piece.trim_start() };
            started |= !piece.is_empty();
            match out.write(piece) {
                Ok(()) if interrupt.raised() => ControlFlow::Break(()),
                Ok(()) => ControlFlow::Continue(()),
                Err(error) => {
                    failed = Some(error);
                    ControlFlow::Break(())
                }
            }
        });
        let stopped = self.interrupt.end();
        if let Some(error) = failed {
            return Err(error.into());
        }
        if started {
            out.end_line()?;
        }
        let answer = answer?;
        self.remark(&answer);
        self.last = Some(answer);
        Ok(stopped)
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
            "{}; {} of {} positions of the context cached, {} turns",
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

/// Whether both are one file, by whatever path.
fn same_file(a: &Path, b: &Path) -> bool {
    let real = |path: &Path| std::fs::canonicalize(path).ok();
    real(a).is_some() && real(a) == real(b)
}

fn read_conversation(path: &Path) -> Result<Conversation> {
    let json = std::fs::read_to_string(path).map_err(|source| Error::Read { path: path.into(), source })?;
    Ok(Conversation::from_json(&json)?)
}

/// A remark of the program, on standard error: standard output has the answers alone.
fn note(text: &str) {
    let _ = writeln!(std::io::stderr(), "[{text}]");
}
