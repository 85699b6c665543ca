//! Random tensors: sequence, range and distribution; draws of compiled functions.
#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use half::bf16;
use tallow::{
    DType, Device, Error, Function, Input, RANDOM_DRAW, RANDOM_KEY, Result, State, Symbol, Tensor, compile,
    nn,
};

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

/// Tensors as one list of numbers each, of floats exactly.
fn values(tensors: &[Tensor]) -> Vec<Vec<f64>> {
    let one = |t: &Tensor| t.to_dtype(DType::F64)?.flatten_all()?.to_vec1::<f64>();
    tensors.iter().map(|t| one(t).unwrap()).collect()
}

/// Draws of several kinds, types and shapes.
fn draws(device: &Device) -> Result<Vec<Tensor>> {
    let even = Tensor::rand(-1f32, 3.0, (3, 7), device)?;
    let empty = Tensor::rand(0f32, 1.0, (0, 4), device)?;
    let normal = Tensor::randn(bf16::ZERO, bf16::ONE, 1001, device)?;
    let one = Tensor::randn(0f64, 2.0, (), device)?;
    let ones = even.affine(0.25, 0.25)?.bernoulli()?;
    Ok(vec![even, empty, normal, one, ones])
}

fn without_inputs(build: impl FnOnce() -> Result<Vec<Tensor>>) -> Result<Function> {
    compile(&CPU, &[], |_| build())
}

#[test]
fn functions_draw_in_each_run_what_eager_code_draws() -> Result<()> {
    let _turn = turn();
    let function = without_inputs(|| draws(&CPU))?;
    assert_eq!(function.draws(), 5);
    // Functions of one structure have one graph, and so the same kernels.
    assert_eq!(without_inputs(|| draws(&CPU))?.graph(), function.graph());
    CPU.set_seed(5)?;
    let expected = [values(&draws(&CPU)?), values(&draws(&CPU)?)];
    assert_ne!(expected[0], expected[1]);
    for _ in 0..2 {
        CPU.set_seed(5)?;
        let runs = [values(&function.run(&[])?), values(&function.run(&[])?)];
        assert_eq!(runs, expected);
    }
    // The seed is that of the run.
    CPU.set_seed(6)?;
    assert_ne!(values(&function.run(&[])?), expected[0]);
    Ok(())
}

#[test]
fn the_number_of_a_draw_wraps_around() -> Result<()> {
    let _turn = turn();
    let function = without_inputs(|| draws(&CPU))?;
    for before in [u32::MAX - 5, u32::MAX - 3, u32::MAX] {
        let start = || {
            CPU.set_seed(1 << 40 | 3).unwrap();
            CPU.next_draws(before);
        };
        start();
        let expected = [values(&draws(&CPU)?), values(&draws(&CPU)?)];
        start();
        assert_eq!([values(&function.run(&[])?), values(&function.run(&[])?)], expected, "{before}");
    }
    Ok(())
}

/// Extents of the draws and other values of the run may be symbols.
#[test]
fn functions_with_symbols_draw() -> Result<()> {
    let _turn = turn();
    let (rows, skip) = (Symbol::new("rows", 9), Symbol::new("skip", 3));
    let x = Input::new("x", DType::F32, (&rows, 5));
    let function = compile(&CPU, &[x], |x| {
        let noise = Tensor::rand(0f32, 1.0, (2, 5), &CPU)?;
        let shown = Tensor::ones((4, 5), DType::F32, &CPU)?.narrow(0, &skip, 1)?;
        Ok(vec![noise.broadcast_add(&shown)?, nn::dropout(&x[0], 0.5)?, x[0].rand_like(0.0, 1.0)?])
    })?;
    for (n, at) in [(9, 0), (1, 3), (4, 1), (0, 2)] {
        let x = Tensor::ones((n, 5), DType::F32, &CPU)?;
        CPU.set_seed(21)?;
        let got = values(&function.run_at(&[("skip", at)], &[&x])?);
        CPU.set_seed(21)?;
        let noise = Tensor::rand(0f32, 1.0, (2, 5), &CPU)?.affine(1.0, 1.0)?;
        assert_eq!(got, values(&[noise, nn::dropout(&x, 0.5)?, x.rand_like(0.0, 1.0)?]), "{n} rows");
    }
    // Outside of functions such a shape has no number of elements, and nothing is drawn.
    let next = CPU.next_draws(0);
    assert!(Tensor::rand(0f32, 1.0, (&rows, 5), &CPU).is_err());
    assert_eq!(CPU.next_draws(0), next);
    let huge = Symbol::new("huge", 1 << 30);
    let x = Input::new("x", DType::F32, (&huge,));
    assert!(compile(&CPU, &[x], |x| Ok(vec![x[0].rand_like(0.0, 1.0)?])).is_err());
    Ok(())
}

/// Dropout in a function that a state makes a training step.
#[test]
fn dropout_has_another_mask_in_each_run() -> Result<()> {
    let _turn = turn();
    let sum = State::zeros(200, DType::F32, &CPU)?;
    let x = Input::new("x", DType::F32, 200);
    let function = compile(&CPU, &[x], |x| {
        let y = nn::Dropout::new(0.5).forward(&x[0], true)?;
        sum.set(&sum.read()?.add(&y)?)?;
        Ok(vec![y])
    })?;
    let x = Tensor::ones(200, DType::F32, &CPU)?;
    CPU.set_seed(8)?;
    let runs = [values(&function.run(&[&x])?).remove(0), values(&function.run(&[&x])?).remove(0)];
    CPU.set_seed(8)?;
    let eager = [values(&[nn::dropout(&x, 0.5)?]).remove(0), values(&[nn::dropout(&x, 0.5)?]).remove(0)];
    assert_eq!(runs, eager);
    assert_ne!(runs[0], runs[1]);
    let both: Vec<f64> = runs[0].iter().zip(&runs[1]).map(|(a, b)| a + b).collect();
    assert_eq!(values(&[sum.read()?]), [both]);
    Ok(())
}

/// Runs at once take different draws, and none is left out.
#[test]
fn runs_at_once_share_the_sequence() -> Result<()> {
    let _turn = turn();
    let function =
        without_inputs(|| Ok(vec![Tensor::rand(0f32, 1.0, 3, &CPU)?, Tensor::rand(0f32, 1.0, 3, &CPU)?]))?;
    let run = || values(&function.run(&[]).unwrap());
    CPU.set_seed(14)?;
    let mut expected: Vec<_> = (0..32).map(|_| run()).collect();
    CPU.set_seed(14)?;
    let mut got: Vec<_> = std::thread::scope(|scope| {
        let thread = |_| scope.spawn(|| (0..8).map(|_| run()).collect::<Vec<_>>());
        let threads: Vec<_> = (0..4).map(thread).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    for all in [&mut expected, &mut got] {
        all.sort_by(|a, b| a.partial_cmp(b).unwrap());
    }
    assert_eq!(got, expected);
    Ok(())
}

/// Draws count that nothing depends on, as outside of functions; functions without draws have no symbols of them.
#[test]
fn a_run_advances_the_sequence_by_the_draws_of_the_function() -> Result<()> {
    let _turn = turn();
    let x = [Input::new("x", DType::F32, 3)];
    let none = compile(&CPU, &x, |x| Ok(vec![(&x[0] * 2.0)?]))?;
    let unread = compile(&CPU, &x, |x| {
        Tensor::rand(0f32, 1.0, 3, &CPU)?;
        Ok(vec![x[0].clone()])
    })?;
    for function in [&none, &unread] {
        assert_eq!(function.graph().symbols().count(), 0);
    }
    let number = || CPU.next_draws(0)[1];
    CPU.set_seed(4)?;
    let x = Tensor::zeros(3, DType::F32, &CPU)?;
    none.run(&[&x])?;
    assert_eq!((none.draws(), number()), (0, (RANDOM_DRAW, 0)));
    unread.run(&[&x])?;
    assert_eq!((unread.draws(), number()), (1, (RANDOM_DRAW, 1)));
    // What is refused draws nothing.
    assert!(unread.run(&[]).is_err());
    assert!(unread.executable()?.run(&[], &[]).is_err());
    assert_eq!(number(), (RANDOM_DRAW, 1));
    Ok(())
}

/// The executable of a function draws; one of its graph is given what is drawn.
#[test]
fn executables_draw() -> Result<()> {
    let _turn = turn();
    let x = [Input::new("x", DType::F32, 12)];
    let build = |x: &Tensor| Ok(vec![nn::dropout(x, 0.3)?, x.rand_like(0.0, 1.0)?]);
    let function = compile(&CPU, &x, |x| build(&x[0]))?;
    let x = Tensor::ones(12, DType::F32, &CPU)?;
    let bytes: Vec<u8> = [1f32; 12].iter().flat_map(|x| x.to_le_bytes()).collect();
    CPU.set_seed(30)?;
    let eager: Vec<_> = (0..5).map(|_| values(&build(&x).unwrap())).collect();
    let numbers = |bytes: &[u8]| -> Vec<f64> {
        bytes.chunks(4).map(|x| f64::from(f32::from_le_bytes(x.try_into().unwrap()))).collect()
    };
    let all = |outputs: tallow::Outputs| outputs.iter().map(|o| numbers(&o.bytes)).collect::<Vec<_>>();
    CPU.set_seed(30)?;
    let executable = function.executable()?;
    assert_eq!(all(executable.run(&[], &[("x", &bytes)])?), eager[0]);
    assert_eq!(all(executable.run_async(&[], &[("x", &bytes)])?.wait()?), eager[1]);
    let (mut by_name, mut by_number) = (vec![], vec![]);
    let mut write = |_: &str, to: &mut [u8]| {
        to.copy_from_slice(&bytes);
        Ok(())
    };
    executable.run_with(&[], &mut write, &mut |output| by_name.push(numbers(output.bytes)))?;
    assert_eq!(by_name, eager[2]);
    let mut write = |_: usize, to: &mut [u8]| {
        to.copy_from_slice(&bytes);
        Ok(())
    };
    let types: [(DType, &[usize]); 1] = [(DType::F32, &[12])];
    function.run_with(&types, &mut write, &mut |output| by_number.push(numbers(output.bytes)))?;
    assert_eq!(by_number, eager[3]);
    let other = CPU.compile(function.graph(), &HashMap::new(), &HashMap::new())?;
    let given = CPU.next_draws(function.draws());
    assert_eq!(all(other.run(&given, &[("x", &bytes)])?), eager[4]);
    assert_eq!(all(other.run(&given, &[("x", &bytes)])?), eager[4]);
    assert!(matches!(other.run(&[], &[("x", &bytes)]), Err(Error::Missing { what: "symbol", .. })));
    // Nobody else gives them where the function draws.
    let unknown = |result: Result<()>| assert!(matches!(result, Err(Error::Unknown { what: "symbol", .. })));
    unknown(executable.run(&given, &[("x", &bytes)]).map(drop));
    unknown(function.run_at(&[(RANDOM_DRAW, 3)], &[&x]).map(drop));
    unknown(function.run_at(&[(RANDOM_KEY, 3)], &[&x]).map(drop));
    Ok(())
}

/// A draw belongs to the innermost function; another that reads it is an error, as reading it before a run is.
#[test]
fn draws_belong_to_one_function() -> Result<()> {
    let _turn = turn();
    let mut escaped = None;
    let outer = without_inputs(|| {
        let outside = Tensor::rand(0f32, 1.0, 4, &CPU)?;
        let inner = without_inputs(|| {
            Ok(vec![Tensor::rand(0f32, 1.0, 4, &CPU)?, Tensor::rand(0f32, 1.0, 4, &CPU)?])
        })?;
        assert_eq!(inner.draws(), 2);
        // It runs while the other one is compiled.
        assert_ne!(values(&inner.run(&[])?), values(&inner.run(&[])?));
        let no_value =
            |result: Result<()>| assert!(matches!(result, Err(Error::NoValue { .. })), "{result:?}");
        no_value(without_inputs(|| Ok(vec![outside.affine(2.0, 0.0)?])).map(drop));
        no_value(without_inputs(|| Ok(vec![outside.add(&Tensor::rand(0f32, 1.0, 4, &CPU)?)?])).map(drop));
        no_value(outside.to_vec1::<f32>().map(drop));
        no_value(State::new(&outside).map(drop));
        no_value(inner.run(&[]).and_then(|_| tallow::eval(&[&outside])));
        escaped = Some(outside.clone());
        Ok(vec![outside, Tensor::rand(0f32, 1.0, 4, &CPU)?])
    })?;
    assert_eq!(outer.draws(), 2);
    assert!(matches!(escaped.unwrap().to_vec1::<f32>(), Err(Error::NoValue { .. })));
    CPU.set_seed(2)?;
    let run = values(&outer.run(&[])?);
    CPU.set_seed(2)?;
    let draw = || Tensor::rand(0f32, 1.0, 4, &CPU).unwrap();
    assert_eq!(run, values(&[draw(), draw()]));
    assert_ne!(run[0], run[1]);
    Ok(())
}

#[test]
fn names_of_draws_are_reserved() {
    let _turn = turn();
    for name in [RANDOM_KEY, RANDOM_DRAW] {
        for max in [8, u32::MAX] {
            for draws in [false, true] {
                let n = Symbol::new(name, max);
                let x = Input::new("x", DType::F32, (&n, 1));
                let function = compile(&CPU, &[x], |x| {
                    let y = if draws {
                        Tensor::rand(0f32, 1.0, 1, &CPU)?
                    } else {
                        Tensor::zeros(1, DType::F32, &CPU)?
                    };
                    Ok(vec![x[0].clone(), y])
                });
                assert!(function.is_err(), "{name} <= {max}, draws: {draws}");
            }
        }
        // Also where no input has it.
        let offset = Symbol::new(name, 3);
        let function = without_inputs(|| Ok(vec![Tensor::ones(4, DType::F32, &CPU)?.narrow(0, &offset, 1)?]));
        assert!(matches!(function, Err(Error::InvalidArgument { .. })), "{function:?}");
    }
}
