//! `tallow verify`: the kernels of a model against the interpreter, on this device and driver.

use std::io::Write;
use std::ops::ControlFlow;
use std::path::PathBuf;

use serde_json::{Value, json};
use tallow::{CheckOutcome, Device, KernelCheck, VerifyOptions};
use tallow_models::{Decode, VerifiedStep, VerifySteps};

use crate::args::LoadArgs;
use crate::device::{available_memory, choose};
use crate::error::{Error, Result};
use crate::load::{load, open_adapted};
use crate::terminal::escaped;

/// Options of `verify`.
#[derive(Debug, clap::Args)]
pub struct VerifyArgs {
    /// The model, a GGUF file.
    #[arg(long, value_name = "FILE")]
    pub model: PathBuf,
    /// Tokens of the prompt, at most those of one run, and the position of the decode step. Prompts of other lengths may have
    /// other kernels.
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..))]
    pub tokens: u16,
    /// Seed of the random tokens and of the random values in the cache.
    #[arg(long, value_name = "S", default_value_t = 0)]
    pub seed: u64,
    /// Compare every dispatch, not only the first of each kernel: layers of equal shapes share kernels.
    #[arg(long)]
    pub all: bool,
    /// Print one JSON object instead of the table.
    #[arg(long)]
    pub json: bool,
    /// Where and how to load the model.
    #[command(flatten)]
    pub load: LoadArgs,
}

/// Runs the command.
pub fn verify(args: &VerifyArgs) -> Result<()> {
    let file = open_adapted(&args.model, args.load.pre.as_deref(), &args.load.lora)?;
    let device = choose(args.load.device.as_deref())?;
    let mut model = load(file, &device, &args.load, Decode::Token)?;
    // Half, as this does not count what the comparison itself holds.
    let kernels = VerifyOptions { all: args.all, memory: Some(available_memory() / 2), work: None };
    let steps = VerifySteps { tokens: usize::from(args.tokens), seed: args.seed, kernels };
    let mut checks = vec![];
    let mut out = std::io::stdout().lock();
    if !args.json {
        for line in facts(&device) {
            writeln!(out, "{line}")?;
        }
    }
    let mut failed = None;
    model.verify(&steps, &mut |step, check| {
        let shown = if args.json { Ok(()) } else { print(step, &check, &mut out) };
        checks.push((step, check));
        match shown {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                failed = Some(error);
                ControlFlow::Break(())
            }
        }
    })?;
    failed.map_or(Ok(()), Err)?;
    let differing: Vec<&(VerifiedStep, KernelCheck)> =
        checks.iter().filter(|(_, check)| check.difference().is_some()).collect();
    match args.json {
        true => writeln!(out, "{}", json(&device, &checks))?,
        false => print_end(&checks, &differing, &mut out)?,
    }
    out.flush()?;
    match (differing.len(), checks.iter().any(|(_, check)| check.worst().is_some())) {
        (0, true) => Ok(()),
        (0, false) => Err(Error::NothingCompared(checks.len())),
        (count, _) => Err(Error::KernelsDiffer(count)),
    }
}

/// What a report of a wrong kernel must say.
fn facts(device: &Device) -> [String; 2] {
    let driver = device.caps().map_or(String::new(), |caps| format!(", driver {}", caps.driver));
    [
        format!("device: {}{}", escaped(&device.name()), escaped(&driver)),
        format!("tallow {}", env!("CARGO_PKG_VERSION")),
    ]
}

/// A share of what is allowed, as text.
fn share(worst: f64) -> String {
    if worst.is_finite() && worst < 1000.0 { format!("{worst:.3}") } else { format!("{worst:.1e}") }
}

/// One line for a kernel, and more if it differs.
fn print(step: VerifiedStep, check: &KernelCheck, out: &mut impl Write) -> Result<()> {
    let KernelCheck { name, results, outcome, .. } = check;
    let (step, results) = (step.name(), results.join(" "));
    let name = escaped(name);
    match outcome {
        CheckOutcome::NotCompared(why) => {
            writeln!(out, "{step:<8}{:>9}  {name} -> {results}: not compared: {}", "-", escaped(why))?;
        }
        CheckOutcome::Compared(all) => {
            let unbounded: usize = all.iter().map(|c| c.unbounded).sum();
            let worst = share(check.worst().unwrap_or(0.0));
            let differs = if check.difference().is_some() { "DIFFERS  " } else { "" };
            write!(out, "{step:<8}{worst:>9}  {differs}{name} -> {results}")?;
            let elements: usize = all.iter().map(|c| c.elements).sum();
            match unbounded {
                0 => {}
                _ => write!(out, " ({unbounded} of {elements} elements may be anything)")?,
            }
            match check.sampled {
                true => writeln!(out, " (a sample of {elements} elements)")?,
                false => writeln!(out)?,
            }
        }
    }
    Ok(())
}

/// The totals, and the first kernel that differs.
fn print_end(
    checks: &[(VerifiedStep, KernelCheck)],
    differing: &[&(VerifiedStep, KernelCheck)],
    out: &mut impl Write,
) -> Result<()> {
    let compared: Vec<f64> = checks.iter().filter_map(|(_, check)| check.worst()).collect();
    let worst = share(compared.iter().copied().fold(0.0, f64::max));
    let (kernels, compared) = (checks.len(), compared.len());
    write!(out, "total: {kernels} kernels, {compared} compared, worst error {worst} of the bound")?;
    match kernels - compared {
        0 => writeln!(out)?,
        others => writeln!(out, "; {others} NOT compared, which says nothing of them")?,
    }
    let Some((step, check)) = differing.first() else { return Ok(()) };
    let Some((result, comparison)) = check.difference() else { return Ok(()) };
    writeln!(
        out,
        "\nthe first of {} that differ: {} in {}",
        differing.len(),
        escaped(&check.name),
        step.name()
    )?;
    writeln!(out, "  computes {} of {}", check.ops.join(", "), check.operands.join(" "))?;
    if let Some(first) = &comparison.first {
        writeln!(out, "  result {result}, element {:?} of {}", first.index, first.ty)?;
        writeln!(out, "  got      {:?}", first.got)?;
        writeln!(out, "  expected {:?}", first.expected)?;
        writeln!(out, "  allowed  {:?} to {:?}", first.low, first.high)?;
    }
    writeln!(out, "  {} of {} elements differ", comparison.outside, comparison.elements)?;
    writeln!(
        out,
        "  --device cpu computes right results, slowly. Another version of the driver may, too.\n  Please report this \
         output, which names device and driver, at the project's issues."
    )?;
    Ok(())
}

fn json(device: &Device, checks: &[(VerifiedStep, KernelCheck)]) -> Value {
    // JSON has no infinity.
    let number = |x: f64| if x.is_finite() { json!(x) } else { json!(x.to_string()) };
    let kernel = |(step, check): &(VerifiedStep, KernelCheck)| {
        let mut object = json!({
            "step": step.name(),
            "name": check.name,
            "kernel": check.kernel,
            "ops": check.ops,
            "operands": check.operands,
            "results": check.results,
            "sampled": check.sampled,
        });
        match (&check.outcome, check.difference()) {
            (CheckOutcome::NotCompared(why), _) => object["not_compared"] = json!(why),
            (CheckOutcome::Compared(all), difference) => {
                object["worst"] = number(check.worst().unwrap_or(0.0));
                object["elements"] = json!(all.iter().map(|c| c.elements).sum::<usize>());
                object["unbounded"] = json!(all.iter().map(|c| c.unbounded).sum::<usize>());
                if let Some((result, first)) = difference.and_then(|(r, c)| Some((r, c.first.as_ref()?))) {
                    object["difference"] = json!({
                        "result": result,
                        "index": first.index,
                        "got": number(first.got),
                        "expected": number(first.expected),
                        "low": number(first.low),
                        "high": number(first.high),
                        "elements": difference.map_or(0, |(_, c)| c.outside),
                    });
                }
            }
        }
        object
    };
    json!({
        "device": device.name(),
        "driver": device.caps().map_or("", |caps| caps.driver.as_str()),
        "version": env!("CARGO_PKG_VERSION"),
        "kernels": checks.iter().map(kernel).collect::<Vec<_>>(),
        "compared": checks.iter().filter(|(_, check)| check.worst().is_some()).count(),
        "differing": checks.iter().filter(|(_, check)| check.difference().is_some()).count(),
    })
}

#[cfg(test)]
mod tests {
    use tallow::{Comparison, Outside};

    use super::*;

    fn check(name: &str, outcome: CheckOutcome) -> (VerifiedStep, KernelCheck) {
        let operands = vec!["f32[2, 3]".to_string()];
        let check = KernelCheck {
            name: name.into(),
            kernel: 0,
            ops: vec!["exp", "reduce_sum"],
            results: operands.clone(),
            operands,
            sampled: false,
            outcome,
        };
        (VerifiedStep::Decode, check)
    }

    /// One kernel that is right, one that is not, one that was not compared.
    fn checks() -> Vec<(VerifiedStep, KernelCheck)> {
        let right = Comparison { elements: 6, unbounded: 0, worst: 0.25, outside: 0, first: None };
        let (index, ty) = (vec![1, 0], "f32[2, 3]".to_string());
        let first = Outside { index, ty, expected: 1.5, got: f64::INFINITY, low: 1.25, high: 1.75 };
        let wrong = Comparison { worst: f64::INFINITY, outside: 2, first: Some(first), ..right.clone() };
        vec![
            check("%1 map", CheckOutcome::Compared(vec![right.clone()])),
            check("%2 row", CheckOutcome::Compared(vec![right, wrong])),
            check("%3 matvec", CheckOutcome::NotCompared("takes 9.0 GiB of memory, 1.0 are free".into())),
        ]
    }

    #[test]
    fn the_kernel_that_differs_is_named_with_its_element() {
        let (checks, mut out) = (checks(), vec![]);
        checks.iter().for_each(|(step, check)| print(*step, check, &mut out).expect("writes"));
        let differing: Vec<_> = checks.iter().filter(|(_, check)| check.difference().is_some()).collect();
        print_end(&checks, &differing, &mut out).expect("writes");
        let text = String::from_utf8(out).expect("is text");
        for part in [
            "decode      0.250  %1 map -> f32[2, 3]\n",
            "decode        inf  DIFFERS  %2 row -> f32[2, 3]\n",
            "decode          -  %3 matvec -> f32[2, 3]: not compared: takes 9.0 GiB",
            "total: 3 kernels, 2 compared, worst error inf of the bound; 1 NOT compared, which says nothing of them\n",
            "the first of 1 that differ: %2 row in decode\n  computes exp, reduce_sum of f32[2, 3]\n",
            "  result 1, element [1, 0] of f32[2, 3]\n  got      inf\n  expected 1.5\n  allowed  1.25 to 1.75\n",
            "  2 of 6 elements differ\n  --device cpu computes right results",
        ] {
            assert!(text.contains(part), "{part:?} is missing from\n{text}");
        }
    }

    #[test]
    fn json_tells_infinite_errors_as_text() {
        let found = json(&Device::Cpu, &checks());
        assert_eq!((&found["compared"], &found["differing"]), (&json!(2), &json!(1)));
        assert_eq!(found["kernels"][1]["worst"], "inf");
        assert_eq!(found["kernels"][1]["difference"]["index"], json!([1, 0]));
        assert_eq!(found["kernels"][2]["not_compared"], "takes 9.0 GiB of memory, 1.0 are free");
    }
}
