//! `tallow logits`: the logits after a list of tokens, for comparison with other programs.

use crate::args::LogitsArgs;
use crate::device::choose;
use crate::error::{Error, Result};
use crate::load::{load_to_run, open_adapted, options};
use crate::npy;

/// Runs the command.
pub fn logits(args: &LogitsArgs) -> Result<()> {
    let file = open_adapted(&args.model, args.load.pre.as_deref(), &args.load.lora)?;
    file.check_prompt(&args.tokens, &options(&args.load))?;
    let device = choose(args.load.device.as_deref())?;
    let mut model = load_to_run((file, &args.model), &device, &args.load, tallow_models::Decode::Logits)?;
    let logits = model.feed(&args.tokens)?;
    let write = |source| Error::Write { path: args.out.clone(), source };
    std::fs::write(&args.out, npy::vector(&logits)).map_err(write)
}
