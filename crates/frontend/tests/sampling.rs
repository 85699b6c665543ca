//! Random choices and dropout: what is drawn, how often, and that a seed repeats it.
#![allow(clippy::unwrap_used)]

use std::sync::{Mutex, MutexGuard, PoisonError};

use tallow::nn::{self, ModuleT, sampling};
use tallow::{D, DType, Device, Result, Tensor};

const CPU: Device = Device::Cpu;

/// The sequence is one for the process, so that tests take turns.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Pearson's statistic of draws against probabilities: chi-squared with one degree of freedom less than there are
/// probabilities above 0.
fn chi_squared(draws: &[u32], probabilities: &[f64]) -> f64 {
    let n = draws.len() as f64;
    let term = |(i, p): (usize, &f64)| {
        let seen = draws.iter().filter(|d| **d == i as u32).count() as f64;
        if *p == 0.0 {
            assert_eq!(seen, 0.0, "drew {i}, which has no weight");
            return 0.0;
        }
        (seen - n * p).powi(2) / (n * p)
    };
    probabilities.iter().enumerate().map(term).sum()
}

const WEIGHTS: [f32; 6] = [0.0, 1.0, 2.0, 3.0, 10.0, 0.0];

fn fits(draws: &[u32]) {
    let sum = f64::from(WEIGHTS.iter().sum::<f32>());
    let found = chi_squared(draws, &WEIGHTS.map(|w| f64::from(w) / sum));
    // Four weights above 0: three degrees of freedom, mean 3, variance 6. Six deviations above the mean lies one
    // seed in 2000, and the seed is fixed.
    let bound = 3.0 + 6.0 * 6f64.sqrt();
    assert!(found < bound, "{found} is beyond {bound}");
}

#[test]
fn choices_have_their_probabilities() -> Result<()> {
    let _turn = turn();
    CPU.set_seed(5)?;
    let n = 40_000;
    let weights = Tensor::new(WEIGHTS, &CPU)?;
    fits(&sampling::multinomial(&weights, n)?.to_vec1::<u32>()?);
    // log 0 is negative infinity, which is never the largest.
    let logits = weights.log()?.unsqueeze(0)?.broadcast_as((n, 6))?;
    fits(&sampling::gumbel_softmax(&logits, 1.0, D::Minus1)?.to_vec1::<u32>()?);
    // At temperature 1/2 probabilities are squared.
    let root = logits.affine(0.5, 0.0)?;
    fits(&sampling::gumbel_softmax(&root, 0.5, 1)?.to_vec1::<u32>()?);
    Ok(())
}

#[test]
fn seeds_and_edges() -> Result<()> {
    let _turn = turn();
    CPU.set_seed(1 << 40)?;
    assert_eq!(CPU.get_current_seed()?, 1 << 40);
    let weights = Tensor::new([[1f32, 1.0, 1.0, 1.0], [0.0, 0.0, 5.0, 0.0]], &CPU)?;
    let draw = || sampling::multinomial(&weights, 50)?.to_vec2::<u32>();
    let (first, second) = (draw()?, draw()?);
    assert_ne!(first, second);
    assert_eq!(first[1], [2; 50]);
    CPU.set_seed(1 << 40)?;
    assert_eq!(draw()?, first);
    // Nothing is random without temperature.
    assert_eq!(sampling::gumbel_softmax(&weights, 0.0, 1)?.to_vec1::<u32>()?, [0, 2]);
    assert_eq!(sampling::multinomial(&weights, 0)?.dims(), [2, 0]);
    assert!(sampling::multinomial(&Tensor::zeros((2, 0), DType::F32, &CPU)?, 1).is_err());
    assert!(sampling::multinomial(&weights.to_dtype(DType::U32)?, 1).is_err());
    assert!(sampling::multinomial(&weights.sum_all()?, 1).is_err());
    Ok(())
}

#[test]
fn dropout_keeps_the_mean() -> Result<()> {
    let _turn = turn();
    CPU.set_seed(9)?;
    let n = 100_000usize;
    let x = Tensor::full(3f32, n, &CPU)?;
    let y = nn::ops::dropout(&x, 0.25)?.to_vec1::<f32>()?;
    assert!(y.iter().all(|v| *v == 0.0 || *v == 4.0));
    let dropped = y.iter().filter(|v| **v == 0.0).count() as f64 / n as f64;
    // Five standard errors.
    assert!((dropped - 0.25).abs() < 5.0 * (0.25 * 0.75 / n as f64).sqrt(), "{dropped}");
    let layer = nn::Dropout::new(0.5);
    assert_eq!(layer.forward_t(&x, false)?.to_vec1::<f32>()?, x.to_vec1::<f32>()?);
    assert!(layer.forward_t(&x, true)?.to_vec1::<f32>()?.contains(&6.0));
    // What is dropped is 0 even where it was no number.
    let nan = Tensor::full(f32::NAN, 64, &CPU)?;
    assert!(nn::dropout(&nan, 0.5)?.to_vec1::<f32>()?.contains(&0.0));
    assert_eq!(nn::dropout(&x.to_dtype(DType::F16)?, 0.1)?.dtype(), DType::F16);
    for bad in [1.0, -0.1, f32::NAN] {
        assert!(nn::dropout(&x, bad).is_err());
    }
    assert!(nn::dropout(&x.to_dtype(DType::U8)?, 0.5).is_err());
    Ok(())
}
