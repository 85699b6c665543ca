//! The `tallow` command: generate text, chat, embed, train, fine-tune, measure and quantize models, look into them and their plans, list devices.
//!
//! Results go to standard output, everything about them (progress, figures, warnings, errors) to standard
//! error. An error is one line and exit code 1; a closed pipe ends the program without one.

mod args;
mod bench;
mod bench_networks;
mod bench_sweep;
mod chat;
mod command;
mod compile_check;
mod device;
mod embed;
mod error;
mod explain;
mod finetune;
mod fit;
mod generate;
mod imatrix;
mod importance;
mod inspect;
mod load;
mod logits;
mod merge_lora;
mod mixes;
mod npy;
mod perplexity;
mod quantize;
mod template;
mod terminal;
mod tokenize;
mod train;
mod unfinished;
mod verify;

use std::io::{ErrorKind, IsTerminal, Write};
use std::process::ExitCode;

use clap::Parser;
use tracing_subscriber::EnvFilter;

use command::{Args, Command};
use error::{Error, one_line};

fn main() -> ExitCode {
    let args = Args::parse();
    let filter = EnvFilter::try_from_env("TALLOW_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .without_time()
        .with_target(false)
        .init();
    let done = match &args.command {
        Command::Generate(args) => generate::generate(args),
        Command::Chat(args) => chat::chat(args),
        Command::Tokenize(args) => tokenize::tokenize(args),
        Command::Logits(args) => logits::logits(args),
        Command::Perplexity(args) => perplexity::perplexity(args),
        Command::Embed(args) => embed::embed(args),
        Command::Devices => device::list(),
        Command::Inspect(args) => inspect::inspect(args),
        Command::Explain(args) => explain::explain(args),
        Command::CompileCheck(args) => compile_check::compile_check(args),
        Command::Verify(args) => verify::verify(args),
        Command::Bench(args) => bench::bench(args),
        Command::Quantize(args) => quantize::quantize(args),
        Command::Imatrix(args) => imatrix::imatrix(args),
        Command::Train(args) => train::train(args),
        Command::Finetune(args) => finetune::finetune(args),
        Command::MergeLora(args) => merge_lora::merge_lora(args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever read our output has had enough.
        Err(Error::Output(e)) if e.kind() == ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            // Nobody is left to tell if standard error is closed too.
            let _ = writeln!(std::io::stderr(), "error: {}", one_line(&error));
            ExitCode::FAILURE
        }
    }
}
