//! `tallow perplexity`: how well a model predicts a text.

use std::io::Write;
use std::time::Instant;

use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use tallow_models::perplexity::{Perplexity, PerplexityOptions, perplexity as measure};
use tallow_models::{DEFAULT_CHUNK, LoadOptions, Scorer};

use crate::args::PerplexityArgs;
use crate::device::{available_memory, choose_for};
use crate::error::{Error, Result};
use crate::load::{cache_types, open_adapted, with_bar};

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct PerplexityReport {
    perplexity: f64,
    standard_error: f64,
    /// Mean of `-ln p` over the tokens scored.
    nll: f64,
    ctx: usize,
    chunks: usize,
    tokens_scored: usize,
    tokens: usize,
    device: String,
    seconds: f64,
}

/// Runs the command.
pub fn perplexity(args: &PerplexityArgs) -> Result<()> {
    // Whatever can be wrong with the request is said before the weights move.
    let file = open_adapted(&args.model, args.pre.as_deref(), &args.lora)?;
    let text = std::fs::read_to_string(&args.file)
        .map_err(|source| Error::Read { path: args.file.clone(), source })?;
    // A text is measured as it stands: what looks like a control token in it is text.
    let encoded = file.tokenizer().encode_ordinary(&text, true);
    let tokens = encoded.map_err(|source| Error::Run(source.into()))?;
    let tokenizer = file.tokenizer();
    let bos = tokenizer.bos().filter(|_| tokenizer.adds_bos());
    let options = PerplexityOptions { chunk: args.ctx, chunks: args.chunks, bos };
    let chunks = options.count(tokens.len())?;
    // Each half of a chunk is one run, and the arena has room for no more.
    let half = args.ctx.div_ceil(2).min(DEFAULT_CHUNK);
    let cache = cache_types(&args.cache);
    let load = LoadOptions {
        context: Some(args.ctx),
        chunk: Some(half),
        cache,
        memory: args.memory.bytes(),
        host_layers: args.memory.host_layers,
        host_memory: args.memory.uses_host().then(available_memory),
        ..LoadOptions::default()
    };
    file.context(&load)?;
    let device = choose_for(args.device.as_deref(), &file, &load)?.device;
    let mut scorer = with_bar(|progress| Scorer::load(&file, &device, &load, progress))?;

    let bar = ProgressBar::new(chunks as u64);
    if let Ok(style) = ProgressStyle::with_template("chunk {pos}/{len} {wide_bar} {msg} {eta}") {
        bar.set_style(style);
    }
    let start = Instant::now();
    let result = measure(&mut scorer, &tokens, &options, &mut |so_far| {
        bar.set_position(so_far.chunks as u64);
        bar.set_message(format!("perplexity {:.3}", so_far.value()));
    })?;
    bar.finish_and_clear();
    let seconds = start.elapsed().as_secs_f64();
    print(args, &result, tokens.len(), &scorer, seconds)
}

fn print(
    args: &PerplexityArgs,
    result: &Perplexity,
    tokens: usize,
    scorer: &Scorer,
    seconds: f64,
) -> Result<()> {
    let report = PerplexityReport {
        perplexity: result.value(),
        standard_error: result.standard_error(),
        nll: result.mean(),
        ctx: args.ctx,
        chunks: result.chunks,
        tokens_scored: result.tokens,
        tokens,
        device: scorer.device().name(),
        seconds,
    };
    let mut out = std::io::stdout().lock();
    if args.json {
        let json = serde_json::to_string(&report).map_err(std::io::Error::from)?;
        writeln!(out, "{json}")?;
    } else {
        writeln!(out, "perplexity {:.4} +- {:.4}", report.perplexity, report.standard_error)?;
    }
    out.flush()?;
    if !args.json {
        let read = report.chunks * report.ctx;
        let _ = writeln!(
            std::io::stderr(),
            "[{}: {} of {} tokens scored in {} chunks of {}; {:.1} tokens/s]",
            report.device,
            report.tokens_scored,
            report.tokens,
            report.chunks,
            report.ctx,
            read as f64 / seconds,
        );
    }
    Ok(())
}
