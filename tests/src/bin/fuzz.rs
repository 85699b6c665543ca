//! Random graphs over the whole op set, until time is over or something differs:
//!
//! ```sh
//! cargo run -p tallow-tests --bin fuzz -- --seconds 60 --seed 1
//! ```
//!
//! Each is evaluated as written, fused, and (where there is a device; `--no-device` does without) by kernels that
//! are recorded once and replayed with other symbol values. A graph that fails is made small (`--no-reduce` leaves
//! it as it is) and printed; it becomes a filetest. The exit status says whether one was found.
#![allow(clippy::print_stdout)]

use std::process::ExitCode;
use std::time::{Duration, Instant};

use tallow::Device;
use tallow_ir::{DType, DeviceCaps, Graph, caps};
use tallow_tests::fuzz::{Coverage, check};
use tallow_tests::reduce::{caught, reduce};
use tallow_tests::{Options, covering_graph, random_row_program, random_run_program};

struct Arguments {
    seconds: u64,
    seed: u64,
    device: bool,
    reduce: bool,
}

fn arguments() -> Result<Arguments, String> {
    let mut found = Arguments { seconds: 60, seed: 1, device: true, reduce: true };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut number = || {
            let value = words.next().ok_or(format!("{word} needs a number"))?;
            value.parse::<u64>().map_err(|_| format!("{word} {value}: not a number"))
        };
        match word.as_str() {
            "--seconds" => found.seconds = number()?,
            "--seed" => found.seed = number()?,
            "--no-device" => found.device = false,
            "--no-reduce" => found.reduce = false,
            other => {
                return Err(format!(
                    "{other}: the options are --seconds N, --seed S, --no-device, --no-reduce"
                ));
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

/// Graph number `seed`: types of all widths, f32 alone, and programs over rows and over runs of columns take turns. What graphs hold in turn, they
/// hold in all types and in f32.
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
    let start = Instant::now();
    let end = start + Duration::from_secs(arguments.seconds);
    let mut coverage = Coverage::default();
    let mut seed = arguments.seed;
    let mut reached = false;
    while Instant::now() < end {
        let made = graph(seed, &caps);
        let found = caught(|| check(&made, seed, &caps, device.as_ref(), &mut coverage));
        if let Err(first) = found {
            println!("after {} s, seed {seed}: {first}", start.elapsed().as_secs());
            if !arguments.reduce {
                println!("{made}{coverage}");
                return ExitCode::FAILURE;
            }
            println!("making it small ..");
            let judge =
                |g: &Graph| caught(|| check(g, seed, &caps, device.as_ref(), &mut Coverage::default()));
            let small = reduce(&made, |g| judge(g).is_err());
            let why = judge(&small).err().unwrap_or(first);
            println!("{small}seed {seed}: {why}\n{coverage}");
            return ExitCode::FAILURE;
        }
        seed += 1;
        if !reached && seed % 64 == 0 && coverage.missing().is_empty() {
            reached = true;
            println!("after {} s, seed {seed}: everything has been reached", start.elapsed().as_secs());
        }
    }
    println!("nothing differs up to seed {}\n{coverage}", seed - 1);
    ExitCode::SUCCESS
}
