//! `tallow explain`: the plan of a model's step.

use std::io::Write;

use crate::args::{ExplainArgs, Step};
use crate::device::choose;
use crate::error::Result;
use crate::load::{load, open_adapted};

/// Runs the command.
pub fn explain(args: &ExplainArgs) -> Result<()> {
    let file = open_adapted(&args.model, args.load.pre.as_deref(), &args.load.lora)?;
    let device = choose(args.load.device.as_deref())?;
    let model = load(file, &device, &args.load, tallow_models::Decode::Logits)?;
    let step = match args.step {
        Step::Decode => model.decode(),
        Step::Prefill => model.prefill(),
    };
    let mut out = std::io::stdout().lock();
    out.write_all(step.explain().as_bytes())?;
    out.flush()?;
    Ok(())
}
