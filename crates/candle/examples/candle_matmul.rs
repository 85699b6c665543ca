//! Products on the device from a Candle program: of quantized weights as a layer, and with what follows them fused in.
//!
//! `cargo run -p tallow-candle --example candle_matmul`
#![allow(clippy::print_stdout)]

use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device, Module, Result, Tensor};
use tallow_candle::{compile, device, nn::QMatMul, to_resident};

fn largest_difference(a: &Tensor, b: &Tensor) -> Result<f32> {
    (a - b)?.abs()?.max_all()?.to_scalar()
}

fn main() -> Result<()> {
    let cpu = &Device::Cpu;
    println!("on {}", device().name());
    let x = Tensor::randn(0f32, 1.0, (8, 512), cpu)?;
    let w = Tensor::randn(0f32, 0.05, (256, 512), cpu)?;

    // Candle's quantized layer, whose weights are resident on the device.
    let quantized = QTensor::quantize(&w, GgmlDType::Q4K)?;
    let exact = x.matmul(&quantized.dequantize(cpu)?.t()?)?;
    let y = QMatMul::from_qtensor(quantized)?.forward(&x)?;
    println!(
        "quantized: {:?}, largest difference to dequantized weights {:.0e}",
        y.dims(),
        largest_difference(&y, &exact)?
    );

    // A product, bias and activation as one op: one kernel, weights uploaded once.
    let b = Tensor::randn(0f32, 1.0, 256, cpu)?;
    let (weights, bias) = (to_resident(&w.t()?, &device())?, to_resident(&b, &device())?);
    let layer = compile(move |[x]: &[tallow::Tensor; 1]| x.matmul(&weights)?.broadcast_add(&bias)?.gelu());
    let y = x.apply_op1(layer)?;
    let expected = x.matmul(&w.t()?)?.broadcast_add(&b)?.gelu()?;
    println!(
        "fused: {:?}, largest difference to Candle {:.0e}",
        y.dims(),
        largest_difference(&y, &expected)?
    );
    Ok(())
}
