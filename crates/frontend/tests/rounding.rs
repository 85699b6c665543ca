//! Rounding to bf16 by chance.

#![allow(clippy::unwrap_used)]

use tallow::nn::ParamsAdamW;
use tallow::nn::optim::{AdamW, Optimizer, round_stochastically};
use tallow::{DType, Device, Tensor, TrainOptions, Var, train_step};

const CPU: Device = Device::Cpu;

fn floats(tensor: &Tensor) -> Vec<f32> {
    tensor.flatten_all().unwrap().to_dtype(DType::F32).unwrap().to_vec1().unwrap()
}

/// Results are the two nearest bf16 numbers, and their mean is the number that was rounded.
#[test]
fn rounding_by_chance_has_no_bias() {
    CPU.set_seed(7).unwrap();
    let count = 20_000;
    for x in [1.0f32, 1.001, 1.0078, 1.9999, -1.003, 3.3, -2.0e-7, 7.7e20, 255.3, 1.0 + 1.0 / 256.0] {
        let many = Tensor::full(x, count, &CPU).unwrap();
        let rounded = floats(&round_stochastically(&many).unwrap());
        let low = half::bf16::from_bits((x.to_bits() >> 16) as u16).to_f32();
        let high = half::bf16::from_bits((x.to_bits() >> 16) as u16 + 1).to_f32();
        assert!(rounded.iter().all(|r| *r == low || *r == high), "{x}: {low} or {high}");
        let mean = rounded.iter().map(|r| f64::from(*r)).sum::<f64>() / count as f64;
        // Five standard deviations of the mean.
        let (gap, share) = (f64::from(high - low), f64::from((x - low) / (high - low)));
        let bound = 5.0 * gap.abs() * (share * (1.0 - share) / count as f64).sqrt();
        assert!((mean - f64::from(x)).abs() <= bound, "{x}: {mean}");
    }
    let odd = Tensor::new([0f32, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 3.4e38], &CPU).unwrap();
    let got = floats(&round_stochastically(&odd).unwrap());
    assert_eq!(got[..4], [0.0, 0.0, f32::INFINITY, f32::NEG_INFINITY]);
    assert!(got[4].is_nan() && got[5] > 3.38e38);
    assert!(round_stochastically(&Tensor::new(1f64, &CPU).unwrap()).is_err());
}

/// Steps below half of the last bit of bf16 parameters are lost by rounding to nearest, not by chance; each run of a
/// compiled step draws anew.
#[test]
fn small_steps_of_bf16_parameters_count() {
    let train = |by_chance: bool, compiled: bool| {
        let w = Var::ones(512, DType::BF16, &CPU).unwrap();
        let params = ParamsAdamW { lr: 2e-4, weight_decay: 0.0, ..Default::default() };
        let mut adam = AdamW::new(vec![w.clone()], params).unwrap().stochastic_rounding(by_chance);
        if compiled {
            let (vars, options) = ([w.clone()], TrainOptions::default());
            let step = train_step(&CPU, &[], &vars, &mut adam, options, |_| w.sum_all()).unwrap();
            (0..100).for_each(|_| drop(step.run(&[]).unwrap()));
        } else {
            (0..100).for_each(|_| adam.backward_step(&w.sum_all().unwrap()).unwrap());
        }
        floats(&w).iter().sum::<f32>() / 512.0
    };
    for compiled in [false, true] {
        assert_eq!(train(false, compiled), 1.0);
        let mean = train(true, compiled);
        // 100 steps of 2e-4; the deviation of the mean is below 2^-8 * sqrt(100 * 0.05 / 512) = 4e-4.
        assert!((mean - 0.98).abs() < 2e-3, "{mean}");
    }
}
