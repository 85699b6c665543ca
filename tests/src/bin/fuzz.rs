//! Random graphs over the whole op set, until time is over or something differs:
//!
//! ```sh
//! cargo run -p tallow-tests --bin fuzz -- --seconds 60 --seed 1
//! ```
//!
//! Each is evaluated as written, fused, and (where there is a device; `--no-device` does without) by kernels that
//! are recorded once and replayed with other symbol values. A graph that fails is made small (`--no-reduce` leaves
//! it as it is) and printed; it becomes a filetest. The exit status says whether one was found.
//!
//! `--mode lazy` runs programs of lazy tensors instead, on the device or without one on the interpreter: computed in
//! random pieces, each value that is read must be that of the whole program. `--count N` ends after so many.
//!
//! `--mode shapes` evaluates programs of lazy tensors under 20 sets of shapes each, whose extents become symbols of plans.
//!
//! `--mode gradients` differentiates graphs and compares with differences in f64, then checks graphs of f32 together with
//! their gradients as it checks other graphs. With `--no-device` it does the first alone.
#![allow(clippy::print_stdout)]

use std::cell::{Cell, RefCell};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use tallow::Device;
use tallow_ir::{DType, DeviceCaps, Graph, caps};
use tallow_tests::fuzz::{Coverage, check};
use tallow_tests::gradients::{self, Counts};
use tallow_tests::lazy::{Program, ShapeCounts, Tally, check_shapes};
use tallow_tests::reduce::{caught, reduce};
use tallow_tests::{Options, covering_graph, random_row_program, random_run_program};

/// What is compared.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// Graphs, as written, fused, and on the device.
    Graphs,
    /// Programs of lazy tensors, in pieces and at once.
    Lazy,
    /// Gradients, against differences, and as graphs.
    Gradients,
    /// Programs of lazy tensors under many shapes.
    Shapes,
}

struct Arguments {
    mode: Mode,
    seconds: u64,
    seed: u64,
    /// How many at most.
    count: u64,
    device: bool,
    reduce: bool,
}

fn arguments() -> Result<Arguments, String> {
    let mut found =
        Arguments { mode: Mode::Graphs, seconds: 60, seed: 1, count: u64::MAX, device: true, reduce: true };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut number = || {
            let value = words.next().ok_or(format!("{word} needs a number"))?;
            value.parse::<u64>().map_err(|_| format!("{word} {value}: not a number"))
        };
        match word.as_str() {
            "--seconds" => found.seconds = number()?,
            "--seed" => found.seed = number()?,
            "--count" => found.count = number()?,
            "--mode" => {
                found.mode = match words.next().as_deref() {
                    Some("graphs") => Mode::Graphs,
                    Some("lazy") => Mode::Lazy,
                    Some("gradients") => Mode::Gradients,
                    Some("shapes") => Mode::Shapes,
                    _ => return Err("--mode is graphs, lazy, gradients or shapes".into()),
                }
            }
            "--no-device" => found.device = false,
            "--no-reduce" => found.reduce = false,
            other => {
                let all = "--mode graphs|lazy|gradients|shapes, --seconds N, --seed S, --count N, --no-device, --no-reduce";
                return Err(format!("{other}: the options are {all}"));
            }
        }
    }
    Ok(found)
}

/// The device, and what it can do; without one, what lavapipe can.
fn open(wanted: bool) -> (Option<Device>, DeviceCaps) {
    let lavapipe = || caps::profile("lavapipe").unwrap_or_else(caps::minimum);
    if !wanted {
        return (None, lavapipe());
    }
    match Device::best_vulkan() {
        #[cfg(feature = "vulkan")]
        Ok(Device::Vulkan(vulkan)) => {
            let caps = vulkan.caps().clone();
            (Some(Device::Vulkan(vulkan)), caps)
        }
        Ok(Device::Cpu) => (None, lavapipe()),
        Err(why) => {
            println!("no device: {why}");
            (None, lavapipe())
        }
    }
}

/// What kernels of the device compute: 64-bit types where it has them.
fn options(caps: &DeviceCaps) -> Options {
    let has = |d: &DType| match d {
        DType::I64 => caps.int64,
        DType::F64 => caps.float64,
        _ => true,
    };
    let of = |kind: fn(DType) -> bool| DType::SCALARS.into_iter().filter(|d| kind(*d) && has(d)).collect();
    Options { floats: of(DType::is_float), ints: of(DType::is_int), ..Options::for_kernels() }
}

/// Graph number `seed`. Graphs alternate between types of all widths, f32 alone, and programs over rows and over column
/// groups; each kind occurs in all types and in f32.
fn graph(seed: u64, caps: &DeviceCaps) -> Graph {
    let (round, steps) = (seed / 4, seed as usize / 4 % 8);
    let all = options(caps);
    let f32_alone = Options { floats: vec![DType::F32], ..all.clone() };
    match seed % 4 {
        0 => covering_graph(seed, round, steps, &all),
        1 if round % 2 == 1 => random_run_program(seed, &f32_alone),
        1 if caps.int64 && caps.float64 => random_row_program(seed),
        2 => covering_graph(seed, 2 * round, steps, &f32_alone),
        _ => covering_graph(seed, 2 * round + 1, steps, &f32_alone),
    }
}

/// Graphs until time is over or one fails.
fn graphs(arguments: &Arguments, device: Option<&Device>, caps: &DeviceCaps) -> ExitCode {
    let start = Instant::now();
    let end = start + Duration::from_secs(arguments.seconds);
    let mut coverage = Coverage::default();
    let mut seed = arguments.seed;
    let mut reached = false;
    while Instant::now() < end && seed - arguments.seed < arguments.count {
        let made = graph(seed, caps);
        let found = caught(|| check(&made, seed, caps, device, &mut coverage));
        if let Err(first) = found {
            println!("after {} s, seed {seed}: {first}", start.elapsed().as_secs());
            if !arguments.reduce {
                println!("{made}{coverage}");
                return ExitCode::FAILURE;
            }
            println!("making it small ..");
            let judge = |g: &Graph| caught(|| check(g, seed, caps, device, &mut Coverage::default()));
            let small = reduce(&made, |g| judge(g).is_err());
            let why = judge(&small).err().unwrap_or(first);
            println!("{small}seed {seed}: {why}\n{coverage}");
            return ExitCode::FAILURE;
        }
        seed += 1;
        if !reached && seed.is_multiple_of(64) && coverage.missing().is_empty() {
            reached = true;
            println!("after {} s, seed {seed}: everything has been reached", start.elapsed().as_secs());
        }
    }
    println!("nothing differs up to seed {}\n{coverage}", seed - 1);
    ExitCode::SUCCESS
}

/// Programs of lazy tensors until time is over or one fails.
fn programs(arguments: &Arguments, device: &Device) -> ExitCode {
    let start = Instant::now();
    let end = start + Duration::from_secs(arguments.seconds);
    let mut tally = Tally::default();
    let mut seed = arguments.seed;
    while Instant::now() < end && seed - arguments.seed < arguments.count {
        let mut made = None;
        let found = caught(|| made.insert(Program::new(seed, device)?).check(device, &mut tally));
        if let Err(first) = found {
            println!("after {} s, seed {seed}: {first}", start.elapsed().as_secs());
            let judge = |p: &Program| caught(|| p.check(device, &mut Tally::default()));
            let small = match made {
                Some(program) if arguments.reduce => {
                    println!("making it small ..");
                    program.reduced(|p| judge(p).is_err())
                }
                Some(program) => program,
                None => return ExitCode::FAILURE,
            };
            let why = judge(&small).err().unwrap_or(first);
            println!("{small}seed {seed}: {why}\n{tally}");
            return ExitCode::FAILURE;
        }
        seed += 1;
    }
    println!("nothing differs up to seed {}\n{tally}", seed - 1);
    ExitCode::SUCCESS
}

/// Programs of lazy tensors under many shapes, until time is over or one fails.
fn shapes(arguments: &Arguments, device: &Device) -> ExitCode {
    let start = Instant::now();
    let end = start + Duration::from_secs(arguments.seconds);
    let mut counts = ShapeCounts::default();
    let mut seed = arguments.seed;
    while Instant::now() < end && seed - arguments.seed < arguments.count {
        if let Err(why) = caught(|| check_shapes(seed, 20, device, &mut counts)) {
            println!("after {} s, seed {seed}: {why}\n{counts:?}", start.elapsed().as_secs());
            return ExitCode::FAILURE;
        }
        seed += 1;
    }
    println!("nothing differs up to seed {}\n{counts:?}", seed - 1);
    ExitCode::SUCCESS
}

/// What is to be checked of graph number `seed` and its gradients, and how.
type GradientCheck<'a> = (Graph, &'a dyn Fn(&Graph, u64) -> Result<(), String>);

/// Gradients until time is over or one fails.
fn gradients(arguments: &Arguments, device: Option<&Device>, caps: &DeviceCaps) -> ExitCode {
    let start = Instant::now();
    let end = start + Duration::from_secs(arguments.seconds);
    let (counts, coverage) = (Cell::new(Counts::default()), RefCell::new(Coverage::default()));
    let differences = |graph: &Graph, seed: u64| {
        let mut now = counts.get();
        now.add(gradients::check(graph, seed)?);
        counts.set(now);
        Ok(())
    };
    let kernels = |graph: &Graph, seed: u64| check(graph, seed, caps, device, &mut coverage.borrow_mut());
    let f32_alone = Options { floats: vec![DType::F32], custom: false, ..options(caps) };
    let mut seed = arguments.seed;
    while Instant::now() < end && seed - arguments.seed < arguments.count {
        let mut checks: Vec<GradientCheck<'_>> = vec![(gradients::differentiable_graph(seed), &differences)];
        let forward = covering_graph(seed, seed, seed as usize % 4, &f32_alone);
        let both = if arguments.device { gradients::with_gradients(&forward) } else { None };
        checks.extend(both.map(|graph| (graph, &kernels as _)));
        for (graph, judge) in checks {
            let Err(first) = caught(|| judge(&graph, seed)) else { continue };
            println!("after {} s, seed {seed}: {first}", start.elapsed().as_secs());
            let fails = |g: &Graph| caught(|| judge(g, seed)).is_err();
            let small = if arguments.reduce { reduce(&graph, fails) } else { graph };
            let why = caught(|| judge(&small, seed)).err().unwrap_or(first);
            println!("{small}seed {seed}: {why}\n{}", counts.get());
            return ExitCode::FAILURE;
        }
        seed += 1;
    }
    println!("nothing differs up to seed {}\n{}", seed - 1, counts.get());
    if arguments.device {
        println!("{}", coverage.borrow());
    }
    if counts.get().are_too_many_rejected() {
        println!("too many points were rejected: differences check too little");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

fn main() -> ExitCode {
    let arguments = match arguments() {
        Ok(found) => found,
        Err(why) => {
            println!("{why}");
            return ExitCode::from(2);
        }
    };
    let (device, caps) = open(arguments.device);
    let name = device.as_ref().map_or_else(|| "the interpreter alone".into(), Device::name);
    println!("{} seconds from seed {} on {name}", arguments.seconds, arguments.seed);
    match arguments.mode {
        Mode::Graphs => graphs(&arguments, device.as_ref(), &caps),
        Mode::Gradients => gradients(&arguments, device.as_ref(), &caps),
        Mode::Lazy => programs(&arguments, &device.unwrap_or(Device::Cpu)),
        Mode::Shapes => shapes(&arguments, &device.unwrap_or(Device::Cpu)),
    }
}
