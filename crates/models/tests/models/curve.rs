//! The loss curve of storyteller-nano's training against PyTorch's, from the same weights and batches.
//!
//! `scripts/curve_torch.py` took the same steps on a CPU and on a GPU. Both round differently, and a training amplifies
//! that: their distance says what equal curves are.

use std::collections::HashMap;
use std::path::Path;

use serde::Deserialize;
use tallow::nn::optim::{AdamW, Optimizer, ParamGroup, ParamsAdamW};
use tallow::{DType, Device, Input, Tensor, TrainOptions, Var, train_step};
use tallow_models::train::{Corpus, Net, NetConfig, Preset, Windows};

/// What the script writes.
#[derive(Deserialize)]
struct Reference {
    steps: usize,
    warmup: usize,
    batch: usize,
    context: usize,
    lr: f64,
    cpu: Vec<f64>,
    cuda: Vec<f64>,
}

/// Steps of software that stands for a device, which takes a second or two for one.
const FEW_STEPS: usize = 4;

fn fixture<T: serde::de::DeserializeOwned>(name: &str) -> T {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name);
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// SplitMix64, as `Windows` draws.
fn mixed(counter: u64) -> u64 {
    let x = counter.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Weights of matrix `number`: the sum of four uniform numbers of 16 bits, less its mean, with this deviation.
fn normal(number: u64, count: usize, deviation: f64) -> Vec<f32> {
    let scale = deviation / ((65536f64.powi(2) - 1.0) / 3.0).sqrt();
    let weight = |i: usize| {
        let bits = mixed(mixed(number) ^ i as u64);
        let sum: u64 = [0, 16, 32, 48].map(|shift| (bits >> shift) & 0xffff).iter().sum();
        ((sum as f64 - 131_070.0) * scale) as f32
    };
    (0..count).map(weight).collect()
}

/// The model with the script's weights.
fn net(config: &NetConfig, device: &Device) -> Net {
    let drawn = Net::new(config, 1, &Device::Cpu).unwrap();
    let mut number = 0;
    let mut tensors = HashMap::new();
    for (name, var) in drawn.vars() {
        let shape = var.dims().to_vec();
        let values = if shape.len() == 2 {
            let residual = ["o_proj.weight", "down_proj.weight"].iter().any(|end| name.ends_with(end));
            let deviation = if residual { 0.02 / (2.0 * config.n_layer as f64).sqrt() } else { 0.02 };
            number += 1;
            normal(number - 1, var.elem_count(), deviation)
        } else {
            vec![1.0; var.elem_count()]
        };
        tensors.insert(name.to_string(), Tensor::from_vec(values, shape, &Device::Cpu).unwrap());
    }
    Net::from_tensors(config, &tensors, device).unwrap()
}

/// As models/training/train.py has it: the cosine begins with the warm-up.
fn learning_rate(reference: &Reference, step: usize) -> f64 {
    let warm = ((step + 1) as f64 / reference.warmup as f64).min(1.0);
    let progress = step as f64 / reference.steps as f64;
    reference.lr * warm * (0.03 + 0.97 * 0.5 * (1.0 + (std::f64::consts::PI * progress).cos()))
}

/// The losses of the first `steps` steps.
fn losses(reference: &Reference, steps: usize, device: &Device) -> Vec<f64> {
    let net = net(&Preset::Nano.net(), device);
    let vars: Vec<Var> = net.vars().map(|(_, var)| var.clone()).collect();
    let params = ParamsAdamW { lr: reference.lr, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1 };
    let mut adam = AdamW::with_groups(ParamGroup::by_rank(vars.clone()), params).unwrap();
    let shape = (reference.batch, reference.context);
    let inputs = ["tokens", "targets"].map(|name| Input::new(name, DType::U32, shape));
    let clipped = TrainOptions::default().clip_norm(1.0);
    let loss = |batch: &[Tensor]| net.loss(&batch[0], &batch[1], 0.0);
    let step = train_step(device, &inputs, &vars, &mut adam, clipped, loss).unwrap();
    let corpus = Corpus { tokens: fixture("story.tokens.json") };
    let windows = Windows::new(corpus, reference.context, reference.batch, 1).unwrap();
    let take = |number: usize| {
        adam.set_learning_rate(learning_rate(reference, number));
        let batch = windows.batch(number).map(|tokens| Tensor::from_vec(tokens, shape, device).unwrap());
        f64::from(step.run(&[&batch[0], &batch[1]]).unwrap().loss.to_scalar::<f32>().unwrap())
    };
    (0..steps).map(take).collect()
}

#[test]
fn the_loss_curve_is_that_of_pytorch() {
    let device = match Device::best_vulkan() {
        Ok(device) => device,
        Err(why) if std::env::var("REQUIRE_VULKAN").is_ok_and(|v| v == "1") => panic!("{why}"),
        // The interpreter would take minutes.
        Err(_) => return,
    };
    let reference: Reference = fixture("nano_curve.json");
    let is_full = std::env::var("TALLOW_FULL").is_ok_and(|v| v == "1");
    let is_software = device.caps().is_some_and(|caps| caps.is_software());
    let steps = if is_software && !is_full { FEW_STEPS } else { reference.steps };
    let (mut gap, mut worst) = (0f64, 0f64);
    for (step, found) in losses(&reference, steps, &device).into_iter().enumerate() {
        let (cpu, cuda) = (reference.cpu[step], reference.cuda[step]);
        // What curves once differ by does not vanish. A mean of 128 losses that f32 holds to 2^-24 is as exact as 2^-20.
        gap = gap.max((cpu - cuda).abs()).max(cpu * 2f64.powi(-20));
        let distance = (found - cpu).abs().min((found - cuda).abs());
        worst = worst.max(distance / gap);
        assert!(distance <= 3.0 * gap, "step {step}: {found}, PyTorch has {cpu} and {cuda}, gap {gap:e}");
    }
    println!("{steps} steps, at most {worst:.2} of PyTorch's own gap, which is {gap:.2e} at the end");
}
