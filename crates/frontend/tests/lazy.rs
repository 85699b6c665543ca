//! What laziness promises: nothing is computed twice, nothing grows, any depth is fine.

use tallow::{DType, Device, Error, Input, Result, Symbol, Tensor, compile, eval, nn};

const CPU: Device = Device::Cpu;

fn is_lazy(t: &Tensor) -> bool {
    format!("{t:?}").contains("lazy")
}

#[test]
fn forcing_keeps_the_value() -> Result<()> {
    let x = Tensor::new([1f32, 2.0], &CPU)?;
    let y = x.exp()?;
    assert!(is_lazy(&y));
    let clone = y.clone();
    let first = y.to_vec1::<f32>()?;
    assert!(!is_lazy(&y) && !is_lazy(&clone));
    assert_eq!(clone.to_vec1::<f32>()?, first);
    assert!(y.explain()?.contains("nothing runs"));
    Ok(())
}

#[test]
fn eval_computes_several_at_once_and_shares() -> Result<()> {
    let x = Tensor::new([1f32, 2.0], &CPU)?;
    let shared = x.sqr()?;
    let (a, b) = ((&shared + 1.0)?, (&shared * 3.0)?);
    eval(&[&a, &b, &a, &x])?;
    assert!(!is_lazy(&a) && !is_lazy(&b));
    assert_eq!((a.to_vec1::<f32>()?, b.to_vec1::<f32>()?), (vec![2.0, 5.0], vec![3.0, 12.0]));
    Ok(())
}

/// After forcing, the expression behind a tensor is gone: what it read is free again.
#[test]
fn a_forced_loop_does_not_grow() -> Result<()> {
    let mut x = Tensor::new([0f32; 4], &CPU)?;
    for step in 0..300 {
        x = (&x + 1.0)?;
        assert_eq!(x.explain()?.matches(" = add ").count(), 1, "step {step}");
        x.to_vec1::<f32>()?;
    }
    assert_eq!(x.to_vec1::<f32>()?, [300.0; 4]);
    Ok(())
}

#[test]
fn common_subexpressions_are_one_node() -> Result<()> {
    let x = Tensor::new([1f32, 2.0], &CPU)?;
    let twice = (x.exp()? + x.exp()?)?;
    assert_eq!(twice.explain()?.matches(" = exp ").count(), 1);
    Ok(())
}

/// Built, computed and freed without recursion.
#[test]
fn a_hundred_thousand_operations_deep() -> Result<()> {
    let deep = |start: &Tensor| (0..100_000).try_fold(start.clone(), |x, _| x.affine(1.0, 1.0));
    let x = Tensor::new([0f64], &CPU)?;
    assert_eq!(deep(&x)?.to_vec1::<f64>()?, [100_000.0]);
    drop(deep(&x)?);
    // Also where two tensors hold the same chain.
    let y = deep(&x)?;
    let (a, b) = (y.exp()?, y.neg()?);
    drop((y, a, b));
    Ok(())
}

/// Many results, some of them steps of others, across the borders of pieces.
#[test]
fn large_expressions_are_computed_in_segments() -> Result<()> {
    let x = Tensor::new([1f64, 2.0], &CPU)?;
    let mut steps = vec![x];
    for i in 1..5000 {
        // Reads a step that is up to 3000 back.
        let next = steps[i - 1].broadcast_add(&steps[i / 3])?.affine(0.5, 1.0)?;
        steps.push(next);
    }
    let mut expected = vec![[1f64, 2.0]];
    for i in 1..5000 {
        expected.push([0, 1].map(|e| (expected[i - 1][e] + expected[i / 3][e]) * 0.5 + 1.0));
    }
    let plan = steps[4999].explain()?;
    assert!(plan.contains("pieces, of which the first is"), "{plan}");
    eval(&[&steps[4999], &steps[7], &steps[2500]])?;
    for i in [4999, 7, 2500, 4998] {
        assert_eq!(steps[i].to_vec1::<f64>()?, expected[i], "step {i}");
    }
    Ok(())
}

/// Shared a hundred times over: a walk that did not remember would need 2^100 steps.
#[test]
fn doubling_is_not_exponential() -> Result<()> {
    let x = (0..100).try_fold(Tensor::new(1f64, &CPU)?, |x, _| &x + &x)?;
    assert_eq!(x.to_scalar::<f64>()?, 2f64.powi(100));
    Ok(())
}

#[test]
fn tensors_cross_threads() -> Result<()> {
    let x = Tensor::new([1f32, 4.0], &CPU)?.sqrt()?;
    let results: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| x.to_vec1::<f32>())).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    for result in results {
        assert_eq!(result?, [1.0, 2.0]);
    }
    Ok(())
}

#[test]
fn compiled_functions_take_symbolic_shapes() -> Result<()> {
    let (rows, cols) = (Symbol::new("rows", 8), Symbol::new("cols", 8));
    let ten = Tensor::full(10f32, (), &CPU)?;
    let inputs = [Input::new("x", DType::F32, (&rows, &cols)), Input::new("y", DType::F32, [&cols])];
    let f = compile(&CPU, &inputs, |args| {
        assert_eq!(args[0].sym_dims().len(), 2);
        let scaled = args[0].broadcast_mul(&ten)?.broadcast_add(&args[1])?;
        Ok(vec![scaled.sum(1)?, scaled.t()?])
    })?;
    for (r, c) in [(1, 1), (2, 3), (8, 5)] {
        let x = Tensor::arange(0f32, (r * c) as f32, &CPU)?.reshape((r, c))?;
        let y = Tensor::ones(c, DType::F32, &CPU)?;
        let out = f.run(&[&x, &y])?;
        let expected = (&x * 10.0)?.broadcast_add(&y)?;
        assert_eq!(out[0].to_vec1::<f32>()?, expected.sum(1)?.to_vec1::<f32>()?);
        assert_eq!(out[1].to_vec2::<f32>()?, expected.t()?.to_vec2::<f32>()?);
    }
    let x = Tensor::zeros((2, 3), DType::F32, &CPU)?;
    let short = Tensor::zeros(2, DType::F32, &CPU)?;
    assert!(matches!(f.run(&[&x, &short]), Err(Error::TypeMismatch { .. })));
    assert!(matches!(f.run(&[&x]), Err(Error::InvalidArgument { .. })));
    let wide = Tensor::zeros((9, 3), DType::F32, &CPU)?;
    let three = Tensor::zeros(3, DType::F32, &CPU)?;
    assert!(matches!(f.run(&[&wide, &three]), Err(Error::SymbolRange { .. })));
    Ok(())
}

#[test]
fn an_input_has_no_value_while_building() {
    let input = [Input::new("x", DType::F32, 2)];
    let error =
        compile(&CPU, &input, |args| Ok(vec![Tensor::new(args[0].to_vec1::<f32>()?, &CPU)?])).unwrap_err();
    assert!(matches!(error, Error::NoValue { .. }), "{error}");
}

#[test]
fn compositions_have_their_values() -> Result<()> {
    let x = Tensor::new([[1f64, 2.0, 3.0], [1000.0, 1000.0, -1000.0]], &CPU)?;
    let soft = nn::softmax(&x, 1)?.to_vec2::<f64>()?;
    let sum = 1f64.exp() + 2f64.exp() + 3f64.exp();
    assert!((soft[0][2] - 3f64.exp() / sum).abs() < 1e-12);
    assert_eq!(soft[1], [0.5, 0.5, 0.0]);
    let log = nn::log_softmax(&x, 1)?.to_vec2::<f64>()?;
    assert!((log[0][0] - (1.0 - sum.ln())).abs() < 1e-12);
    assert!((log[1][2] + 2000.0 + 2f64.ln()).abs() < 1e-9);
    let (alpha, beta) = (Tensor::new([1f64, 2.0, 1.0], &CPU)?, Tensor::new([0f64, 0.0, 5.0], &CPU)?);
    let layer = nn::ops::layer_norm(&x, &alpha, &beta, 0.0)?.to_vec2::<f64>()?;
    let unit = 1.5f64.sqrt();
    for (got, expected) in layer[0].iter().zip([-unit, 0.0, unit + 5.0]) {
        assert!((got - expected).abs() < 1e-12, "{got} is not {expected}");
    }
    let rms = nn::ops::rms_norm(&x, &alpha, 1.0)?.to_vec2::<f64>()?;
    assert!((rms[0][1] - 4.0 / (14.0f64 / 3.0 + 1.0).sqrt()).abs() < 1e-12);
    // 16-bit floats are computed in f32: 300^2 is beyond f16.
    let half = Tensor::new([[300f32, 300.0]], &CPU)?.to_dtype(DType::F16)?;
    let norm = nn::ops::rms_norm(&half, &Tensor::ones(2, DType::F16, &CPU)?, 0.0)?;
    assert_eq!(norm.to_dtype(DType::F32)?.to_vec2::<f32>()?, [[1.0, 1.0]]);
    Ok(())
}
