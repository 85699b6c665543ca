//! `tallow imatrix`: the importance of a model's columns, measured on a text.
//!
//! The text is cut into chunks of equal length, each of which the model reads on its own, beginning with the token that
//! it expects at the beginning; a rest shorter than a chunk is left out.

use std::io::Write;

use indicatif::{ProgressBar, ProgressStyle};
use tallow_gguf::GgufError;
use tallow_models::{LoadOptions, Progress};

use crate::args::ImatrixArgs;
use crate::device::choose_for;
use crate::error::{Error, ImatrixError, Result};
use crate::importance::{Entry, Importance};
use crate::load::open;
use crate::unfinished::Unfinished;

/// Runs the command.
pub fn imatrix(args: &ImatrixArgs) -> Result<()> {
    let text = std::fs::read_to_string(&args.file)
        .map_err(|source| ImatrixError::Text { path: args.file.clone(), source })?;
    let file = open(&args.model, args.pre.as_deref())?;
    let tokenizer = file.tokenizer();
    let tokens = tokenizer.encode_ordinary(&text, true).map_err(tallow_models::Error::from)?;
    let bos = tokenizer.bos().filter(|_| tokenizer.adds_bos());
    let mut chunks: Vec<&[u32]> = tokens.chunks_exact(args.chunk.max(1)).collect();
    if chunks.is_empty() {
        chunks = vec![&tokens];
    }
    // The token that stands before a text is none.
    if text.is_empty() || tokens.is_empty() {
        return Err(ImatrixError::NoText(args.file.clone()).into());
    }
    chunks.truncate(args.chunks.unwrap_or(usize::MAX).max(1));

    // Text is read chunk by chunk, each from an empty cache.
    let context = args.chunk.clamp(1, file.model_graph().config.context);
    let options = LoadOptions { context: Some(context), ..LoadOptions::default() };
    let device = choose_for(args.device.as_deref(), &file, &options)?.device;
    let bar = ProgressBar::new(0);
    let style = |template| ProgressStyle::with_template(template).unwrap_or(ProgressStyle::default_bar());
    bar.set_style(style("{msg:18} {wide_bar} {bytes}/{total_bytes}"));
    let mut measurement = file.measure_inputs(&device, args.chunk, &mut |progress| match progress {
        Progress::Upload { done, total } => {
            bar.set_message("loading weights");
            bar.set_length(total);
            bar.set_position(done);
        }
        Progress::Compile { graph } => bar.set_message(format!("compiling {graph}")),
    })?;
    bar.set_style(style("{msg:18} {wide_bar} {pos}/{len} {eta}"));
    bar.set_message("measuring");
    bar.set_length(chunks.len() as u64);
    bar.set_position(0);
    for chunk in &chunks {
        let mut chunk = chunk.to_vec();
        if let (Some(first), Some(bos)) = (chunk.first_mut(), bos) {
            *first = bos;
        }
        measurement.feed(&chunk)?;
        bar.inc(1);
    }
    bar.finish_and_clear();

    let mut importance = Importance::default();
    importance.datasets.extend(args.file.file_name().map(|name| name.to_string_lossy().into_owned()));
    importance.chunks = u32::try_from(chunks.len()).ok();
    importance.chunk_size = u32::try_from(args.chunk).ok();
    for (name, sums) in measurement.sums() {
        // Ratios are all that matters: single precision holds them.
        let sums = sums.iter().map(|sum| *sum as f32).collect();
        let entry = Entry { sums, counts: vec![measurement.tokens() as f32] };
        if !importance.insert(name, entry) {
            return Err(ImatrixError::NotFinite(name.into()).into());
        }
    }
    write(args, &importance).map_err(|source| ImatrixError::Write { path: args.output.clone(), source })?;
    let mut out = std::io::stdout().lock();
    let (tokens, count) = (measurement.tokens(), importance.len());
    writeln!(out, "{}: {count} weights, {tokens} tokens in {} chunks", args.output.display(), chunks.len())?;
    out.flush().map_err(Error::from)
}

fn write(args: &ImatrixArgs, importance: &Importance) -> Result<(), GgufError> {
    let (unfinished, file) = Unfinished::create(&args.output)?;
    importance.write(std::io::BufWriter::new(&file))?;
    unfinished.finish(&file)?;
    Ok(())
}
