//! A fused activation with its gradient as a Candle op, in a training loop of Candle's.
//!
//! `cargo run -p tallow-candle --example candle_custom_op`
#![allow(clippy::print_stdout)]

use candle_core::{Device, Result, Tensor, Var};
use candle_nn::{Optimizer, SGD};
use tallow_candle::{CompiledOp, compile};

/// `x * sigmoid(1.7 x)` as one kernel, and its gradient `s (1 + 1.7 x (1 - s))` as another.
fn activation() -> CompiledOp<1> {
    let sigmoid = |x: &tallow::Tensor| x.affine(-1.7, 0.0)?.exp()?.affine(1.0, 1.0)?.recip();
    compile(move |[x]| x.mul(&sigmoid(x)?)).named("activation").with_backward(move |[x], _y, dy| {
        let s = sigmoid(x)?;
        let inner = x.affine(1.7, 0.0)?.mul(&s.affine(-1.0, 1.0)?)?.affine(1.0, 1.0)?;
        Ok([Some(inner.mul(&s)?.mul(dy)?)])
    })
}

/// Candle's ops for the same.
fn pure(x: &Tensor) -> Result<Tensor> {
    x * (x.affine(-1.7, 0.0)?.exp()? + 1.0)?.recip()?
}

/// Fits a layer to a function of its input and gives the losses.
fn train(activation: impl Fn(&Tensor) -> Result<Tensor>) -> Result<Vec<f32>> {
    let cpu = &Device::Cpu;
    let x = Tensor::arange(-32f32, 32.0, cpu)?.affine(0.1, 0.0)?.unsqueeze(1)?;
    let target = x.sqr()?.affine(0.1, 0.0)?;
    let w = Var::from_tensor(&Tensor::arange(-8f32, 8.0, cpu)?.affine(0.1, 0.0)?.unsqueeze(0)?)?;
    let out = Var::from_tensor(&Tensor::arange(0f32, 16.0, cpu)?.affine(0.01, 0.0)?.unsqueeze(1)?)?;
    let mut sgd = SGD::new(vec![w.clone(), out.clone()], 0.05)?;
    (0..100)
        .map(|_| {
            let y = activation(&x.matmul(w.as_tensor())?)?.matmul(out.as_tensor())?;
            let loss = (y - &target)?.sqr()?.mean_all()?;
            sgd.backward_step(&loss)?;
            loss.to_scalar::<f32>()
        })
        .collect()
}

fn main() -> Result<()> {
    let op = activation();
    let losses = train(|x| x.apply_op1(op.clone()))?;
    let expected = train(pure)?;
    println!("on {}: loss {:.5} at first, {:.5} after 100 steps", op.device().name(), losses[0], losses[99]);
    let apart = losses.iter().zip(&expected).map(|(a, b)| ((a - b) / b).abs()).fold(0.0, f32::max);
    println!("the losses of Candle's own ops differ by {apart:.0e} of themselves at most");
    if apart > 1e-4 || losses[99] > 0.5 * losses[0] {
        candle_core::bail!("training differs from Candle's");
    }
    Ok(())
}
