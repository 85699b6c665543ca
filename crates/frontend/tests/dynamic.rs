//! Extents that change: what becomes a symbol. The programs of `tests/src/changing.rs` say how many plans loops need.

use std::sync::{Mutex, PoisonError};

use tallow::{Device, Dynamic, Result, Tensor};

/// Compilations of the CPU are counted for the process.
static ALONE: Mutex<()> = Mutex::new(());

/// Runs a program with symbols and with numbers, and returns how many programs were compiled with symbols; the results must
/// be equal.
fn compiles(program: impl Fn(&Device) -> Result<Vec<f32>>) -> Result<u64> {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let device = Device::Cpu;
    let before = device.lazy_compilations();
    let with_symbols = program(&device)?;
    let count = device.lazy_compilations() - before;
    device.set_dynamic(Dynamic::Never);
    let with_numbers = program(&device);
    device.set_dynamic(Dynamic::Auto);
    assert_eq!(with_symbols, with_numbers?);
    Ok(count)
}

fn numbers(device: &Device, shape: &[usize], seed: usize) -> Result<Tensor> {
    let count: usize = shape.iter().product();
    let data: Vec<f32> = (0..count).map(|i| ((i * 37 + seed * 101) % 64) as f32 / 32.0 - 1.0).collect();
    Tensor::new(data.as_slice(), device)?.reshape(shape)
}

/// A guess that the first two instances suggest, and later ones refute, is never a wrong result.
#[test]
fn a_wrong_guess_is_compiled_again() -> Result<()> {
    let count = compiles(|device| {
        let mut sums = vec![];
        // The second length is the first plus 2, plus 2, and then anything.
        for (a, b) in [(3, 5), (4, 6), (5, 9), (9, 5), (6, 8), (12, 31)] {
            let (x, y) = (numbers(device, &[a], b)?, numbers(device, &[b], a)?);
            sums.push((x.sum_all()? * y.sqr()?.sum_all()?)?.to_scalar()?);
        }
        Ok(sums)
    })?;
    assert_eq!(count, 3);
    Ok(())
}

/// Two instances do not tell that one length is twice the other and 3; with three, no guess is needed.
#[test]
fn a_third_instance_tells_more() -> Result<()> {
    let count = compiles(|device| {
        let mut sums = vec![];
        for n in [4, 5, 7, 8, 9, 12] {
            let (x, y) = (numbers(device, &[n], n)?, numbers(device, &[2 * n + 3], n)?);
            let twice = Tensor::cat(&[&x, &x, &numbers(device, &[3], 1)?], 0)?;
            sums.push(((twice + y)?.sum_all()? * x.sum_all()?)?.to_scalar()?);
        }
        Ok(sums)
    })?;
    assert_eq!(count, 3);
    Ok(())
}

/// Where only a constant changes, extents that have a plan of numbers have another one.
#[test]
fn other_constants_do_not_make_symbols() -> Result<()> {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let value = |n: usize, rate: f64| numbers(&Device::Cpu, &[n, 6], 1)?.affine(rate, 0.25)?.exp();
    for n in [16, 5] {
        value(n, 0.5)?.to_vec2::<f32>()?;
    }
    assert!(!value(16, 0.125)?.explain()?.contains("symbol n0"));
    Ok(())
}

/// Results have their own extents, not the largest ones.
#[test]
fn results_have_actual_extents() -> Result<()> {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for n in [3, 5, 11, 300, 4] {
        let x = numbers(&Device::Cpu, &[n, 2], n)?;
        let y = (x.t()? + 1.0)?.contiguous()?;
        let rows = y.to_vec2::<f32>()?;
        assert_eq!((rows.len(), rows[0].len()), (2, n));
        let host = x.to_vec2::<f32>()?;
        assert_eq!(rows[1], host.iter().map(|row| row[1] + 1.0).collect::<Vec<_>>());
    }
    Ok(())
}

#[test]
fn explain_says_what_became_a_symbol() -> Result<()> {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let plan = |n: usize| (numbers(&Device::Cpu, &[n, 3], 1)? * 3.0)?.explain();
    assert!(!plan(5)?.contains("symbol"));
    let general = plan(7)?;
    assert!(general.starts_with("extents are symbols since instance 2 of this structure\n"), "{general}");
    assert!(general.contains("in 2..=256"), "{general}");
    Ok(())
}
