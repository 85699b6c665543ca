//! Trains a GPT on random tokens and prints its speed: all of a step (forward pass, gradients, clipping, AdamW) is one
//! function, recorded once.
//!
//! ```sh
//! cargo run --example train_gpt -- --layers 12 --width 768 --heads 12 --vocabulary 50304 --context 1024 --batch 8
//! ```
//!
//! `--budget BYTES` is the most that intermediate values may take.

#![allow(clippy::print_stdout)]

use std::time::Instant;

use tallow::nn::optim::{AdamW, ParamGroup, ParamsAdamW};
use tallow::nn::{loss::cross_entropy, ops::layer_norm, ops::sdpa};
use tallow::{DType, Device, Input, Remat, Result, Tensor, TrainOptions, TrainStep, Var, train_step};

/// Sizes of the model and of a batch.
struct Shape {
    layers: usize,
    width: usize,
    heads: usize,
    vocabulary: usize,
    context: usize,
    batch: usize,
}

struct Layer {
    norms: [[Var; 2]; 2],
    qkv: Var,
    out: Var,
    up: Var,
    down: Var,
}

struct Gpt {
    shape: Shape,
    compute: DType,
    tokens: Var,
    positions: Var,
    layers: Vec<Layer>,
    last: [Var; 2],
}

impl Gpt {
    fn new(shape: Shape, compute: DType, device: &Device) -> Result<Gpt> {
        let width = shape.width;
        let matrix = |rows: usize, columns: usize| Var::randn(0f32, 0.02, (rows, columns), device);
        let norm = || -> Result<[Var; 2]> {
            Ok([Var::ones(width, DType::F32, device)?, Var::zeros(width, DType::F32, device)?])
        };
        let layer = |_| -> Result<Layer> {
            Ok(Layer {
                norms: [norm()?, norm()?],
                qkv: matrix(3 * width, width)?,
                out: matrix(width, width)?,
                up: matrix(4 * width, width)?,
                down: matrix(width, 4 * width)?,
            })
        };
        let layers = (0..shape.layers).map(layer).collect::<Result<_>>()?;
        let (tokens, positions) = (matrix(shape.vocabulary, width)?, matrix(shape.context, width)?);
        Ok(Gpt { compute, tokens, positions, layers, last: norm()?, shape })
    }

    fn vars(&self) -> Vec<Var> {
        let of_layer = |layer: &Layer| {
            let matrices = [&layer.qkv, &layer.out, &layer.up, &layer.down].map(Var::clone);
            layer.norms.concat().into_iter().chain(matrices).collect::<Vec<_>>()
        };
        let ends = [&self.tokens, &self.positions, &self.last[0], &self.last[1]].map(Var::clone);
        self.layers.iter().flat_map(of_layer).chain(ends).collect()
    }

    /// A product of `[.., in]` with weights `[out, in]`, in the type of the computation.
    fn linear(&self, x: &Tensor, weights: &Var) -> Result<Tensor> {
        x.broadcast_matmul(&weights.to_dtype(self.compute)?.t()?)
    }

    fn norm(&self, x: &Tensor, [scale, shift]: &[Var; 2]) -> Result<Tensor> {
        layer_norm(x, scale, shift, 1e-5)?.to_dtype(self.compute)
    }

    fn loss(&self, tokens: &Tensor, targets: &Tensor) -> Result<Tensor> {
        let Shape { width, heads, batch, context, vocabulary, .. } = self.shape;
        let mut x = self.tokens.embedding(tokens)?.broadcast_add(&self.positions)?;
        for layer in &self.layers {
            let all = self.linear(&self.norm(&x, &layer.norms[0])?, &layer.qkv)?;
            let all = all.reshape((batch, context, 3, heads, width / heads))?;
            let part = |i: usize| all.narrow(2, i, 1)?.squeeze(2)?.transpose(1, 2);
            let scale = 1.0 / ((width / heads) as f32).sqrt();
            let attended = sdpa(&part(0)?, &part(1)?, &part(2)?, None, true, scale, 1.0)?;
            let attended = attended.transpose(1, 2)?.reshape((batch, context, width))?;
            x = x.add(&self.linear(&attended, &layer.out)?.to_dtype(DType::F32)?)?;
            let hidden = self.linear(&self.norm(&x, &layer.norms[1])?, &layer.up)?.gelu()?;
            x = x.add(&self.linear(&hidden, &layer.down)?.to_dtype(DType::F32)?)?;
        }
        let logits = self.linear(&self.norm(&x, &self.last)?, &self.tokens)?;
        let logits = logits.reshape((batch * context, vocabulary))?.to_dtype(DType::F32)?;
        cross_entropy(&logits, &targets.flatten_all()?)
    }
}

/// Microseconds until a step is submitted to an idle device.
fn host_us(step: &TrainStep, batch: &[&Tensor]) -> Result<f64> {
    let start = Instant::now();
    let result = step.run(batch)?;
    let us = 1e6 * start.elapsed().as_secs_f64();
    result.loss.to_scalar::<f32>()?;
    Ok(us)
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    let number = |name: &str, default: usize| {
        let at = arguments.iter().position(|argument| argument == name);
        at.and_then(|at| arguments.get(at + 1)?.parse().ok()).unwrap_or(default)
    };
    let shape = Shape {
        layers: number("--layers", 2),
        width: number("--width", 64),
        heads: number("--heads", 4),
        vocabulary: number("--vocabulary", 256),
        context: number("--context", 32),
        batch: number("--batch", 2),
    };
    let steps = number("--steps", 10);
    let compute = if arguments.iter().any(|a| a == "--f32") { DType::F32 } else { DType::BF16 };
    let device = Device::vulkan_if_available();
    let (batch, context, vocabulary) = (shape.batch, shape.context, shape.vocabulary);
    let gpt = Gpt::new(shape, compute, &device)?;
    let vars = gpt.vars();
    let count: usize = vars.iter().map(|var| var.elem_count()).sum();
    let mut adam = AdamW::with_groups(ParamGroup::by_rank(vars.clone()), ParamsAdamW::default())?;
    let input = |name: &str| Input::new(name, DType::U32, (batch, context));
    let inputs = [input("tokens"), input("targets")];
    let start = Instant::now();
    let remat = match number("--budget", 0) {
        0 => Remat::Off,
        bytes => Remat::Budget(bytes as u64),
    };
    let options = TrainOptions::default().clip_norm(1.0).remat(remat);
    let step = train_step(&device, &inputs, &vars, &mut adam, options, |b| gpt.loss(&b[0], &b[1]))?;
    if arguments.iter().any(|a| a == "--explain") {
        println!("{}", step.function().explain()?);
    }
    let drawn = Tensor::rand(0f32, vocabulary as f32, (batch, context + 1), &device)?.to_dtype(DType::U32)?;
    let tokens = drawn.narrow(1, 0, context)?.contiguous()?;
    let targets = drawn.narrow(1, 1, context)?.contiguous()?;
    let first = step.run(&[&tokens, &targets])?.loss.to_scalar::<f32>()?;
    println!(
        "{count} parameters on {}, first step after {:.1} s",
        device.name(),
        start.elapsed().as_secs_f64()
    );
    let start = Instant::now();
    let mut last = first;
    for i in 0..steps {
        let result = step.run(&[&tokens, &targets])?;
        if i + 1 == steps {
            last = result.loss.to_scalar()?;
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    let speed = (steps * batch * context) as f64 / seconds;
    println!(
        "loss {first:.4} to {last:.4}, {:.2} ms a step, {speed:.0} tokens/s",
        1e3 * seconds / steps as f64
    );
    let mut host: Vec<f64> = (0..20).map(|_| host_us(&step, &[&tokens, &targets])).collect::<Result<_>>()?;
    host.sort_by(f64::total_cmp);
    println!("{:.0} us of the host a step (median)", host[host.len() / 2]);
    if let Some(memory) = device.memory() {
        println!("{:.2} GB in use, at most {:.2}", memory.in_use as f64 / 1e9, memory.peak as f64 / 1e9);
    }
    Ok(())
}
