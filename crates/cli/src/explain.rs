//! `tallow explain`: the plan of a model's step.

use std::io::Write;

use crate::args::{ExplainArgs, Step};
use crate::error::Result;
use crate::load::{load, open};

/// Runs the command.
pub fn explain(args: &ExplainArgs) -> Result<()> {
    let model = load(open(&args.model)?, &args.load, tallow_models::Decode::Logits)?;
    let step = match args.step {
        Step::Decode => model.decode(),
        Step::Prefill => model.prefill(),
    };
    let mut out = std::io::stdout().lock();
    out.write_all(step.explain().as_bytes())?;
    out.flush()?;
    Ok(())
}
