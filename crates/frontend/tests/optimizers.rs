//! Optimizers: single steps by hand, and whole trainings, step by step and compiled.

#![allow(clippy::unwrap_used)]

use tallow::nn::optim::{
    AdamW, Lion, Muon, Optimizer, ParamGroup, ParamsAdamW, ParamsLion, ParamsMuon, ParamsSgd, SGD, Sgd,
    clip_grad_norm,
};
use tallow::{DType, Device, Input, Result, Tensor, TrainOptions, Var, train_step};

fn var(values: &[f32]) -> Var {
    Var::new(values, &Device::Cpu).unwrap()
}

fn close(got: &[f32], want: &[f64]) {
    assert_eq!(got.len(), want.len());
    let near = |(g, w): (&f32, &f64)| (f64::from(*g) - w).abs() <= 2e-6 * w.abs().max(1.0);
    assert!(got.iter().zip(want).all(near), "{got:?} is not {want:?}");
}

/// Three steps with the gradients of `sum(c x^2) / 2`, which are `c x`; `step` does the same with f64.
fn three_steps<O: Optimizer>(mut optimizer: O, x: &Var, mut step: impl FnMut(&mut [f64; 2])) {
    let c = Tensor::new([1f32, 10.0], &Device::Cpu).unwrap();
    let mut want = [3.0, -2.0];
    for _ in 0..3 {
        let loss = (x.sqr().unwrap().mul(&c).unwrap().sum_all().unwrap() * 0.5).unwrap();
        optimizer.backward_step(&loss).unwrap();
        step(&mut want);
        close(&x.to_vec1::<f32>().unwrap(), &want);
    }
}

const SCALES: [f64; 2] = [1.0, 10.0];

#[test]
fn plain_descent() {
    let x = var(&[3.0, -2.0]);
    three_steps(SGD::new(vec![x.clone()], 0.05).unwrap(), &x, |p| {
        (0..2).for_each(|i| p[i] -= 0.05 * SCALES[i] * p[i]);
    });
}

#[test]
fn momentum_is_that_of_pytorch() {
    for (nesterov, dampening) in [(false, 0.0), (false, 0.3), (true, 0.0)] {
        let x = var(&[3.0, -2.0]);
        let params = ParamsSgd { lr: 0.05, momentum: 0.9, dampening, nesterov, weight_decay: 0.1 };
        let mut buffer: Option<[f64; 2]> = None;
        three_steps(Sgd::new(vec![x.clone()], params).unwrap(), &x, |p| {
            let g: [f64; 2] = std::array::from_fn(|i| SCALES[i] * p[i] + 0.1 * p[i]);
            let b: [f64; 2] = match buffer {
                None => g,
                Some(b) => std::array::from_fn(|i| 0.9 * b[i] + (1.0 - dampening) * g[i]),
            };
            buffer = Some(b);
            (0..2).for_each(|i| p[i] -= 0.05 * if nesterov { g[i] + 0.9 * b[i] } else { b[i] });
        });
    }
}

#[test]
fn adamw_is_that_of_the_paper() {
    let x = var(&[3.0, -2.0]);
    let params = ParamsAdamW { lr: 0.1, weight_decay: 0.1, ..ParamsAdamW::default() };
    let (mut m, mut v, mut t) = ([0.0; 2], [0.0; 2], 0);
    three_steps(AdamW::new(vec![x.clone()], params).unwrap(), &x, |p| {
        t += 1;
        for i in 0..2 {
            let g = SCALES[i] * p[i];
            m[i] = 0.9 * m[i] + 0.1 * g;
            v[i] = 0.999 * v[i] + 0.001 * g * g;
            let (m, v) = (m[i] / (1.0 - 0.9f64.powi(t)), v[i] / (1.0 - 0.999f64.powi(t)));
            p[i] -= 0.1 * (0.1 * p[i] + m / (v.sqrt() + 1e-8));
        }
    });
}

#[test]
fn lion_takes_signs() {
    let x = var(&[3.0, -2.0]);
    let params = ParamsLion { lr: 0.1, weight_decay: 0.1, ..ParamsLion::default() };
    let mut m = [0.0f64; 2];
    three_steps(Lion::new(vec![x.clone()], params).unwrap(), &x, |p| {
        for i in 0..2 {
            let g = SCALES[i] * p[i];
            let sign = (0.9 * m[i] + 0.1 * g).signum();
            m[i] = 0.99 * m[i] + 0.01 * g;
            p[i] -= 0.1 * (sign + 0.1 * p[i]);
        }
    });
}

/// The step of a matrix has singular values near 1, whatever the gradient's are.
#[test]
fn muon_steps_are_nearly_orthogonal() {
    for dims in [(3, 5), (5, 3)] {
        let x = Var::zeros(dims, DType::F32, &Device::Cpu).unwrap();
        let g = Tensor::randn(0f32, 1.0, dims, &Device::Cpu).unwrap();
        let params = ParamsMuon { lr: 1.0, compute: DType::F32, ns_steps: 10, ..ParamsMuon::default() };
        let mut muon = Muon::new(vec![x.clone()], params).unwrap();
        muon.backward_step(&x.mul(&g).unwrap().sum_all().unwrap()).unwrap();
        let step = if dims.0 > dims.1 { x.t().unwrap() } else { x.as_tensor().clone() };
        let scale = (dims.0 as f32 / dims.1 as f32).max(1.0);
        let square = step.matmul(&step.t().unwrap()).unwrap().to_vec2::<f32>().unwrap();
        for (i, row) in square.iter().enumerate() {
            for (j, x) in row.iter().enumerate() {
                let x = x / scale;
                // The quintic leaves singular values from 0.7 to 1.2.
                assert!(if i == j { (0.4..1.5).contains(&x) } else { x.abs() < 0.4 }, "{square:?}");
            }
        }
    }
    assert!(Muon::new(vec![var(&[1.0])], ParamsMuon::default()).is_err());
}

#[test]
fn groups_have_rates_of_their_own() {
    let (a, b) = (var(&[1.0]), var(&[1.0]));
    let groups = vec![
        ParamGroup::new(vec![a.clone()]).lr_factor(0.5),
        ParamGroup::new(vec![b.clone()]).weight_decay(1.0),
    ];
    let mut sgd = Sgd::with_groups(groups, ParamsSgd { lr: 0.1, ..ParamsSgd::default() }).unwrap();
    let loss = a.add(&b).unwrap().sum_all().unwrap();
    sgd.backward_step(&loss).unwrap();
    close(&[a.to_vec1::<f32>().unwrap()[0], b.to_vec1::<f32>().unwrap()[0]], &[0.95, 0.8]);
    sgd.set_learning_rate(0.0);
    sgd.backward_step(&a.add(&b).unwrap().sum_all().unwrap()).unwrap();
    close(&[a.to_vec1::<f32>().unwrap()[0], b.to_vec1::<f32>().unwrap()[0]], &[0.95, 0.8]);
}

#[test]
fn clipping_scales_all_gradients() {
    let (a, b) = (var(&[3.0]), var(&[4.0]));
    let loss = a.sqr().unwrap().add(&b.sqr().unwrap()).unwrap().sum_all().unwrap();
    let loss = (loss * 0.5).unwrap();
    let vars = [a.clone(), b.clone()];
    for (limit, factor) in [(1.0, 0.2), (10.0, 1.0)] {
        let mut grads = loss.backward().unwrap();
        let norm = clip_grad_norm(&mut grads, &vars, limit).unwrap();
        close(&[norm.to_scalar::<f32>().unwrap()], &[5.0]);
        let got = |v: &Var| grads.get(v).unwrap().to_vec1::<f32>().unwrap()[0];
        close(&[got(&a), got(&b)], &[3.0 * factor, 4.0 * factor]);
    }
}

/// A network of two layers, its parameters and its loss.
struct Net {
    vars: Vec<Var>,
}

impl Net {
    fn new(device: &Device) -> Result<Net> {
        let init = |rows: usize, columns: usize| {
            let at = |i: usize| ((i * 37 % 101) as f32 / 101.0 - 0.5) * 0.8;
            Var::from_vec((0..rows * columns).map(at).collect::<Vec<_>>(), (rows, columns), device)
        };
        Ok(Net { vars: vec![init(16, 4)?, Var::zeros(16, DType::F32, device)?, init(3, 16)?] })
    }

    fn loss(&self, x: &Tensor, target: &Tensor) -> Result<Tensor> {
        let hidden = x.matmul(&self.vars[0].t()?)?.broadcast_add(&self.vars[1])?.gelu()?;
        tallow::nn::loss::cross_entropy(&hidden.matmul(&self.vars[2].t()?)?, target)
    }
}

fn batch(device: &Device) -> (Tensor, Tensor) {
    let x: Vec<f32> = (0..24).map(|i| ((i * 29 % 53) as f32 / 26.0) - 1.0).collect();
    let x = Tensor::from_vec(x, (6, 4), device).unwrap();
    (x, Tensor::new([0u32, 2, 1, 1, 0, 2], device).unwrap())
}

/// Compiled steps take the parameters where those that are taken one by one do.
#[test]
fn compiled_steps_are_those_taken_one_by_one() {
    let device = Device::Cpu;
    let (x, target) = batch(&device);
    let (one, other) = (Net::new(&device).unwrap(), Net::new(&device).unwrap());
    let params = ParamsAdamW { lr: 0.02, ..ParamsAdamW::default() };
    let mut stepwise = AdamW::with_groups(ParamGroup::by_rank(one.vars.clone()), params.clone()).unwrap();
    let mut compiled = AdamW::with_groups(ParamGroup::by_rank(other.vars.clone()), params).unwrap();
    let inputs = [Input::new("x", DType::F32, (6, 4)), Input::new("target", DType::U32, 6)];
    let options = TrainOptions::default().clip_norm(0.7);
    let step = train_step(&device, &inputs, &other.vars, &mut compiled, options, |batch| {
        other.loss(&batch[0], &batch[1])
    })
    .unwrap();
    let mut losses = vec![];
    for i in 0..30 {
        if i == 10 {
            stepwise.set_learning_rate(0.05);
            compiled.set_learning_rate(0.05);
        }
        let loss = one.loss(&x, &target).unwrap();
        let mut grads = loss.backward().unwrap();
        let norm = clip_grad_norm(&mut grads, &one.vars, 0.7).unwrap();
        stepwise.step(&grads).unwrap();
        let result = step.run(&[&x, &target]).unwrap();
        let scalar = |t: &Tensor| t.to_scalar::<f32>().unwrap();
        assert!((scalar(&loss) - scalar(&result.loss)).abs() < 1e-5);
        assert!((scalar(&norm) - scalar(result.norm.as_ref().unwrap())).abs() < 1e-5);
        losses.push(scalar(&loss));
    }
    assert!(losses[29] < 0.2 * losses[0], "{losses:?}");
}

#[test]
fn losses_that_cannot_be_trained_are_refused() {
    let device = Device::Cpu;
    let (w, other) = (var(&[1.0]), var(&[1.0]));
    let mut sgd = SGD::new(vec![w.clone()], 0.1).unwrap();
    let inputs = [Input::new("x", DType::F32, 1)];
    let options = TrainOptions::default();
    let mut refused = |loss: &dyn Fn(&[Tensor]) -> Result<Tensor>| {
        train_step(&device, &inputs, std::slice::from_ref(&w), &mut sgd, options, loss)
            .unwrap_err()
            .to_string()
    };
    assert!(refused(&|x| x[0].mul(&w)).contains("unexpected rank"));
    assert!(refused(&|x| x[0].mul(&other)?.sum_all()).contains("depends on none"));
    assert!(refused(&|x| x[0].gt(w.as_tensor())?.sum_all()).contains("float"));
}
