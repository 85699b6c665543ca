//! `tallow inspect`: what a model file holds, whether it runs, and the memory that it takes.

mod listing;
mod summary;

use std::io::Write;

use serde_json::json;
use tallow_gguf::GgufFile;

use crate::args::InspectArgs;
use crate::error::Result;
use crate::fit::Target;
use crate::load::about;

use summary::Summary;

/// Runs the command.
pub fn inspect(args: &InspectArgs) -> Result<()> {
    let file = GgufFile::open(&args.model).map_err(|error| about(&args.model, error.into()))?;
    let target = Target::of(args.device.as_deref())?;
    let mut out = std::io::stdout().lock();
    if args.json {
        let summary = Summary::of(&file, &target, args);
        let object = match args.summary {
            true => json!({ "summary": summary }),
            false => listing::json(&file, &summary),
        };
        writeln!(out, "{object}")?;
    } else {
        if !args.summary {
            // Before planning, which takes a while for large models.
            listing::print(&file, &mut out)?;
            writeln!(out)?;
        }
        Summary::of(&file, &target, args).print(&mut out)?;
    }
    out.flush()?;
    Ok(())
}
