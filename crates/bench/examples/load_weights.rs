//! How fast weights come to the device: blocks that it rearranges itself, blocks that the host rearranges before, and
//! bytes as they are, which is as fast as it can be.
//!
//! `cargo run -p tallow-bench --example load_weights`

#![allow(clippy::print_stdout, reason = "an example that prints figures")]

use std::sync::Arc;
use std::time::Instant;

use tallow_ir::{DType, TensorType};
use tallow_quant::{Format, repack};
use tallow_runtime::RuntimeOptions;
use tallow_runtime::executable::DeviceWeight;
use tallow_runtime::vulkan::{Context, MemoryUse};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Rows and columns of a matrix, and matrices of a model: about one GB in four bits.
const SHAPE: [usize; 2] = [14336, 4096];
const MATRICES: usize = 32;

fn main() -> Result<()> {
    let context = Context::new(&RuntimeOptions::from_env()?)?;
    println!("{}", context.caps().name);
    println!("format     GB   GB/s as they are  rearranged by the host  by the device");
    for format in
        [Format::Q4_0, Format::Q3_K, Format::Q4_K, Format::Q6_K, Format::Q8_0, Format::MXFP4, Format::IQ2_S]
    {
        row(&context, format)?;
    }
    Ok(())
}

fn row(context: &Arc<Context>, format: Format) -> Result<()> {
    let ty = TensorType::new(DType::Block(format), SHAPE);
    let bytes = format.row_bytes(SHAPE.iter().product())?;
    let file: Vec<u8> = (0..bytes as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let on_device = || {
        let weight = DeviceWeight::upload(context, "w", &ty, &file, &mut |_, _| {})?;
        Ok(weight)
    };
    // Makes ring and kernel, and shows that all is well.
    if on_device()?.read(context)? != file {
        return Err(format!("{format} came back changed").into());
    }
    let as_is = |data: &[u8]| {
        let buffer = context.buffer("w", (data.len() as u64).next_multiple_of(16), MemoryUse::Device)?;
        context.upload(&buffer, 0, data)?;
        Ok(buffer)
    };
    let total = (bytes * MATRICES) as f64 / 1e9;
    let [plain, host, device] =
        [seconds(|| as_is(&file))?, seconds(|| as_is(&repack(format, &file)?))?, seconds(on_device)?]
            .map(|seconds| total / seconds);
    println!("{:8} {total:4.2} {plain:18.1} {host:23.1} {device:14.1}", format.name());
    Ok(())
}

/// The time of loading all matrices, of which the device keeps each.
fn seconds<T>(load: impl Fn() -> Result<T>) -> Result<f64> {
    let start = Instant::now();
    let matrices = (0..MATRICES).map(|_| load()).collect::<Result<Vec<_>>>()?;
    let seconds = start.elapsed().as_secs_f64();
    drop(matrices);
    Ok(seconds)
}
