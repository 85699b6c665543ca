//! `tallow compile-check`: what a driver makes of the kernels of models and graphs.

mod table;

use std::io::Write;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tallow::statistics::{Coverage, KernelReport};
use tallow::{CompileOnlyDevice, Graph};
use tallow_gguf::GgufFile;
use tallow_ir::text::parse;
use tallow_models::LoadOptions;
use tallow_models::graphs::graphs;
use tallow_models::model_graph::ModelGraph;

use crate::args::{Activations, CacheArgs};
use crate::error::{Error, Result, one_line};
use crate::load::{about, activations, cache_types};
use crate::terminal::escaped;

/// Options of `compile-check`.
#[derive(Debug, clap::Args)]
pub struct CompileCheckArgs {
    /// Models (GGUF files), of which the decode and prefill steps are compiled, and graphs in the text form (`.ir`).
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,
    /// The Vulkan device to compile for: its number in `tallow devices`, or a part of its name [default: one without
    /// hardware, as RADV_FORCE_FAMILY=gfx1100 gives with Mesa; without one, the best].
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<String>,
    /// Print one JSON object with all that the driver says.
    #[arg(long)]
    pub json: bool,
    /// Fail if a kernel spills registers.
    #[arg(long)]
    pub deny_spills: bool,
    /// Compile the candidates that `--tune` would measure, too.
    #[arg(long)]
    pub candidates: bool,
    /// Context size of models [default: the model's own].
    #[arg(long, value_name = "N")]
    pub context: Option<usize>,
    /// What quantized weights are multiplied by.
    #[arg(long, value_enum, default_value_t)]
    pub activations: Activations,
    /// How keys and values are kept.
    #[command(flatten)]
    pub cache: CacheArgs,
}

/// The kernels of a file, or why there are none.
struct FileReport {
    path: PathBuf,
    kernels: std::result::Result<Vec<KernelReport>, String>,
}

/// What was found in all files.
#[derive(Default)]
struct Totals {
    kernels: usize,
    /// Kernels that do not compile.
    failed: usize,
    /// Kernels that spill registers.
    spilling: usize,
    /// Registers that are spilled.
    spilled: u64,
    /// Files of which no kernels could be made.
    graphs: usize,
}

/// Runs the command.
pub fn compile_check(args: &CompileCheckArgs) -> Result<()> {
    let device = CompileOnlyDevice::open(args.device.as_deref()).map_err(Error::CompileDevice)?;
    let coverage = if args.candidates { Coverage::Candidates } else { Coverage::Chosen };
    let mut reports = vec![];
    for path in &args.files {
        let made = graphs_of(path, &device, args)?;
        let kernels =
            made.and_then(|graphs| device.check(&graphs, coverage).map_err(|error| one_line(&error)));
        let sorted = kernels.map(|mut kernels| {
            kernels.sort_by_cached_key(table::order);
            kernels
        });
        reports.push(FileReport { path: path.clone(), kernels: sorted });
    }
    let totals = Totals::of(&reports);
    let mut out = std::io::stdout().lock();
    match args.json {
        true => writeln!(out, "{}", json(&device, &reports, &totals))?,
        false => print(&device, &reports, &totals, &mut out)?,
    }
    out.flush()?;
    match totals {
        Totals { failed: 0, graphs: 0, spilling: 0, .. } => Ok(()),
        Totals { failed: 0, graphs: 0, spilling, .. } if args.deny_spills => Err(Error::Spilled(spilling)),
        Totals { failed: 0, graphs: 0, .. } => Ok(()),
        Totals { failed, kernels, graphs, .. } => Err(Error::CompileFailed { failed, kernels, graphs }),
    }
}

/// The graphs of a file, or why a text is none. What concerns the command as a whole, such as a missing file, ends it.
fn graphs_of(
    path: &Path,
    device: &CompileOnlyDevice,
    args: &CompileCheckArgs,
) -> Result<std::result::Result<Vec<Graph>, String>> {
    if path.extension().is_some_and(|extension| extension == "ir") {
        let text = std::fs::read_to_string(path)
            .map_err(|source| Error::Read { path: path.to_path_buf(), source })?;
        return Ok(parse(&text).map(|graph| vec![graph]).map_err(|error| one_line(&error)));
    }
    let options = LoadOptions {
        context: args.context,
        activations: activations(args.activations),
        cache: cache_types(&args.cache),
        ..LoadOptions::default()
    };
    let read = || {
        let file = GgufFile::open(path)?;
        graphs(&ModelGraph::from_file(&file)?, Some(device.caps()), &options)
    };
    read().map(Ok).map_err(|error| about(path, error))
}

impl Totals {
    fn of(reports: &[FileReport]) -> Totals {
        let mut totals = Totals::default();
        for report in reports {
            let Ok(kernels) = &report.kernels else {
                totals.graphs += 1;
                continue;
            };
            totals.kernels += kernels.len();
            for kernel in kernels {
                match &kernel.outcome {
                    Ok(statistics) => {
                        let spilled = statistics.resources.spilled();
                        totals.spilling += usize::from(spilled > 0);
                        totals.spilled += spilled;
                    }
                    Err(_) => totals.failed += 1,
                }
            }
        }
        totals
    }
}

fn print(
    device: &CompileOnlyDevice,
    reports: &[FileReport],
    totals: &Totals,
    out: &mut impl Write,
) -> Result<()> {
    let caps = device.caps();
    writeln!(out, "{} ({})", caps.name, caps.driver)?;
    if !device.has_statistics() {
        writeln!(out, "the driver tells nothing of its machine code")?;
    }
    for FileReport { path, kernels } in reports {
        writeln!(out, "\n{}", path.display())?;
        match kernels {
            Ok(kernels) => table::print(kernels, out)?,
            Err(why) => writeln!(out, "  cannot be compiled: {}", escaped(why))?,
        }
    }
    let Totals { kernels, failed, spilling, spilled, graphs } = totals;
    writeln!(out)?;
    write!(out, "total: {kernels} kernels, {failed} do not compile, {spilling} spill {spilled} registers")?;
    if *graphs > 0 {
        write!(out, ", {graphs} files cannot be compiled")?;
    }
    writeln!(out)?;
    Ok(())
}

fn json(device: &CompileOnlyDevice, reports: &[FileReport], totals: &Totals) -> Value {
    let kernel = |report: &KernelReport| {
        let mut object = json!({
            "name": report.name,
            "candidate": report.candidate,
            "graphs": report.graphs,
            "dispatches": report.dispatches,
            "workgroup": report.workgroup,
        });
        match &report.outcome {
            Ok(statistics) => {
                object["resources"] = json!(statistics.resources);
                object["executables"] = json!(statistics.executables);
            }
            Err(why) => object["error"] = json!(why),
        }
        object
    };
    let file = |report: &FileReport| match &report.kernels {
        Ok(kernels) => {
            json!({ "file": report.path, "kernels": kernels.iter().map(kernel).collect::<Vec<_>>() })
        }
        Err(why) => json!({ "file": report.path, "error": why }),
    };
    json!({
        "device": device.caps().name,
        "driver": device.caps().driver,
        "statistics": device.has_statistics(),
        "files": reports.iter().map(file).collect::<Vec<_>>(),
        "kernels": totals.kernels,
        "failed": totals.failed,
        "spilling": totals.spilling,
        "spilled_registers": totals.spilled,
        "failed_files": totals.graphs,
    })
}
