//! `tallow bench`: measures kernels and models on a Vulkan device.

use std::io::Write;
use std::path::PathBuf;

use tallow_bench::{BenchError, Options};

use crate::args::CacheArgs;
use crate::bench_networks::{NetworksArgs, bench_networks};
use crate::bench_sweep::{SweepArgs, bench_sweep};
use crate::error::{Error, Result};
use crate::load::cache_types;

/// Options of `bench`.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct BenchArgs {
    /// What to measure instead of cases.
    #[command(subcommand)]
    pub command: Option<BenchCommand>,
    /// What to measure: names, or what they begin with, such as `matvec` or `matvec/q4_0/14336x4096`, `ceilings`, `llm`;
    /// all but `llm` if nothing is named.
    #[arg(value_name = "CASE")]
    pub cases: Vec<String>,
    /// Print the names of all cases and measure nothing.
    #[arg(long)]
    pub list: bool,
    /// Seconds to measure each case for, after 0.2 s to warm up.
    #[arg(long, value_name = "S", default_value_t = 0.5)]
    pub seconds: f64,
    /// Small shapes, to see whether the benchmark itself works.
    #[arg(long)]
    pub quick: bool,
    /// Shape of the language model [default: llama3-8b].
    #[arg(long, value_name = "SHAPE")]
    pub shape: Option<String>,
    /// Positions in the language model's cache before decode is measured, separated by commas [default: 0].
    #[arg(long, value_name = "POSITIONS", value_delimiter = ',')]
    pub depth: Vec<usize>,
    /// Tokens of the prompts that prefill is measured with, separated by commas [default: one step of 512].
    #[arg(long, value_name = "TOKENS", value_delimiter = ',')]
    pub prompt: Vec<usize>,
    /// Formats of the language model's matrices, separated by commas.
    #[arg(long = "type", value_name = "TYPE", value_delimiter = ',', default_value = "Q4_0")]
    pub types: Vec<String>,
    /// How the language model's keys and values are kept.
    #[command(flatten)]
    pub cache: CacheArgs,
    /// Put the weights of the language model's last N layers in the host's memory, as `generate --host-layers` does.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub host_layers: usize,
    /// Multiply quantized weights by activations as they are, not rounded to 8 bits where that is faster.
    #[arg(long)]
    pub exact: bool,
    /// Measure the kernels that can be cut up in several ways first, and take the fastest, as `generate --tune` does.
    #[arg(long)]
    pub tune: bool,
    /// The Vulkan device: its number, or a part of its name.
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<String>,
    /// Append a line of JSON for each case to this file.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Print the times of another program beside ours: a file of JSON lines.
    #[arg(long, value_name = "FILE")]
    pub compare: Option<PathBuf>,
    /// Take the ceilings from an earlier run's JSON lines instead of measuring them.
    #[arg(long, value_name = "FILE")]
    pub ceilings: Option<PathBuf>,
    /// Print what each kind of dispatch takes too.
    #[arg(long)]
    pub dispatches: bool,
}

/// The subcommands of `bench`.
#[derive(Debug, clap::Subcommand)]
pub enum BenchCommand {
    /// Measure blocks of real networks, drawn by seeds.
    Networks(NetworksArgs),
    /// Measure families of small programs against their rooflines, and list those that are far below.
    Sweep(SweepArgs),
}

/// Runs the command.
pub fn bench(args: &BenchArgs) -> Result<()> {
    match &args.command {
        Some(BenchCommand::Networks(args)) => return bench_networks(args),
        Some(BenchCommand::Sweep(args)) => return bench_sweep(args),
        None => {}
    }
    let options = Options {
        cases: args.cases.clone(),
        exact: args.exact,
        tune: args.tune,
        seconds: args.seconds,
        quick: args.quick,
        shape: args.shape.clone(),
        depths: args.depth.clone(),
        prompts: args.prompt.clone(),
        types: args.types.clone(),
        cache: cache_types(&args.cache),
        host_layers: args.host_layers,
        device: args.device.clone(),
        json: args.json.clone(),
        compare: args.compare.clone(),
        ceilings: args.ceilings.clone(),
        dispatches: args.dispatches,
    };
    let mut out = std::io::stdout().lock();
    if args.list {
        let names = match args.cases.is_empty() {
            true => tallow_bench::names(args.quick),
            false => tallow_bench::select(&args.cases, args.quick)?,
        };
        for name in names {
            writeln!(out, "{name}")?;
        }
        return Ok(out.flush()?);
    }
    match tallow_bench::run(&options, &mut out) {
        Ok(0) => Ok(()),
        Ok(failed) => Err(Error::CasesFailed(failed)),
        Err(BenchError::Output(source)) => Err(Error::Output(source)),
        Err(other) => Err(Error::Bench(other)),
    }
}
