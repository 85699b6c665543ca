//! What a call costs, and the size from which the device is faster than Candle's CPU: the tables of `docs/candle.md`.
//!
//! Build it with an optimized Candle, or its side of the table means nothing:
//! `cargo build -p tallow-candle --example candle_overhead --config 'profile.dev.package.candle-core.opt-level=3'`
#![allow(clippy::print_stdout)]

use std::time::Instant;

use candle_core::quantized::{GgmlDType, QMatMul, QTensor};
use candle_core::{Device, Module, Result, Tensor};
use tallow::{DType, Input};
use tallow_candle::{compile, device, nn};

/// The median of the microseconds that `f` takes, after a first call.
fn median(mut f: impl FnMut() -> Result<()>) -> Result<f64> {
    f()?;
    let mut times = vec![];
    let started = Instant::now();
    while times.len() < 5 || (times.len() < 200 && started.elapsed().as_secs_f64() < 0.3) {
        let start = Instant::now();
        f()?;
        times.push(start.elapsed().as_secs_f64() * 1e6);
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

/// Parts of a call of `silu(x) * y` on `n` elements, in microseconds: copies in, submission and wait, copy out, all.
fn parts(n: usize) -> Result<[f64; 4]> {
    let function = function(n)?;
    let data = vec![0u8; 4 * n];
    let mut to = vec![0u8; 4 * n];
    let types = [(DType::F32, &[n][..]), (DType::F32, &[n][..])];
    let mut all: Vec<[f64; 4]> = vec![];
    for _ in 0..if n > 1 << 22 { 10 } else { 100 } {
        let (start, mut copied_in, mut read_at, mut copied_out) = (Instant::now(), 0.0, 0.0, 0.0);
        let mut write = |_: usize, to: &mut [u8]| {
            let at = Instant::now();
            to.copy_from_slice(&data);
            copied_in += micros(at);
            Ok(())
        };
        let mut read = |view: tallow::OutputView| {
            read_at = micros(start);
            let at = Instant::now();
            to.copy_from_slice(view.bytes);
            copied_out = micros(at);
        };
        function.run_with(&types, &mut write, &mut read).map_err(candle_core::Error::wrap)?;
        all.push([copied_in, read_at - copied_in, copied_out, micros(start)]);
    }
    Ok(medians(&all))
}

/// `silu(x) * y` of `n` elements.
fn function(n: usize) -> Result<tallow::Function> {
    let inputs = ["x", "y"].map(|name| Input::new(name, DType::F32, n));
    let build = |x: &[tallow::Tensor]| Ok(vec![x[0].silu()?.mul(&x[1])?]);
    tallow::compile(&device(), &inputs, build).map_err(candle_core::Error::wrap)
}

/// Microseconds of submitting a run that has nothing to copy, and of waiting for it.
fn submission() -> Result<[f64; 2]> {
    let function = function(1)?;
    let inputs = [("x", &[0u8; 4][..]), ("y", &[0u8; 4][..])];
    let mut all = vec![];
    for _ in 0..200 {
        let start = Instant::now();
        let executable = function.executable().map_err(candle_core::Error::wrap)?;
        let run = executable.run_async(&[], &inputs).map_err(candle_core::Error::wrap)?;
        let submitted = micros(start);
        run.wait().map_err(candle_core::Error::wrap)?;
        all.push([submitted, micros(start) - submitted]);
    }
    Ok(medians(&all))
}

fn micros(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e6
}

/// The median of each column.
fn medians<const N: usize>(rows: &[[f64; N]]) -> [f64; N] {
    std::array::from_fn(|i| {
        let mut column: Vec<f64> = rows.iter().map(|row| row[i]).collect();
        column.sort_by(f64::total_cmp);
        column[column.len() / 2]
    })
}

fn compare(what: &str, ours: f64, candle: f64) {
    println!("| {what} | {ours:.0} | {candle:.0} | {:.2} |", candle / ours);
}

fn main() -> Result<()> {
    let cpu = &Device::Cpu;
    let largest = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(24u32);
    println!("{} against Candle on {} threads\n", device().name(), candle_core::utils::get_num_threads());
    let [submit, wait] = submission()?;
    println!("A run with nothing to copy: submission {submit:.1} us, wait {wait:.1} us.\n");
    println!("| elements | copies in, us | submission and wait, us | copy out, us | all, us |");
    println!("|---|---|---|---|---|");
    for power in (0..=largest).step_by(4) {
        let [copied_in, run, copied_out, total] = parts(1 << power)?;
        println!("| 2^{power} | {copied_in:.1} | {run:.1} | {copied_out:.1} | {total:.1} |");
    }
    println!("\n| op | Tallow, us | Candle's CPU, us | ratio |");
    println!("|---|---|---|---|");
    for power in (10..=largest).step_by(2) {
        let (x, y) = (Tensor::randn(0f32, 1.0, 1 << power, cpu)?, Tensor::randn(0f32, 1.0, 1 << power, cpu)?);
        let op = compile(|[x, y]| x.silu()?.mul(y));
        let ours = median(|| x.apply_op2_no_bwd(&y, &op).map(|_| ()))?;
        compare(&format!("silu(x) y, 2^{power} elements"), ours, median(|| (x.silu()? * &y).map(|_| ()))?);
    }
    for power in 6..=(largest / 2).min(12) {
        let n = 1 << power;
        let (x, y) = (Tensor::randn(0f32, 1.0, (n, n), cpu)?, Tensor::randn(0f32, 1.0, (n, n), cpu)?);
        let op = compile(|[x, y]| x.matmul(y));
        let ours = median(|| x.apply_op2_no_bwd(&y, &op).map(|_| ()))?;
        compare(&format!("matmul of f32, {n}^3"), ours, median(|| x.matmul(&y).map(|_| ()))?);
    }
    let (n, rows) = if largest < 24 { (512, &[1, 8][..]) } else { (4096, &[1, 8, 64, 512][..]) };
    let w = Tensor::randn(0f32, 1.0, (n, n), cpu)?;
    for format in [GgmlDType::Q4_0, GgmlDType::Q4K] {
        let q = std::sync::Arc::new(QTensor::quantize(&w, format)?);
        let (ours, candle) = (nn::QMatMul::on(&q, &device())?, QMatMul::from_arc(q)?);
        for rows in rows {
            let x = Tensor::randn(0f32, 1.0, (*rows, n), cpu)?;
            let time = median(|| ours.forward(&x).map(|_| ()))?;
            compare(
                &format!("{format:?} {n}x{n}, {rows} rows"),
                time,
                median(|| candle.forward(&x).map(|_| ()))?,
            );
        }
    }
    Ok(())
}
