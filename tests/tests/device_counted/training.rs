//! Compiled training steps: the parameters they leave, and what a step does besides.

use tallow::nn::optim::{AdamW, LossScale, Optimizer, ParamGroup, ParamsAdamW, round_stochastically};
use tallow::nn::{loss::cross_entropy, ops::layer_norm, ops::sdpa};
use tallow::{DType, Device, Input, Result, StepResult, Tensor, TrainOptions, TrainStep, Var, train_step};
use tallow_tests::device::own_devices as devices;

use crate::lazy_resources::{ALONE, figures};

const WIDTH: usize = 32;
const HEADS: usize = 4;
const TOKENS: usize = 12;
const VOCABULARY: usize = 48;
const STEPS: usize = 27;

/// A layer of a transformer between an embedding and its transpose.
struct Net {
    vars: Vec<Var>,
}

impl Net {
    fn new(device: &Device) -> Result<Net> {
        let mut seed = 0;
        let mut matrix = |rows: usize, columns: usize| {
            seed += 1;
            let at = |i: usize| (((i * 37 + seed * 11) % 101) as f32 / 101.0 - 0.5) * 0.4;
            Var::from_vec((0..rows * columns).map(at).collect::<Vec<_>>(), (rows, columns), device)
        };
        let mut vars = vec![matrix(VOCABULARY, WIDTH)?, matrix(3 * WIDTH, WIDTH)?, matrix(WIDTH, WIDTH)?];
        vars.extend([matrix(2 * WIDTH, WIDTH)?, matrix(WIDTH, 2 * WIDTH)?]);
        vars.extend([Var::ones(WIDTH, DType::F32, device)?, Var::zeros(WIDTH, DType::F32, device)?]);
        Ok(Net { vars })
    }

    /// Of tokens `[batch, time]`, each of which is to tell the one of `targets`.
    fn loss(&self, tokens: &Tensor, targets: &Tensor) -> Result<Tensor> {
        let [embedding, qkv, out, up, down, scale, shift] = self.vars.as_slice() else { unreachable!() };
        let (batch, time) = tokens.dims2()?;
        let norm = |x: &Tensor| layer_norm(x, scale, shift, 1e-5);
        let x = embedding.embedding(tokens)?;
        let heads = norm(&x)?.broadcast_matmul(&qkv.t()?)?.reshape((batch, time, 3, HEADS, WIDTH / HEADS))?;
        let part = |i: usize| heads.narrow(2, i, 1)?.squeeze(2)?.transpose(1, 2)?.contiguous();
        let scores = 1.0 / ((WIDTH / HEADS) as f32).sqrt();
        let attended = sdpa(&part(0)?, &part(1)?, &part(2)?, None, true, scores, 1.0)?;
        let attended = attended.transpose(1, 2)?.reshape((batch, time, WIDTH))?;
        let x = (x + attended.broadcast_matmul(&out.t()?)?)?;
        let hidden = norm(&x)?.broadcast_matmul(&up.t()?)?.silu()?;
        let x = (x + hidden.broadcast_matmul(&down.t()?)?)?;
        let logits = norm(&x)?.broadcast_matmul(&embedding.t()?)?;
        cross_entropy(&logits.reshape((batch * time, VOCABULARY))?, &targets.flatten_all()?)
    }

    fn step(&self, device: &Device, options: TrainOptions) -> Result<(AdamW, TrainStep)> {
        let params = ParamsAdamW { lr: 0.01, ..ParamsAdamW::default() };
        let mut adam = AdamW::with_groups(ParamGroup::by_rank(self.vars.clone()), params)?;
        let input = |name: &str| Input::new(name, DType::U32, (2, TOKENS));
        let step = train_step(device, &[input("x"), input("y")], &self.vars, &mut adam, options, |batch| {
            self.loss(&batch[0], &batch[1])
        })?;
        Ok((adam, step))
    }
}

fn batch(device: &Device, seed: usize) -> Result<[Tensor; 2]> {
    let tokens: Vec<u32> = (0..2 * (TOKENS + 1)).map(|i| ((i * i + 7 * seed) % VOCABULARY) as u32).collect();
    let all = Tensor::from_vec(tokens, (2, TOKENS + 1), &Device::Cpu)?;
    let part = |from| all.narrow(1, from, TOKENS)?.contiguous()?.to_device(device);
    Ok([part(0)?, part(1)?])
}

/// Steps on the device are those of the interpreter, and after the first nothing is compiled, recorded or allocated.
#[test]
fn a_step_is_recorded_once() {
    check(TrainOptions::default().clip_norm(1.0));
}

/// So are those whose gradients are accumulated and unscaled, and whose parameters are averaged.
#[test]
fn passes_and_updates_are_recorded_once() {
    let scale = LossScale { init: 256.0, interval: 2, ..LossScale::default() };
    let options = TrainOptions::default().accumulate(3).loss_scale(scale).ema(0.9);
    check(options);
    check(options.accumulate(1));
}

fn check(options: TrainOptions) {
    let _alone = ALONE.lock();
    let reference = Net::new(&Device::Cpu).unwrap();
    let (_adam, steps) = reference.step(&Device::Cpu, options).unwrap();
    let batches: Vec<_> = (0..3).map(|i| batch(&Device::Cpu, i).unwrap()).collect();
    let of = |result: StepResult| result.loss.to_scalar::<f32>().unwrap();
    let expected: Vec<f32> = (0..STEPS).map(|i| of(steps.run(&batches[i % 3].each_ref()).unwrap())).collect();
    let averages = |step: &TrainStep| -> Vec<f32> {
        let averages = step.ema().map_or(&[][..], |ema| ema.parameters());
        averages.iter().flat_map(|var| var.flatten_all().unwrap().to_vec1::<f32>().unwrap()).collect()
    };
    for device in devices() {
        let Device::Vulkan(vulkan) = &device else { panic!("{device} is no Vulkan device") };
        let net = Net::new(&device).unwrap();
        let (mut adam, step) = net.step(&device, options).unwrap();
        let batches: Vec<_> = (0..3).map(|i| batch(&device, i).unwrap()).collect();
        let mut losses = vec![];
        let (mut before, mut at_rest) = (None, None);
        for i in 0..STEPS {
            // Each function has run twice, so what moves between runs is known.
            if i == 2 * options.accumulate {
                before = Some(vulkan.work_done());
            }
            // Each command buffer of the ring has had its turn.
            if i == 21 {
                at_rest = Some(figures(&device));
            }
            losses.push(of(step.run(&batches[i % 3].each_ref()).unwrap()));
        }
        assert_eq!(vulkan.work_done(), before.unwrap());
        assert_eq!(figures(&device), at_rest.unwrap());
        for (got, want) in losses.iter().zip(&expected) {
            assert!((got - want).abs() < 2e-4 * want.abs(), "{losses:?} are not {expected:?}");
        }
        assert!(losses[STEPS - 3] < losses[0], "{losses:?}");
        let scaler = |step: &TrainStep| {
            step.loss_scaler().map(|scaler| (scaler.scale().unwrap(), scaler.skipped_steps().unwrap()))
        };
        assert_eq!(scaler(&step), scaler(&steps));
        let near = |(a, b): (&f32, &f32)| (a - b).abs() < 2e-3;
        assert!(averages(&step).iter().zip(&averages(&steps)).all(near));
        adam.set_learning_rate(0.0);
        let parameters = |net: &Net| net.vars[0].flatten_all().unwrap().to_vec1::<f32>().unwrap();
        let there = parameters(&net);
        for _ in 0..options.accumulate {
            step.run(&batches[0].each_ref()).unwrap();
        }
        assert_eq!(parameters(&net), there);
        if std::env::var_os("EXPLAIN").is_some() {
            println!("{}", step.function().explain().unwrap());
            step.update_function().iter().for_each(|update| println!("{}", update.explain().unwrap()));
        }
    }
}

/// What is infinite on the device changes no variable, to the bit.
#[test]
fn infinite_gradients_are_skipped_on_the_device() {
    let _alone = ALONE.lock();
    for device in devices() {
        let w = Var::new([0.3f32, -2.0, 1e-6, 7.0], &device).unwrap();
        let mut adam = AdamW::new_lr(vec![w.clone()], 0.1).unwrap();
        let options = TrainOptions::default().loss_scale(LossScale::default()).ema(0.5);
        let inputs = [Input::new("x", DType::F32, 4)];
        let loss = |x: &[Tensor]| w.to_dtype(DType::F16)?.mul(&x[0].to_dtype(DType::F16)?)?.sum_all();
        let step = train_step(&device, &inputs, std::slice::from_ref(&w), &mut adam, options, loss).unwrap();
        let state = || -> Vec<Vec<f32>> {
            let moments = adam.state().into_iter().map(|(_, var)| var);
            let averages = step.ema().unwrap().parameters().iter().cloned();
            let all = moments.chain(averages).chain([w.clone()]);
            all.map(|var| var.flatten_all().unwrap().to_vec1().unwrap()).collect()
        };
        let run = |x: f32| step.run(&[&Tensor::full(x, 4, &device).unwrap()]).unwrap();
        // The gradient of an f16 loss is the scale, which f16 does not have: 65536.
        let before = state();
        run(1.0);
        assert_eq!(state(), before);
        for (i, x) in [f32::NAN, f32::INFINITY, 0.5].into_iter().enumerate() {
            let before = state();
            run(x);
            assert_eq!(state() == before, i < 2, "{x}");
        }
        let scaler = step.loss_scaler().unwrap();
        assert_eq!((scaler.scale().unwrap(), scaler.skipped_steps().unwrap()), (8192.0, 3));
    }
}

/// Rounding by chance gives the two nearest numbers, and on average the number itself.
#[test]
fn rounding_by_chance_has_no_bias_on_the_device() {
    let _alone = ALONE.lock();
    for device in devices() {
        let many = Tensor::full(1.002f32, 20_000, &device).unwrap();
        let rounded =
            round_stochastically(&many).unwrap().to_dtype(DType::F32).unwrap().to_vec1::<f32>().unwrap();
        assert!(rounded.iter().all(|r| [1.0, 1.0078125].contains(r)));
        let mean = rounded.iter().map(|r| f64::from(*r)).sum::<f64>() / 20_000.0;
        // Five standard deviations: 0.0078 * sqrt(0.256 * 0.744 / 20000) = 2.4e-5 each.
        assert!((mean - 1.002).abs() < 1.2e-4, "{mean}");
    }
}
