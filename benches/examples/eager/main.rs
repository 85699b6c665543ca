//! Loops that force their values in every iteration, as a program written for PyTorch eager does:
//!
//! ```sh
//! cargo run -p tallow-benches --example eager -- [PROGRAM ..] [--device cpu] [--scale N] [--iterations N]
//!     [--repetitions N] [--list]
//! ```
//!
//! One JSON line per program, with the median, over repetitions of the loop, of the wall time per iteration.
//! `scripts/compare_eager.py` runs the same programs in PyTorch and prints both. The exit status is 1 if a
//! result is wrong: kernels run faster on constant data, so the values must stay random.

mod programs;

use std::error::Error;
use std::io::Write;
use std::process::ExitCode;
use std::time::Instant;

use programs::{Case, Figure, PROGRAMS, Program};
use serde_json::{Value, json};
use tallow::{Device, Tensor};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const USAGE: &str = "eager [PROGRAM ..] [--device vulkan|cpu|ORDINAL] [--scale N] [--iterations N] \
                     [--repetitions N] [--list]";

/// The interpreter takes milliseconds for what a GPU does in microseconds.
const CPU_ITERATIONS: usize = 5;

struct Arguments {
    names: Vec<String>,
    device: String,
    /// Divides extents.
    scale: usize,
    /// In place of the number that each program has.
    iterations: Option<usize>,
    repetitions: usize,
    list: bool,
}

fn arguments() -> Result<Arguments> {
    let mut found = Arguments {
        names: vec![],
        device: "vulkan".into(),
        scale: 1,
        iterations: None,
        repetitions: 7,
        list: false,
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} needs a value\n{USAGE}"));
        let positive = |text: String| match text.parse::<usize>() {
            Ok(n) if n > 0 => Ok(n),
            _ => Err(format!("{text}: expected a number of at least 1\n{USAGE}")),
        };
        match word.as_str() {
            "--device" => found.device = value()?,
            "--scale" => found.scale = positive(value()?)?,
            "--iterations" => found.iterations = Some(positive(value()?)?),
            "--repetitions" => found.repetitions = positive(value()?)?,
            "--list" => found.list = true,
            name if PROGRAMS.iter().any(|p| p.name == name) => found.names.push(word),
            other => return Err(format!("{other}: no such option or program\n{USAGE}").into()),
        }
    }
    Ok(found)
}

fn open(device: &str) -> Result<Device> {
    Ok(match device {
        "cpu" => Device::Cpu,
        "vulkan" => Device::best_vulkan()?,
        ordinal => {
            Device::new_vulkan(ordinal.parse().map_err(|_| format!("{ordinal}: no device\n{USAGE}"))?)?
        }
    })
}

/// What the device has done so far, by name.
fn counters(device: &Device) -> Vec<(&'static str, u64)> {
    match device {
        Device::Cpu => vec![],
        #[cfg(feature = "vulkan")]
        Device::Vulkan(vulkan) => {
            let (recordings, pipelines) = vulkan.work_done();
            let (uploaded, downloaded) = vulkan.bytes_moved();
            vec![
                ("submissions", vulkan.submissions()),
                ("recordings", recordings),
                ("pipelines", pipelines),
                ("bytes uploaded", uploaded),
                ("bytes downloaded", downloaded),
            ]
        }
    }
}

/// Reads one element, for which everything before it must be computed.
fn read_one(tensor: &Tensor) -> Result<()> {
    let one = tensor.flatten_all()?.narrow(0, 0, 1)?.raw_bytes()?;
    std::hint::black_box(one);
    Ok(())
}

/// Microseconds per iteration of one loop, and the values that it ends with. Every loop starts from the same
/// values: those of a long chain of products would grow or shrink out of f16.
fn run(case: &Case, device: &Device, iterations: usize) -> Result<(f64, Vec<Tensor>)> {
    let mut values = case.start.clone();
    device.synchronize()?;
    let start = Instant::now();
    for _ in 0..iterations {
        (case.step)(&mut values)?;
    }
    let last = values.first().ok_or("a program without values")?;
    read_one(last)?;
    device.synchronize()?;
    Ok((start.elapsed().as_secs_f64() * 1e6 / iterations as f64, values))
}

fn measure(program: &Program, device: &Device, arguments: &Arguments) -> Result<Value> {
    let by_device = if device.is_cpu() { CPU_ITERATIONS } else { program.iterations };
    let iterations = arguments.iterations.unwrap_or(by_device);
    let case = (program.case)(device, arguments.scale)?;
    run(&case, device, iterations)?;
    let before = counters(device);
    let mut times = vec![];
    let mut values = vec![];
    for _ in 0..arguments.repetitions {
        let (time, last) = run(&case, device, iterations)?;
        times.push(time);
        values = last;
    }
    let timed = (iterations * arguments.repetitions) as f64;
    let after = counters(device).into_iter().zip(before);
    let per_iteration: serde_json::Map<String, Value> = after
        .map(|((name, after), (_, before))| (name.into(), json!((after - before) as f64 / timed)))
        .collect();
    times.sort_by(f64::total_cmp);
    let figures = (case.check)(&values)?;
    let wrong: Vec<String> = figures.iter().filter(|f| !f.is_right()).map(Figure::to_string).collect();
    let figures: serde_json::Map<String, Value> =
        figures.into_iter().map(|f| (f.name.into(), json!(f.value))).collect();
    Ok(json!({
        "name": program.name,
        "device": device.name(),
        "scale": arguments.scale,
        "iterations": iterations,
        "repetitions": arguments.repetitions,
        "microseconds": times[times.len() / 2],
        "least": times[0],
        "most": times[times.len() - 1],
        "per_iteration": per_iteration,
        "figures": figures,
        "wrong": wrong,
    }))
}

/// Whether all results are right.
fn measure_all(arguments: &Arguments) -> Result<bool> {
    let mut out = std::io::stdout();
    if arguments.list {
        PROGRAMS.iter().try_for_each(|p| writeln!(out, "{}  {}", p.name, p.text))?;
        return Ok(true);
    }
    let device = open(&arguments.device)?;
    let mut right = true;
    let wanted = |p: &&Program| arguments.names.is_empty() || arguments.names.iter().any(|n| n == p.name);
    for program in PROGRAMS.iter().filter(wanted) {
        let row = measure(program, &device, arguments)?;
        right &= row["wrong"].as_array().is_some_and(Vec::is_empty);
        writeln!(out, "{row}")?;
        out.flush()?;
    }
    Ok(right)
}

fn main() -> ExitCode {
    match arguments().and_then(|arguments| measure_all(&arguments)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            // Nothing is left to do where standard error is closed.
            let _ = writeln!(std::io::stderr(), "{why}");
            ExitCode::from(2)
        }
    }
}
