//! `tallow train`: a language model from a text.

mod curve;

use std::io::Write;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use indicatif::{ProgressBar, ProgressStyle};
use tallow_models::train::{CHECKPOINT, Plan, Progress, Trainer, write_atomically};

use crate::args::TrainArgs;
use crate::device::choose_gpu;
use crate::error::{Error, Result};

/// Name of the drawn loss curve in the output folder.
const CURVE: &str = "loss.svg";
/// The exit code of a program that an interrupt ended (128 + SIGINT).
const INTERRUPTED: i32 = 130;

/// Runs the command.
pub fn train(args: &TrainArgs) -> Result<()> {
    let plan = Plan::read(&args.config)?;
    let device = choose_gpu(args.device.as_deref())?;
    let out = plan.out.clone();
    let mut trainer = Trainer::open(plan, &device, args.resume)?;
    let (first, steps) = trainer.position();
    let _ = writeln!(
        std::io::stderr(),
        "[{}: {} parameters, a text of {} tokens, {} tokens a step, from step {first} of {steps}]",
        device.name(),
        trainer.net().parameters(),
        trainer.text_tokens(),
        trainer.step_tokens(),
    );
    let tokens = trainer.step_tokens();
    with_bar((first, steps), tokens, |tell| trainer.run(tell))?;

    let history = trainer.history();
    let path = out.join(CURVE);
    let svg = curve::svg(history);
    write_atomically(&path, |file| file.write_all(svg.as_bytes()))
        .map_err(|source| Error::Write { path: path.clone(), source })?;
    let (step, steps) = trainer.position();
    let mut lines = curve::text(history);
    if let Some(loss) = history.losses.last() {
        lines.push_str(&format!("step {step} of {steps}: loss {loss:.4}"));
    }
    if let Some((_, loss)) = history.validation.last() {
        lines.push_str(&format!(", validation {loss:.4}"));
    }
    let mut files = vec![out.join(CHECKPOINT), path];
    if step == steps {
        files.push(trainer.export()?);
    }
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{lines}")?;
    for file in files {
        writeln!(stdout, "{}", file.display())?;
    }
    stdout.flush()?;
    if step < steps {
        let _ = writeln!(std::io::stderr(), "[stopped; --resume goes on]");
    }
    Ok(())
}

/// Runs a training from a step on, to the last one or until Ctrl-C, and shows how far it is. `tokens` are those of a step.
pub fn with_bar(
    (first, steps): (usize, usize),
    tokens: usize,
    run: impl FnOnce(&mut dyn FnMut(&Progress) -> ControlFlow<()>) -> tallow_models::Result<()>,
) -> Result<()> {
    let interrupted = interrupt()?;
    let bar = ProgressBar::new(steps as u64).with_position(first as u64);
    if let Ok(style) = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len} {eta}") {
        bar.set_style(style);
    }
    // So that the time left is that of the steps of this run.
    bar.reset_eta();
    let start = Instant::now();
    let done = run(&mut |progress| {
        let rate = ((progress.step - first) * tokens) as f64 / start.elapsed().as_secs_f64();
        show(&bar, progress, rate);
        if interrupted.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    bar.finish_and_clear();
    Ok(done?)
}

/// Shows how far it is: on a terminal in a bar, and a line for each validation anywhere.
fn show(bar: &ProgressBar, progress: &Progress, rate: f64) {
    bar.set_position(progress.step as u64);
    let loss = progress.loss.map_or(String::new(), |loss| format!("loss {loss:.4}, "));
    bar.set_message(format!("{loss}{rate:.0} tokens/s"));
    if let Some(validation) = progress.validation {
        bar.suspend(|| {
            let _ = writeln!(
                std::io::stderr(),
                "step {}: {loss}validation {validation:.4}, {rate:.0} tokens/s",
                progress.step
            );
        });
    }
}

/// From now on Ctrl-C stops the training after a step, with a checkpoint; a second one ends the program at once.
fn interrupt() -> Result<Arc<AtomicBool>> {
    let raised = Arc::new(AtomicBool::new(false));
    let handled = raised.clone();
    ctrlc::set_handler(move || {
        if handled.swap(true, Ordering::Relaxed) {
            std::process::exit(INTERRUPTED);
        }
    })
    .map_err(Error::Interrupt)?;
    Ok(raised)
}
