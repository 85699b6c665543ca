//! `tallow generate`: text from a prompt.

use std::io::Write;
use std::ops::ControlFlow;

use serde::Serialize;
use tallow_chat::Conversation;
use tallow_models::chat::encode_conversation;
use tallow_models::generate::{GenerateOptions, Generation, Stop, generate as generate_text};
use tallow_models::{Decode, LoadOptions, Model};

use crate::args::{GenerateArgs, SamplingDefaults};
use crate::device::{Chosen, choose_for};
use crate::error::{Error, Result};
use crate::fit::dry_run;
use crate::load::{load_to_run, open_adapted, options};
use crate::template::choose_template;
use crate::terminal::Output;

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct Report<'a> {
    text: &'a str,
    tokens: &'a [u32],
    device: String,
    prompt_tps: f64,
    decode_tps: f64,
    dispatches_per_step: usize,
    dispatches_per_layer: f64,
    barriers_per_step: usize,
    barriers_lower_bound: usize,
    recordings: usize,
    arena_bytes: u64,
    arena_lower_bound_bytes: u64,
    weight_bytes: u64,
}

/// Runs the command.
pub fn generate(args: &GenerateArgs) -> Result<()> {
    let only_in_chat =
        [("--system", &args.template.system), ("--chat-template", &args.template.chat_template)];
    if let Some((option, _)) = only_in_chat.into_iter().find(|(_, value)| value.is_some() && !args.chat) {
        return Err(Error::OnlyInChat(option));
    }
    let defaults = if args.chat { SamplingDefaults::CHAT } else { SamplingDefaults::GENERATE };
    let sampling = args.sampling.options(defaults);
    // Whatever can be wrong with the request is said before the weights move.
    sampling.check()?;
    let file = open_adapted(&args.model, args.load.pre.as_deref(), &args.load.lora)?;
    let decode = if sampling.is_greedy() { Decode::Token } else { Decode::Logits };
    if args.dry_run {
        let options = LoadOptions { decode, ..options(&args.load) };
        return dry_run(&file, args.load.device.as_deref(), &options, args.json);
    }
    let text = args.prompt.as_deref().unwrap_or_default();
    let prompt = match args.chat {
        true => {
            let template = choose_template(args.template.chat_template.as_deref(), &file)?;
            let mut conversation = Conversation::new();
            conversation.set_system(args.template.system.clone().filter(|text| !text.trim().is_empty()));
            conversation.push_user(text);
            encode_conversation(file.tokenizer(), &template, &conversation)?
        }
        false => file.tokenizer().encode(text, true).map_err(|source| Error::Run(source.into()))?,
    };
    file.check_prompt(&prompt, &options(&args.load))?;
    let chosen = choose_for(args.load.device.as_deref(), &file, &options(&args.load))?;
    let mut model = load_to_run((file, &args.model), &chosen.device, &args.load, decode)?;
    let options = GenerateOptions { max_tokens: args.max_tokens, sampling };
    if args.json {
        print_json(&mut model, &prompt, &options)
    } else {
        stream(&mut model, &chosen, args, &prompt, &options)
    }
}

/// Prints prompt and text as they come, and a line of figures on standard error.
fn stream(
    model: &mut Model,
    chosen: &Chosen,
    args: &GenerateArgs,
    prompt: &[u32],
    options: &GenerateOptions,
) -> Result<()> {
    let mut out = Output::lock();
    if !args.chat {
        out.write(args.prompt.as_deref().unwrap_or_default())?;
    }
    let mut failed = None;
    let generation = generate_text(model, prompt, options, &mut |text| match out.write(text) {
        Ok(()) => ControlFlow::Continue(()),
        Err(error) => {
            failed = Some(error);
            ControlFlow::Break(())
        }
    })?;
    if let Some(error) = failed {
        return Err(error.into());
    }
    out.end_line()?;
    if generation.stop == Stop::Context {
        let context = model.context();
        let _ = writeln!(std::io::stderr(), "[stopped: the context of {context} tokens is full (--context)]");
    }
    let _ = writeln!(std::io::stderr(), "{}", figures(model, chosen, &generation));
    Ok(())
}

fn print_json(model: &mut Model, prompt: &[u32], options: &GenerateOptions) -> Result<()> {
    let generation = generate_text(model, prompt, options, &mut |_| ControlFlow::Continue(()))?;
    let stats = model.decode_stats();
    let report = Report {
        text: &generation.text,
        tokens: &generation.tokens,
        device: model.decode().device().name(),
        prompt_tps: generation.prompt_rate(),
        decode_tps: generation.decode_rate(),
        dispatches_per_step: stats.dispatches,
        dispatches_per_layer: stats.dispatches as f64 / model.layers() as f64,
        barriers_per_step: stats.barriers,
        barriers_lower_bound: stats.barriers_lower_bound,
        recordings: stats.recordings,
        arena_bytes: stats.arena_bytes,
        arena_lower_bound_bytes: stats.arena_lower_bound_bytes,
        weight_bytes: stats.weight_bytes,
    };
    let json = serde_json::to_string(&report).map_err(std::io::Error::from)?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{json}")?;
    out.flush()?;
    Ok(())
}

/// The closing line: device and why it was chosen, speed, memory; on a Vulkan device also what one step is made of and
/// what compiling took.
fn figures(model: &Model, chosen: &Chosen, generation: &Generation) -> String {
    let (decode, prefill) = (model.decode_stats(), model.prefill_stats());
    let text = format!(
        "{}: prompt {} tokens at {:.1}/s, text {} tokens at {:.1}/s; weights {}",
        chosen.describe(),
        generation.prompt_tokens,
        generation.prompt_rate(),
        generation.tokens.len(),
        generation.decode_rate(),
        mebibytes(decode.weight_bytes),
    );
    if chosen.device.is_cpu() {
        return format!("[{text}]");
    }
    format!(
        "[{text}, arena {}; {} kernels and {} barriers (bound {}) a step; \
         compiled in {:.0} ms, {} kernels from the cache]",
        mebibytes(decode.arena_bytes),
        decode.dispatches,
        decode.barriers,
        decode.barriers_lower_bound,
        decode.compile_ms + prefill.compile_ms,
        decode.spirv_cache_hits + prefill.spirv_cache_hits,
    )
}

fn mebibytes(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}
