//! Random tensors: sequence, range and distribution.
#![allow(clippy::unwrap_used)]

use std::sync::{Mutex, MutexGuard, PoisonError};

use half::bf16;
use tallow::{DType, Device, Result, Tensor};

const CPU: Device = Device::Cpu;

/// The sequence is one for the process, so that tests take turns.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn a_seed_repeats_its_draws() -> Result<()> {
    let _turn = turn();
    let draws = || -> Result<[Vec<f32>; 2]> {
        CPU.set_seed(7)?;
        let draw = || Tensor::rand(0f32, 1.0, 100, &CPU)?.to_vec1::<f32>();
        Ok([draw()?, draw()?])
    };
    let [first, second] = draws()?;
    assert_ne!(first, second);
    assert_eq!(draws()?, [first.clone(), second]);
    CPU.set_seed(8)?;
    assert_ne!(Tensor::rand(0f32, 1.0, 100, &CPU)?.to_vec1::<f32>()?, first);
    Ok(())
}

#[test]
fn distributions_are_what_they_say() -> Result<()> {
    let _turn = turn();
    CPU.set_seed(3)?;
    let n = 100_000usize;
    let u = Tensor::rand(-2f32, 4.0, n, &CPU)?;
    let all = u.to_vec1::<f32>()?;
    assert!(all.iter().all(|x| (-2.0..4.0).contains(x)));
    // Five standard errors: of a mean sigma/sqrt(n), of a variance sigma^2 sqrt(2/n) (1.2/n for even ones).
    let mean = |v: &[f32]| v.iter().map(|x| f64::from(*x)).sum::<f64>() / v.len() as f64;
    let var = |v: &[f32], m: f64| v.iter().map(|x| (f64::from(*x) - m).powi(2)).sum::<f64>() / v.len() as f64;
    let m = mean(&all);
    assert!((m - 1.0).abs() < 5.0 * (3f64.sqrt() / (n as f64).sqrt()), "{m}");
    assert!((var(&all, m) - 3.0).abs() < 5.0 * 3.0 * (0.8 / n as f64).sqrt());
    let normal = Tensor::randn(1f32, 2.0, (100, n / 100), &CPU)?.flatten_all()?.to_vec1::<f32>()?;
    let m = mean(&normal);
    assert!((m - 1.0).abs() < 5.0 * 2.0 / (n as f64).sqrt(), "{m}");
    assert!((var(&normal, m) - 4.0).abs() < 5.0 * 4.0 * (2.0 / n as f64).sqrt());
    // Beyond three deviations lie 0.27 %.
    let far = normal.iter().filter(|x| (**x - 1.0).abs() > 6.0).count() as f64 / n as f64;
    assert!((far - 0.0027).abs() < 0.001, "{far}");
    let ones = Tensor::full(0.3f32, n, &CPU)?.bernoulli()?.to_dtype(DType::F32)?.to_vec1::<f32>()?;
    assert!((mean(&ones) - 0.3).abs() < 5.0 * (0.21 / n as f64).sqrt());
    Ok(())
}

#[test]
fn types_and_shapes() -> Result<()> {
    let _turn = turn();
    let b = Tensor::rand(bf16::ZERO, bf16::ONE, (2, 3), &CPU)?;
    assert_eq!((b.dtype(), b.dims()), (DType::BF16, [2, 3].as_slice()));
    assert_eq!(b.randn_like(0.0, 1.0)?.dtype(), DType::BF16);
    assert_eq!(Tensor::randn(0f64, 1.0, (0, 4), &CPU)?.dims(), [0, 4]);
    assert!(Tensor::rand(0u32, 5, 3, &CPU).is_err());
    // A value is drawn once, however often it is read.
    let x = Tensor::rand(0f32, 1.0, 5, &CPU)?;
    assert_eq!(x.to_vec1::<f32>()?, x.to_vec1::<f32>()?);
    assert_eq!(x.sub(&x)?.to_vec1::<f32>()?, [0.0; 5]);
    Ok(())
}
