//! A matrix of 4096 x 4096 weights in four and a half bits each, multiplied without ever being unpacked in memory.
//!
//! ```sh
//! cargo run -p tallow --example quantized
//! ```

use std::io::Write;
use std::sync::Arc;

use tallow::quantized::{GgmlDType, QMatMul, QTensor};
use tallow::{Device, Module, Result, Tensor};

const N: usize = 4096;

fn main() -> Result<()> {
    let device = Device::vulkan_if_available();
    device.set_seed(1)?;
    // As a trained layer has them: each output is a sum of N products with deviation 1.
    let w = Tensor::randn(0f32, 1.0 / (N as f32).sqrt(), (N, N), &device)?;
    let x = Tensor::randn(0f32, 1.0, (1, N), &device)?;
    // Drawn once: both products read the same numbers.
    tallow::eval(&[&w, &x])?;

    let q = Arc::new(QTensor::quantize(&w, GgmlDType::Q4_0)?);
    let layer = QMatMul::from_arc(q.clone())?;
    let y = layer.forward(&x)?;
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{}", y.explain()?);

    let exact = x.matmul(&w.t()?)?;
    let error = y.sub(&exact)?;
    let worst = error.abs()?.max_all()?.to_scalar::<f32>()?;
    let relative =
        (error.sqr()?.sum_all()?.to_scalar::<f32>()? / exact.sqr()?.sum_all()?.to_scalar::<f32>()?).sqrt();
    let (plain, packed) = (N * N * size_of::<f32>(), q.storage_size_in_bytes());
    let _ = writeln!(out, "on {device}: weights of {plain} bytes as f32, {packed} as Q4_0");
    let _ = writeln!(
        out,
        "x W^T against the product in f32: at most {worst:.3} off, {:.1} % on average",
        relative * 100.0
    );
    Ok(())
}
