//! `tallow bench sweep`: measures families of small programs against their rooflines.

use std::io::Write;
use std::path::PathBuf;

use tallow_bench::BenchError;
use tallow_bench::sweep::{self, Options};

use crate::error::{Error, Result};

/// Options of `bench sweep`.
#[derive(Debug, clap::Args)]
pub struct SweepArgs {
    /// Points, or what their names begin with, such as `matmul/f16-nn` or `sort`; all if nothing is named.
    #[arg(value_name = "POINT")]
    pub points: Vec<String>,
    /// Print the names of the points and measure nothing.
    #[arg(long)]
    pub list: bool,
    /// Write the points as JSON to this file, for `scripts/sweep_torch.py`, and measure nothing.
    #[arg(long, value_name = "FILE")]
    pub describe: Option<PathBuf>,
    /// List points below this share of their roofline, in percent.
    #[arg(long, value_name = "PERCENT", default_value_t = 50.0)]
    pub threshold: f64,
    /// Let each kernel wait for the one before, as in a chain, instead of overlapping independent instances.
    #[arg(long)]
    pub serial: bool,
    /// Seconds to measure each point for, after 0.2 s to warm up.
    #[arg(long, value_name = "S", default_value_t = 0.05)]
    pub seconds: f64,
    /// Two instances of each point, to see whether the sweep itself works.
    #[arg(long)]
    pub quick: bool,
    /// Measure the kernels that can be cut up in several ways first, and take the fastest.
    #[arg(long)]
    pub tune: bool,
    /// The Vulkan device: its number, or a part of its name.
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<String>,
    /// Append a line of JSON for each point to this file.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Print the times of another program beside ours: a file of JSON lines.
    #[arg(long, value_name = "FILE")]
    pub compare: Option<PathBuf>,
}

/// Runs the command.
pub fn bench_sweep(args: &SweepArgs) -> Result<()> {
    let mut out = std::io::stdout().lock();
    if args.list {
        sweep::select(&args.points)?.iter().try_for_each(|point| writeln!(out, "{}", point.name))?;
        return Ok(out.flush()?);
    }
    if let Some(path) = &args.describe {
        let fail =
            |e: std::io::Error| BenchError::File { path: path.display().to_string(), why: e.to_string() };
        let text = sweep::describe(&sweep::select(&args.points)?)?;
        return Ok(std::fs::write(path, text).map_err(fail)?);
    }
    let options = Options {
        points: args.points.clone(),
        seconds: args.seconds,
        serial: args.serial,
        threshold: args.threshold / 100.0,
        quick: args.quick,
        tune: args.tune,
        device: args.device.clone(),
        json: args.json.clone(),
        compare: args.compare.clone(),
    };
    match sweep::run(&options, &mut out) {
        Ok(0) => Ok(()),
        Ok(failed) => Err(Error::CasesFailed(failed)),
        Err(BenchError::Output(source)) => Err(Error::Output(source)),
        Err(other) => Err(Error::Bench(other)),
    }
}
