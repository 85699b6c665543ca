//! `tallow bench networks`: measures blocks of real networks, or writes their descriptions.

use std::path::PathBuf;

use tallow_bench::networks::{FAMILIES, PROGRAMS, Scale, Source, describe, parse_seeds};
use tallow_bench::{BenchError, Options};

use crate::error::{Error, Result};

/// Options of `bench networks`.
#[derive(Debug, clap::Args)]
pub struct NetworksArgs {
    /// Seeds such as 1,2,5 or 1..10; one network of each family if not given.
    #[arg(long, value_name = "SEEDS")]
    pub seeds: Option<String>,
    /// Fixed programs instead of drawn networks: those of a table of cases that were once slow.
    #[arg(long, conflicts_with = "seeds")]
    pub programs: bool,
    /// Write the networks as JSON to this file, for `scripts/sweep_torch.py`, and measure nothing.
    #[arg(long, value_name = "FILE")]
    pub describe: Option<PathBuf>,
    /// Small extents; descriptions then include the results that are expected.
    #[arg(long)]
    pub quick: bool,
    /// Seconds to measure each network for, after 0.2 s to warm up.
    #[arg(long, value_name = "S", default_value_t = 0.5)]
    pub seconds: f64,
    /// Measure the kernels that can be cut up in several ways first, and take the fastest.
    #[arg(long)]
    pub tune: bool,
    /// The Vulkan device: its number, or a part of its name.
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<String>,
    /// Append a line of JSON for each network to this file.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Print the times of another program beside ours: a file of JSON lines.
    #[arg(long, value_name = "FILE")]
    pub compare: Option<PathBuf>,
    /// Print what each kind of dispatch takes too.
    #[arg(long)]
    pub dispatches: bool,
}

/// Runs the command.
pub fn bench_networks(args: &NetworksArgs) -> Result<()> {
    let sources: Vec<Source> = match &args.seeds {
        _ if args.programs => PROGRAMS.iter().map(Source::Program).collect(),
        Some(text) => parse_seeds(text)?.into_iter().map(Source::Seed).collect(),
        None => (0..FAMILIES.len() as u64).map(Source::Seed).collect(),
    };
    if let Some(path) = &args.describe {
        let scale = if args.quick { Scale::Tiny } else { Scale::Full };
        let fail =
            |e: std::io::Error| BenchError::File { path: path.display().to_string(), why: e.to_string() };
        return Ok(std::fs::write(path, describe(&sources, scale)?).map_err(fail)?);
    }
    let options = Options {
        tune: args.tune,
        seconds: args.seconds,
        quick: args.quick,
        device: args.device.clone(),
        json: args.json.clone(),
        compare: args.compare.clone(),
        dispatches: args.dispatches,
        ..Options::default()
    };
    let mut out = std::io::stdout().lock();
    match tallow_bench::networks::run(&sources, &options, &mut out) {
        Ok(0) => Ok(()),
        Ok(failed) => Err(Error::CasesFailed(failed)),
        Err(BenchError::Output(source)) => Err(Error::Output(source)),
        Err(other) => Err(Error::Bench(other)),
    }
}
