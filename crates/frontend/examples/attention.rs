//! Scaled dot product attention, written as in the paper: products, a causal mask, a softmax.
//!
//! Nobody tells the compiler that this is attention; `explain` shows what it made of it. `nn::attention` is the same
//! as one operation, for which the scores are never in memory.
//!
//! ```sh
//! cargo run -p tallow --example attention
//! ```

use std::io::Write;

use tallow::{D, DType, Device, IndexOp, Result, Tensor, eval, nn};

const HEADS: usize = 4;
const TOKENS: usize = 32;
const WIDTH: usize = 16;

/// `softmax(q k^T / sqrt(width)) v` per head, where a token sees itself and those before it.
fn attention(q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
    let (_, tokens, width) = q.dims3()?;
    let scores = (q.matmul(&k.t()?)? / (width as f64).sqrt())?;
    // Ones above the diagonal are what comes later.
    let later = Tensor::tril2(tokens, DType::U8, q.device())?.eq(0.0)?;
    let weights = nn::softmax(&scores.masked_fill(&later, f64::NEG_INFINITY)?, D::Minus1)?;
    weights.matmul(v)
}

/// Numbers from -1 to 1 that look random and are the same each time.
fn wave(seed: f64, device: &Device) -> Result<Tensor> {
    let positions = Tensor::arange(0f32, (HEADS * TOKENS * WIDTH) as f32, device)?;
    positions.affine(12.9898, seed)?.sin()?.reshape((HEADS, TOKENS, WIDTH))
}

fn main() -> Result<()> {
    let device = Device::vulkan_if_available();
    let (q, k, v) = (wave(0.1, &device)?, wave(0.2, &device)?, wave(0.3, &device)?);
    eval(&[&q, &k, &v])?;

    let y = attention(&q, &k, &v)?;
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{}\n{y}", y.explain()?);

    let one = nn::attention(&q, &k, &v, &nn::AttentionOptions::default().causal(true))?;
    let _ = writeln!(out, "as one operation:\n\n{}", one.explain()?);
    let apart = (&y - &one)?.abs()?.max_all()?;
    let _ = writeln!(out, "both ways differ by {}", apart.to_scalar::<f32>()?);

    // The first token sees itself alone, so its result is its own value.
    let difference = (y.i((.., 0))? - v.i((.., 0))?)?.abs()?.max_all()?;
    let _ = writeln!(out, "first token off by {}", difference.to_scalar::<f32>()?);
    Ok(())
}
