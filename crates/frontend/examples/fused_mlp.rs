//! A small network compiled once for any number of rows, then run for several.
//!
//! The norm, both products with their bias and activation, and the softmax are written as they are in
//! papers; `explain` shows which kernels they became.
//!
//! ```sh
//! cargo run -p tallow --example fused_mlp
//! ```

use std::io::Write;

use tallow::{D, DType, Device, Input, Result, Symbol, Tensor, compile, nn};

const WIDTH: usize = 64;
const HIDDEN: usize = 256;
const CLASSES: usize = 10;

/// Weights that look random and are the same each time.
fn weights(rows: usize, cols: usize, device: &Device) -> Result<Tensor> {
    let wave = Tensor::arange(0f32, (rows * cols) as f32, device)?.affine(12.9898, 0.5)?.sin()?;
    (wave.reshape((rows, cols))? * (1.0 / (rows as f64).sqrt()))?.to_dtype(DType::F32)
}

fn main() -> Result<()> {
    let device = Device::vulkan_if_available();
    let alpha = Tensor::ones(WIDTH, DType::F32, &device)?;
    let (up, down) = (weights(WIDTH, HIDDEN, &device)?, weights(HIDDEN, CLASSES, &device)?);
    let bias = Tensor::full(0.1f32, HIDDEN, &device)?;
    // Weights are given their values before compiling, so that they are resident and not recomputed.
    tallow::eval(&[&alpha, &up, &down, &bias])?;

    let rows = Symbol::new("rows", 1024);
    let mlp = compile(&device, &[Input::new("x", DType::F32, (rows, WIDTH))], |inputs| {
        let x = nn::ops::rms_norm(&inputs[0], &alpha, 1e-5)?;
        let hidden = x.matmul(&up)?.broadcast_add(&bias)?.gelu()?;
        Ok(vec![nn::softmax(&hidden.matmul(&down)?, D::Minus1)?])
    })?;

    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{}", mlp.explain()?);
    for rows in [1, 3, 100] {
        let x = Tensor::arange(0f32, (rows * WIDTH) as f32, &device)?.reshape((rows, WIDTH))?.cos()?;
        let classes = mlp.run(&[&x])?[0].argmax(D::Minus1)?;
        let _ = writeln!(
            out,
            "{rows} rows, classes of the first ones: {:?}",
            &classes.to_vec1::<u32>()?[..rows.min(3)]
        );
    }
    Ok(())
}
