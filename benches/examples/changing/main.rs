//! Steps whose extents change, by plans that have symbols for them, beside plans of these very extents:
//!
//! ```sh
//! cargo run -p tallow-benches --example changing -- [PROGRAM ..] [--scale N] [--multiple N] [--runs N] [--steps N]
//! ```
//!
//! One JSON line per program and size: microseconds of the device and of the host for a run, by plans with symbols and
//! with numbers, and how far the results are apart. The device's time is that of runs which wait behind a long kernel, so
//! that it has no pauses between them; the host's is that of starting them. Then come a loop over a cache that grows by one
//! position a step, beside the same step at the length of its middle, and the host's time for each step of an expression.

mod programs;

use std::error::Error;
use std::io::Write;
use std::process::ExitCode;
use std::time::Instant;

use programs::{PROGRAMS, Program, random};
use serde_json::json;
use tallow::{DType, Device, Dynamic, Tensor, eval};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const USAGE: &str = "changing [PROGRAM ..] [--scale N] [--multiple N] [--runs N] [--steps N]";

/// Of as many measurements the median is taken.
const REPETITIONS: usize = 7;

/// Products that keep a device busy while runs are started.
const PRODUCTS: usize = 6;

/// Steps of a loop before those whose times count.
const FIRST_STEPS: usize = 20;

struct Arguments {
    names: Vec<String>,
    /// Divides widths.
    scale: usize,
    /// The sizes before those that are measured are rounded up to multiples of this.
    multiple: usize,
    /// Runs of one measurement.
    runs: usize,
    /// Of the growing cache.
    steps: usize,
}

fn arguments() -> Result<Arguments> {
    let mut found = Arguments { names: vec![], scale: 1, multiple: 1, runs: 100, steps: 2000 };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut number = || -> Result<usize> {
            let value = words.next().ok_or_else(|| format!("{word} needs a value\n{USAGE}"))?;
            Ok(value.parse().map_err(|_| format!("{value}: expected a number\n{USAGE}"))?)
        };
        match word.as_str() {
            "--scale" => found.scale = number()?.max(1),
            "--multiple" => found.multiple = number()?.max(1),
            "--runs" => found.runs = number()?.max(1),
            "--steps" => found.steps = number()?,
            name if ["loop", "host"].contains(&name) || PROGRAMS.iter().any(|p| p.name == name) => {
                found.names.push(word)
            }
            other => return Err(format!("{other}: no such option or program\n{USAGE}").into()),
        }
    }
    Ok(found)
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Work that keeps a device busy while runs are started: products of a square matrix with itself.
struct Busy(Tensor);

impl Busy {
    /// Rows of the matrix on a GPU: a product takes about 2 ms.
    const ROWS: usize = 8192;

    fn new(device: &Device, scale: usize) -> Result<Busy> {
        Ok(Busy(random(
            device,
            &[Busy::ROWS / scale.pow(2).max(1), Busy::ROWS / scale.pow(2).max(1)],
            DType::F16,
        )?))
    }

    fn start(&self, products: usize) -> Result<()> {
        for _ in 0..products {
            eval(&[&self.0.matmul(&self.0)?])?;
        }
        Ok(())
    }
}

/// What a run takes, in microseconds, and its result.
struct Measured {
    device: f64,
    host: f64,
    result: Tensor,
}

fn measure(busy: &Busy, runs: usize, step: impl Fn() -> tallow::Result<Tensor>) -> Result<Measured> {
    let device = busy.0.device();
    let mut result = step()?;
    for _ in 0..3 {
        result = step()?;
        eval(&[&result])?;
    }
    let (mut device_times, mut host_times) = (vec![], vec![]);
    for _ in 0..REPETITIONS {
        let mut all = [0.0; 2];
        for (total, runs) in all.iter_mut().zip([0, runs]) {
            busy.start(1)?;
            device.synchronize()?;
            let start = Instant::now();
            busy.start(PRODUCTS)?;
            let middle = Instant::now();
            for _ in 0..runs {
                result = step()?;
                eval(&[&result])?;
            }
            if runs > 0 {
                host_times.push(middle.elapsed().as_secs_f64() * 1e6 / runs as f64);
            }
            device.synchronize()?;
            *total = start.elapsed().as_secs_f64() * 1e6;
        }
        device_times.push((all[1] - all[0]) / runs as f64);
    }
    Ok(Measured { device: median(device_times), host: median(host_times), result })
}

/// The largest difference of two results, over the largest element.
fn difference(a: &Tensor, b: &Tensor) -> Result<f64> {
    let values = |tensor: &Tensor| tensor.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>();
    let (a, b) = (values(a)?, values(b)?);
    if a.len() != b.len() {
        return Ok(f64::INFINITY);
    }
    let most =
        |all: &mut dyn Iterator<Item = f32>| all.map(f64::from).fold(0f64, |m, x| if x > m { x } else { m });
    let apart = most(&mut a.iter().zip(&b).map(|(a, b)| if a == b { 0.0 } else { (a - b).abs() }));
    let nan = a.iter().zip(&b).any(|(a, b)| a.is_nan() || b.is_nan());
    Ok(if nan { f64::NAN } else { apart / most(&mut b.iter().map(|x| x.abs())).max(1e-30) })
}

fn compare(program: &Program, arguments: &Arguments) -> Result<bool> {
    let (symbols, numbers) = (Device::best_vulkan()?, Device::best_vulkan()?);
    numbers.set_dynamic(Dynamic::Never);
    let weights = |device| (program.weights)(device, arguments.scale);
    let (ours, theirs) = (weights(&symbols)?, weights(&numbers)?);
    // The same values on both.
    let copied =
        |all: &[Tensor]| all.iter().map(|t| t.to_device(&symbols)).collect::<tallow::Result<Vec<_>>>();
    let ours = if theirs.is_empty() { ours } else { copied(&theirs)? };
    let (busy, other_busy) = (Busy::new(&symbols, arguments.scale)?, Busy::new(&numbers, arguments.scale)?);
    let operands = |size: &[usize]| -> Result<(Vec<Tensor>, Vec<Tensor>)> {
        let theirs = (program.operands)(&numbers, arguments.scale, size)?;
        Ok((copied(&theirs)?, theirs))
    };
    let rounded = |size: &&[usize]| -> Vec<usize> {
        size.iter().map(|extent| extent.next_multiple_of(arguments.multiple)).collect()
    };
    let measured = program.sizes.iter().map(|size| size.to_vec());
    for size in program.first.iter().map(rounded).chain(measured) {
        eval(&[&(program.step)(&ours, &operands(&size)?.0)?])?;
    }
    let mut right = true;
    let plans = symbols.lazy_compilations();
    for size in program.sizes {
        let (mine, other) = operands(size)?;
        let general = measure(&busy, arguments.runs, || (program.step)(&ours, &mine))?;
        let literal = measure(&other_busy, arguments.runs, || (program.step)(&theirs, &other))?;
        let apart = difference(&general.result, &literal.result)?;
        right &= apart < 1e-2;
        if std::env::var_os("EXPLAIN").is_some() {
            let text = format!(
                "{size:?}\n{}\n{}",
                (program.step)(&ours, &mine)?.explain()?,
                (program.step)(&theirs, &other)?.explain()?
            );
            std::io::stderr().write_all(text.as_bytes())?;
        }
        let line = json!({
            "name": program.name, "size": size, "device_us": [general.device, literal.device],
            "share": literal.device / general.device, "host_us": [general.host, literal.host], "difference": apart,
        });
        writeln!(std::io::stdout(), "{line}")?;
    }
    let line = json!({ "name": program.name, "text": program.text, "plans": plans });
    writeln!(std::io::stdout(), "{line}")?;
    Ok(right)
}

/// A step of the loop: the cache of keys and of values with one more position, without its first `dropped`, and a number of
/// the result.
fn step(device: &Device, cache: &[Tensor; 2], dropped: usize) -> tallow::Result<([Tensor; 2], f32)> {
    let (heads, len, _) = cache[0].dims3()?;
    let of = || random(device, &[heads, 1, 128], DType::F16);
    let (k, v, q) = (of()?, of()?, of()?);
    let rest = |of: &Tensor| of.narrow(1, dropped, len - dropped);
    let keys = Tensor::cat(&[&rest(&cache[0])?, &k], 1)?;
    let values = Tensor::cat(&[&rest(&cache[1])?, &v], 1)?;
    let scores = (q.matmul(&keys.t()?)? * 0.088)?;
    let y = tallow::nn::ops::softmax(&scores, 2)?.matmul(&values)?;
    let number = y.sum_all()?.to_dtype(DType::F32)?.to_scalar()?;
    Ok(([keys, values], number))
}

fn growing(arguments: &Arguments) -> Result<()> {
    let (device, heads) = (Device::best_vulkan()?, 32 / arguments.scale.min(32));
    let start = |len: usize| -> Result<[Tensor; 2]> {
        let of = || random(&device, &[heads, len, 128], DType::F16);
        Ok([of()?, of()?])
    };
    let times = |len: usize, steps: usize, dropped: usize| -> Result<Vec<f64>> {
        let (mut cache, mut times) = (start(len)?, vec![]);
        for _ in 0..steps {
            let begin = Instant::now();
            cache = step(&device, &cache, dropped)?.0;
            times.push(begin.elapsed().as_secs_f64() * 1e6);
        }
        Ok(times.split_off(FIRST_STEPS.min(times.len())))
    };
    let growing = median(times(1, arguments.steps, 0)?);
    let plans = device.lazy_compilations();
    // The oldest position goes, so that the length stays.
    let fixed = median(times(usize::midpoint(FIRST_STEPS, arguments.steps), 300, 1)?);
    let line = json!({
        "name": "loop", "steps": arguments.steps, "plans": plans, "growing_us": growing, "fixed_us": fixed,
        "ratio": growing / fixed,
    });
    writeln!(std::io::stdout(), "{line}")?;
    Ok(())
}

/// Nanoseconds that the host takes for each step of an expression: to build it, and to find and start its plan.
fn host(arguments: &Arguments) -> Result<()> {
    let device = Device::best_vulkan()?;
    let steps = 200;
    let (mut built, mut started) = (vec![], vec![]);
    for round in 0..arguments.steps.max(FIRST_STEPS) {
        let n = 2 + round % 50;
        let x = random(&device, &[n, 8], DType::F32)?;
        device.synchronize()?;
        let begin = Instant::now();
        let mut y = x.clone();
        for _ in 0..steps / 2 {
            y = (&y + &x)?.tanh()?;
        }
        let middle = Instant::now();
        eval(&[&y])?;
        started.push(middle.elapsed().as_nanos() as f64 / steps as f64);
        built.push((middle - begin).as_nanos() as f64 / steps as f64);
    }
    let (built, started) = (median(built.split_off(FIRST_STEPS)), median(started.split_off(FIRST_STEPS)));
    let line = json!({ "name": "host", "build_ns": built, "start_ns": started, "plans": device.lazy_compilations() });
    writeln!(std::io::stdout(), "{line}")?;
    Ok(())
}

fn measure_all() -> Result<bool> {
    let arguments = arguments()?;
    let is_wanted = |name: &str| arguments.names.is_empty() || arguments.names.iter().any(|n| n == name);
    let mut right = true;
    for program in PROGRAMS.iter().filter(|program| is_wanted(program.name)) {
        right &= compare(program, &arguments)?;
    }
    if is_wanted("loop") {
        growing(&arguments)?;
    }
    if is_wanted("host") {
        host(&arguments)?;
    }
    Ok(right)
}

fn main() -> ExitCode {
    match measure_all() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            // Nothing is left to do where standard error is closed.
            let _ = writeln!(std::io::stderr(), "{why}");
            ExitCode::from(2)
        }
    }
}
