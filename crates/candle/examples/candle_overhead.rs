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

/// Parts of a call of `silu(x) * y` on `n` elements, in microseconds: copies in, submit, wait, copy out, all.
fn parts(n: usize) -> Result<[f64; 5]> {
    let wrap = |error: tallow::Error| candle_core::Error::wrap(error);
    let inputs = ["x", "y"].map(|name| Input::new(name, DType::F32, n));
    let build = |x: &[tallow::Tensor]| Ok(vec![x[0].silu()?.mul(&x[1])?]);
    let function = tallow::compile(&device(), &inputs, build).map_err(wrap)?;
    let data = vec![0u8; 4 * n];
    let types = [(DType::F32, &[n][..]), (DType::F32, &[n][..])];
    let mut all: Vec<[f64; 5]> = vec![];
    for _ in 0..if n > 1 << 22 { 10 } else { 100 } {
        let (start, mut copied_in, mut read_at, mut copied_out) = (Instant::now(), 0.0, 0.0, 0.0);
        let micros = |t: Instant| t.elapsed().as_secs_f64() * 1e6;
        let mut write = |_: usize, to: &mut [u8]| {
            let at = Instant::now();
            to.copy_from_slice(&data);
            copied_in += micros(at);
            Ok(())
        };
        let mut read = |view: tallow::OutputView| {
            read_at = micros(start);
            let at = Instant::now();
            std::hint::black_box(view.bytes.to_vec());
            copied_out = micros(at);
        };
        function.run_with(&types, &mut write, &mut read).map_err(wrap)?;
        let total = micros(start);
        // The same again, not waiting at once: what starting takes beyond its copies is the submission.
        let inputs = [("x", data.as_slice()), ("y", data.as_slice())];
        let at = Instant::now();
        let run = function.executable().run_async(&[], &inputs).map_err(wrap)?;
        let submit = (micros(at) - copied_in).max(0.0);
        run.wait().map_err(wrap)?;
        all.push([copied_in, submit, (read_at - copied_in - submit).max(0.0), copied_out, total]);
    }
    Ok(std::array::from_fn(|i| {
        let mut column: Vec<f64> = all.iter().map(|row| row[i]).collect();
        column.sort_by(f64::total_cmp);
        column[column.len() / 2]
    }))
}

fn compare(what: &str, ours: f64, candle: f64) {
    println!("| {what} | {ours:.0} | {candle:.0} | {:.2} |", candle / ours);
}

fn main() -> Result<()> {
    let cpu = &Device::Cpu;
    let largest = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(24u32);
    println!("{} against Candle on {} threads\n", device().name(), candle_core::utils::get_num_threads());
    println!("| elements | copies in, us | submit, us | wait, us | copy out, us | call, us |");
    println!("|---|---|---|---|---|---|");
    for power in (0..=largest).step_by(4) {
        let [copied_in, submit, wait, copied_out, total] = parts(1 << power)?;
        println!("| 2^{power} | {copied_in:.1} | {submit:.1} | {wait:.1} | {copied_out:.1} | {total:.1} |");
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
