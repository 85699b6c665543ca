//! What a training step does besides: accumulation, loss scaling, averages.

#![allow(clippy::unwrap_used)]

use tallow::nn::loss::cross_entropy;
use tallow::nn::optim::{AdamW, Ema, GradAccumulator, LossScale, LossScaler, Optimizer, ParamsSgd, Sgd};
use tallow::{DType, Device, Input, Result, Tensor, TrainOptions, TrainStep, Var, train_step};

const CPU: Device = Device::Cpu;

fn floats(tensor: &Tensor) -> Vec<f32> {
    tensor.flatten_all().unwrap().to_dtype(DType::F32).unwrap().to_vec1().unwrap()
}

fn number(tensor: &Tensor) -> f32 {
    tensor.to_dtype(DType::F32).unwrap().to_scalar().unwrap()
}

/// A network of two layers, computed in `compute`.
struct Net {
    vars: Vec<Var>,
    compute: DType,
}

impl Net {
    fn new(compute: DType) -> Net {
        let init = |rows: usize, columns: usize| {
            let at = |i: usize| ((i * 37 % 101) as f32 / 101.0 - 0.5) * 0.8;
            let values: Vec<f32> = (0..rows * columns).map(at).collect();
            Var::from_vec(values, (rows, columns), &CPU).unwrap()
        };
        let vars = vec![init(16, 4), Var::zeros(16, DType::F32, &CPU).unwrap(), init(3, 16)];
        Net { vars, compute }
    }

    fn loss(&self, x: &Tensor, target: &Tensor) -> Result<Tensor> {
        let cast = |t: &Tensor| t.to_dtype(self.compute);
        let hidden =
            cast(x)?.matmul(&cast(&self.vars[0])?.t()?)?.broadcast_add(&cast(&self.vars[1])?)?.gelu()?;
        let logits = hidden.matmul(&cast(&self.vars[2])?.t()?)?;
        cross_entropy(&logits.to_dtype(DType::F32)?, target)
    }

    fn step(&self, rows: usize, options: TrainOptions) -> (AdamW, TrainStep) {
        let mut adam = AdamW::new_lr(self.vars.clone(), 0.02).unwrap();
        let inputs = [Input::new("x", DType::F32, (rows, 4)), Input::new("target", DType::U32, rows)];
        let loss = |batch: &[Tensor]| self.loss(&batch[0], &batch[1]);
        let step = train_step(&CPU, &inputs, &self.vars, &mut adam, options, loss).unwrap();
        (adam, step)
    }

    fn values(&self) -> Vec<Vec<f32>> {
        self.vars.iter().map(|var| floats(var)).collect()
    }
}

fn batch() -> (Tensor, Tensor) {
    let x: Vec<f32> = (0..24).map(|i| ((i * 29 % 53) as f32 / 26.0) - 1.0).collect();
    (Tensor::from_vec(x, (6, 4), &CPU).unwrap(), Tensor::new([0u32, 2, 1, 1, 0, 2], &CPU).unwrap())
}

/// So many rows of a batch.
fn part(batch: &(Tensor, Tensor), i: usize, rows: usize) -> [Tensor; 2] {
    [&batch.0, &batch.1].map(|t| t.narrow(0, i * rows, rows).unwrap().contiguous().unwrap())
}

fn assert_close(got: &[Vec<f32>], want: &[Vec<f32>], bound: f32) {
    for (got, want) in got.iter().zip(want) {
        assert!(got.iter().zip(want).all(|(a, b)| (a - b).abs() <= bound), "{got:?} is not {want:?}");
    }
}

/// Three batches of two rows are one of six, compiled and step by step.
#[test]
fn accumulated_batches_are_a_large_one() {
    let all = batch();
    let (large, small, eager) = (Net::new(DType::F32), Net::new(DType::F32), Net::new(DType::F32));
    let options = TrainOptions::default().clip_norm(0.3);
    let (_a, one) = large.step(6, options);
    let (_b, parts) = small.step(2, options.accumulate(3));
    let mut adam = AdamW::new_lr(eager.vars.clone(), 0.02).unwrap();
    let mut sum = GradAccumulator::new(&eager.vars, 3).unwrap();
    for _ in 0..10 {
        let want = one.run(&[&all.0, &all.1]).unwrap();
        assert!(want.updated);
        let before = small.values();
        for i in 0..3 {
            let [x, target] = part(&all, i, 2);
            let got = parts.run(&[&x, &target]).unwrap();
            assert_eq!(got.updated, i == 2);
            let loss = eager.loss(&x, &target).unwrap();
            let mean = sum.add(&loss, &loss.backward().unwrap()).unwrap();
            assert!((number(&mean) - number(&got.loss)).abs() < 1e-6);
            if i == 2 {
                assert!((number(&got.loss) - number(&want.loss)).abs() < 1e-5);
                assert!((number(&got.norm.unwrap()) - number(want.norm.as_ref().unwrap())).abs() < 1e-5);
            } else {
                assert_eq!(small.values(), before);
                assert!(got.norm.is_none());
            }
        }
        let mut grads = sum.gradients().unwrap();
        tallow::nn::optim::clip_grad_norm(&mut grads, &eager.vars, 0.3).unwrap();
        adam.step(&grads).unwrap();
        assert_close(&small.values(), &large.values(), 2e-5);
        assert_close(&eager.values(), &large.values(), 2e-5);
    }
}

#[test]
fn options_out_of_range_are_errors() {
    let net = Net::new(DType::F32);
    let mut adam = AdamW::new_lr(net.vars.clone(), 0.02).unwrap();
    let inputs = [Input::new("x", DType::F32, (6, 4)), Input::new("target", DType::U32, 6)];
    for options in [TrainOptions::default().accumulate(0), TrainOptions::default().ema(1.5)] {
        let loss = |batch: &[Tensor]| net.loss(&batch[0], &batch[1]);
        assert!(train_step(&CPU, &inputs, &net.vars, &mut adam, options, loss).is_err());
    }
    assert!(GradAccumulator::new(&[], 2).is_err());
}

/// A variable without a gradient in some passes has the mean all the same.
#[test]
fn missing_gradients_are_zeros() {
    let (a, b) = (Var::new(1f32, &CPU).unwrap(), Var::new(1f32, &CPU).unwrap());
    let mut sum = GradAccumulator::new(&[a.clone(), b.clone()], 2).unwrap();
    for losses in [[&a, &b], [&b, &b], [&a, &b], [&a, &a]] {
        for x in losses {
            let loss = x.sqr().unwrap();
            sum.add(&loss, &loss.backward().unwrap()).unwrap();
        }
        let grads = sum.gradients().unwrap();
        for var in [&a, &b] {
            let want = losses.iter().filter(|x| x.id() == var.id()).count() as f32;
            assert_eq!(grads.get(var).map_or(0.0, number), want);
        }
    }
}

/// Infinite and NaN batches change nothing, to the bit, and are counted; then training goes on.
#[test]
fn infinite_gradients_change_nothing() {
    let (x, target) = batch();
    for clips in [false, true] {
        let net = Net::new(DType::F16);
        let scale = LossScale { interval: 3, ..LossScale::default() };
        let mut options = TrainOptions::default().loss_scale(scale).ema(0.9);
        if clips {
            options = options.clip_norm(1.0);
        }
        let (adam, step) = net.step(6, options);
        let state = || -> Vec<Vec<f32>> {
            let averages = step.ema().unwrap().parameters().iter().map(|var| floats(var));
            net.values()
                .into_iter()
                .chain(adam.state().iter().map(|(_, var)| floats(var)))
                .chain(averages)
                .collect()
        };
        let scaler = step.loss_scaler().unwrap();
        let first = number(&step.run(&[&x, &target]).unwrap().loss);
        assert_eq!((scaler.scale().unwrap(), scaler.skipped_steps().unwrap()), (65536.0, 0));
        for (i, bad) in [f32::INFINITY, f32::NAN, 6e4].into_iter().enumerate() {
            let before = state();
            let broken = (&x * f64::from(bad)).unwrap();
            step.run(&[&broken, &target]).unwrap();
            assert_eq!(state(), before, "{bad}");
            let halved = 65536.0 * 0.5f64.powi(i as i32 + 1);
            assert_eq!((scaler.scale().unwrap(), scaler.skipped_steps().unwrap()), (halved, i as u64 + 1));
        }
        for _ in 0..3 {
            step.run(&[&x, &target]).unwrap();
        }
        assert_eq!((scaler.scale().unwrap(), scaler.skipped_steps().unwrap()), (16384.0, 3));
        for _ in 0..40 {
            step.run(&[&x, &target]).unwrap();
        }
        let last = number(&step.run(&[&x, &target]).unwrap().loss);
        assert!(last < 0.5 * first, "{first} to {last}");
    }
}

/// Gradients below the range of f16 count with a scale, and are lost without one.
#[test]
fn small_gradients_count() {
    let moves = |scale: Option<LossScale>| {
        let w = Var::new([1f32], &CPU).unwrap();
        let mut sgd = Sgd::new(vec![w.clone()], ParamsSgd { lr: 1e8, ..ParamsSgd::default() }).unwrap();
        let options = TrainOptions { loss_scale: scale, ..TrainOptions::default() };
        let inputs = [Input::new("x", DType::F32, 1)];
        let step = train_step(&CPU, &inputs, std::slice::from_ref(&w), &mut sgd, options, |x| {
            // The gradient of the f16 product is the factor 1e-9, which f16 rounds to 0.
            let product = w.to_dtype(DType::F16)?.mul(&x[0].to_dtype(DType::F16)?)?;
            product.to_dtype(DType::F32)?.affine(1e-9, 0.0)?.sum_all()
        })
        .unwrap();
        step.run(&[&Tensor::new([1f32], &CPU).unwrap()]).unwrap();
        1.0 - floats(&w)[0]
    };
    assert_eq!(moves(None), 0.0);
    assert!((moves(Some(LossScale::default())) - 0.1).abs() < 1e-3);
}

/// Loss scaling step by step, and together with accumulation, is that of the compiled step.
#[test]
fn scaled_steps_are_those_taken_one_by_one() {
    let all = batch();
    let (compiled, eager) = (Net::new(DType::F16), Net::new(DType::F16));
    let scale = LossScale { init: 1024.0, interval: 2, ..LossScale::default() };
    let (_adam, step) = compiled.step(2, TrainOptions::default().loss_scale(scale).accumulate(3));
    let mut adam = AdamW::new_lr(eager.vars.clone(), 0.02).unwrap();
    let scaler = LossScaler::new(scale, &CPU).unwrap();
    let mut sum = GradAccumulator::new(&eager.vars, 3).unwrap();
    for at in 0..6 {
        for i in 0..3 {
            let [mut x, target] = part(&all, i, 2);
            if (at, i) == (3, 1) {
                x = (x * f64::INFINITY).unwrap();
            }
            step.run(&[&x, &target]).unwrap();
            let loss = eager.loss(&x, &target).unwrap();
            let mut grads = scaler.scaled(&loss).unwrap().backward().unwrap();
            scaler.unscale(&mut grads, &eager.vars).unwrap();
            sum.add(&loss, &grads).unwrap();
        }
        let mut grads = sum.gradients().unwrap();
        scaler.update(&mut grads, &eager.vars, None, |grads| adam.step(grads)).unwrap();
        let there = step.loss_scaler().unwrap();
        assert_eq!(there.scale().unwrap(), scaler.scale().unwrap());
        assert_eq!(there.skipped_steps().unwrap(), u64::from(at >= 3));
        assert_close(&compiled.values(), &eager.values(), 1e-3);
    }
}

#[test]
fn averages_follow_the_parameters() {
    let w = Var::new([4f32], &CPU).unwrap();
    let mut sgd = Sgd::new(vec![w.clone()], ParamsSgd { lr: 1.0, ..ParamsSgd::default() }).unwrap();
    let inputs = [Input::new("x", DType::F32, 1)];
    let options = TrainOptions::default().ema(0.75);
    let loss = |x: &[Tensor]| x[0].mul(&w)?.sum_all();
    let step = train_step(&CPU, &inputs, std::slice::from_ref(&w), &mut sgd, options, loss).unwrap();
    let (mut p, mut e) = (4.0, 4.0);
    for _ in 0..5 {
        step.run(&[&Tensor::new([0.5f32], &CPU).unwrap()]).unwrap();
        p -= 0.5;
        e = 0.75 * e + 0.25 * p;
        assert_eq!((floats(&w), floats(&step.ema().unwrap().parameters()[0])), (vec![p], vec![e]));
    }
    // Of bf16 parameters, averages are f32.
    let half = Var::ones(2, DType::BF16, &CPU).unwrap();
    let ema = Ema::new(std::slice::from_ref(&half), 0.5).unwrap();
    half.set(&(half.as_tensor() * 2.0).unwrap()).unwrap();
    ema.update().unwrap();
    assert_eq!(ema.parameters()[0].to_vec1::<f32>().unwrap(), [1.5; 2]);
}
