//! Compiled functions as custom ops: strides, element types, symbols, many operands and results, in place.

use candle_core::{DType, Tensor};
use tallow::{Input, Symbol};
use tallow_candle::{CompiledOp, compile};

use crate::support::{DTYPES, Numbers, devices, distance, values, views};

/// Sums and products of f32 in another order differ by a few roundings of 2^-24 each.
const FEW_ROUNDINGS: f64 = 1e-6;

#[test]
fn every_view_of_every_type_is_read_as_candle_reads_it() {
    for device in devices() {
        for ty in DTYPES {
            // Types without an order of their own in Candle's CPU ops are only moved.
            let op = compile(|[x]: &[tallow::Tensor; 1]| x.flatten_all()).named("flatten").on(&device);
            for (name, view) in views(ty) {
                let y = view.apply_op1_no_bwd(&op).unwrap();
                assert_eq!((values(&y), y.dtype()), (values(&view), ty), "{name} of {ty:?} on {device}");
            }
        }
    }
}

#[test]
fn two_and_three_operands() {
    let mut numbers = Numbers(1);
    let (x, y, z) = (numbers.tensor(&[5, 7]), numbers.tensor(&[7, 5]), numbers.tensor(&[5, 1]));
    for device in devices() {
        let two = compile(|[x, y]| x.silu()?.mul(y)).named("swiglu").on(&device);
        let expected = (x.silu().unwrap() * y.t().unwrap()).unwrap();
        assert!(distance(&x.apply_op2(&y.t().unwrap(), two).unwrap(), &expected) < FEW_ROUNDINGS);

        let three = compile(|[x, y, z]| x.matmul(y)?.broadcast_add(z)).on(&device);
        let expected = x.matmul(&y).unwrap().broadcast_add(&z).unwrap();
        let got = x.apply_op3(&y, &z, three).unwrap();
        assert!(distance(&got, &expected) < FEW_ROUNDINGS);
    }
}

#[test]
fn more_operands_and_results_through_call() {
    let mut numbers = Numbers(2);
    let all: Vec<Tensor> = (0..5).map(|_| numbers.tensor(&[4, 3])).collect();
    for device in devices() {
        let op = compile(|[a, b, c, d, e]: &[tallow::Tensor; 5]| {
            let sum = a.add(b)?.add(c)?.add(d)?.add(e)?;
            Ok([sum.clone(), sum.argmax(1)?, a.clone()])
        });
        let op = op.on(&device);
        // The same tensor twice is no deadlock.
        let got = op.call(&[&all[0], &all[1], &all[2], &all[3], &all[3]]).unwrap();
        let sum = (((&all[0] + &all[1]).unwrap() + &all[2]).unwrap() + (&all[3] * 2.0).unwrap()).unwrap();
        assert_eq!(got.len(), 3);
        assert!(distance(&got[0], &sum) < FEW_ROUNDINGS);
        assert_eq!(values(&got[1]), values(&sum.argmax(1).unwrap()));
        assert_eq!(values(&got[2]), values(&all[0]));
        let error = all[0].apply_op1(compile(|[x]| Ok([x.clone(), x.neg()?])).on(&device)).unwrap_err();
        assert!(error.to_string().contains("use `call`"), "{error}");
    }
}

#[test]
fn in_place_writes_through_strides_and_nothing_else() {
    for device in devices() {
        let cpu = &candle_core::Device::Cpu;
        let whole = || Tensor::arange(0f32, 24.0, cpu).unwrap().reshape((4, 6)).unwrap();
        let part = |t: &Tensor| t.narrow(1, 1, 3).unwrap().t().unwrap();
        let one = compile(|[x]| x.affine(2.0, 1.0)).named("one").on(&device);
        let (x, y) = (whole(), whole());
        part(&x).inplace_op1(&one).unwrap();
        let mut expected = whole().to_vec2::<f32>().unwrap();
        expected.iter_mut().for_each(|row| row[1..4].iter_mut().for_each(|v| *v = *v * 2.0 + 1.0));
        assert_eq!(x.to_vec2::<f32>().unwrap(), expected, "{device}");

        let two = compile(|[x, y]| x.add(y)).named("two").on(&device);
        let x = whole();
        x.inplace_op2(&y, &two).unwrap();
        assert_eq!(values(&x), values(&(whole() * 2.0).unwrap()));
        let three = compile(|[x, y, z]| x.mul(y)?.sub(z)).named("three").on(&device);
        x.inplace_op3(&y, &whole(), &three).unwrap();
        assert_eq!(values(&x), values(&((whole().sqr().unwrap() * 2.0).unwrap() - whole()).unwrap()));

        let repeated = x.narrow(0, 0, 1).unwrap().broadcast_as((3, 6)).unwrap();
        let before = values(&x);
        assert!(repeated.inplace_op1(&one).is_err() && values(&x) == before);

        // A result of another shape or type leaves the tensor as it was.
        let before = values(&x);
        for wrong in [compile(|[x]| x.sum(0)), compile(|[x]| x.to_dtype(tallow::DType::F16))] {
            assert!(x.inplace_op1(&wrong.on(&device)).is_err());
            assert_eq!(values(&x), before);
        }
    }
}

#[test]
fn symbols_take_the_extents_of_the_operands() {
    let mut numbers = Numbers(3);
    for device in devices() {
        let (rows, width) = (Symbol::new("rows", 40), Symbol::new("width", 9));
        let op: CompiledOp<2> = compile(|[x, w]| x.matmul(&w.t()?)?.relu());
        let op = op
            .on(&device)
            .with_inputs([
                Input::new("x", tallow::DType::F32, (&rows, &width)),
                Input::new("w", tallow::DType::F32, (5, &width)),
            ])
            .unwrap();
        assert_eq!(op.compiled_graphs(), 1);
        for (n, k) in [(1, 1), (3, 9), (40, 4), (17, 7)] {
            let (x, w) = (numbers.tensor(&[k, n]).t().unwrap(), numbers.tensor(&[5, k]));
            let got = x.apply_op2_no_bwd(&w, &op).unwrap();
            let expected = x.matmul(&w.t().unwrap()).unwrap().relu().unwrap();
            assert!(distance(&got, &expected) < FEW_ROUNDINGS, "{n} {k} {device}");
        }
        assert_eq!(op.compiled_graphs(), 1);
        let (x, w) = (numbers.tensor(&[41, 4]), numbers.tensor(&[5, 4]));
        let error = x.apply_op2_no_bwd(&w, &op).unwrap_err().to_string();
        assert!(error.contains("rows") && error.contains("40"), "{error}");
        let error = x.apply_op2_no_bwd(&numbers.tensor(&[5, 3]), &op).unwrap_err().to_string();
        assert!(error.contains("\"w\""), "{error}");
    }
}

/// As many elements as declared in other extents are no operand.
#[test]
fn extents_that_are_expressions_are_checked() {
    for device in devices() {
        let n = tallow::Dim::from(Symbol::new("n", 8));
        let input = |name, dims: [tallow::Dim; 2]| Input::new(name, tallow::DType::F32, dims);
        let op: CompiledOp<2> = compile(|[x, y]| x.matmul(y));
        let inputs = [input("x", [n.clone(), 1.into()]), input("y", [1.into(), &n * &2.into()])];
        let op = op.on(&device).with_inputs(inputs).unwrap();
        let x = Numbers(1).tensor(&[3, 1]);
        assert_eq!(x.apply_op2_no_bwd(&Numbers(2).tensor(&[1, 6]), &op).unwrap().dims(), [3, 6]);
        for dims in [[1, 5], [1, 12], [6, 1]] {
            assert!(x.apply_op2_no_bwd(&Numbers(2).tensor(&dims), &op).is_err(), "{dims:?}");
        }
        let square: CompiledOp<2> = compile(|[x, y]| x.broadcast_add(&y.sum_all()?));
        let inputs = [input("x", [n.clone(), 1.into()]), input("y", [&n * &2.into(), &n * &3.into()])];
        let op = square.on(&device).with_inputs(inputs).unwrap();
        assert!(x.apply_op2_no_bwd(&Numbers(2).tensor(&[6, 9]), &op).is_ok());
        let error = x.apply_op2_no_bwd(&Numbers(2).tensor(&[9, 6]), &op).unwrap_err().to_string();
        assert!(error.contains("\"y\""), "{error}");
    }
}

#[test]
fn a_form_is_compiled_once_and_constants_are_shared() {
    for device in devices() {
        let w = Numbers(4).tensor(&[6, 6]);
        let resident = tallow_candle::to_resident(&w, &device).unwrap();
        let op = compile(move |[x]: &[tallow::Tensor; 1]| x.matmul(&resident)).on(&device);
        for n in [1, 2, 3, 2, 1] {
            let x = Numbers(n as u64).tensor(&[n, 6]);
            assert!(distance(&x.apply_op1_no_bwd(&op).unwrap(), &x.matmul(&w).unwrap()) < FEW_ROUNDINGS);
        }
        assert_eq!(op.compiled_graphs(), 3);
    }
}

#[test]
fn threads_wait_for_each_other() {
    for device in devices() {
        let op = compile(|[x]| x.sqr()?.sum_all()).on(&device);
        std::thread::scope(|scope| {
            for n in 0..4 {
                let op = op.clone();
                scope.spawn(move || {
                    let x = Tensor::full(n as f32, (8, 8), &candle_core::Device::Cpu).unwrap();
                    for _ in 0..20 {
                        let y = x.apply_op1_no_bwd(&op).unwrap().to_scalar::<f32>().unwrap();
                        assert_eq!(y, 64.0 * (n * n) as f32);
                    }
                });
            }
        });
    }
}

#[test]
fn results_without_elements() {
    for device in devices() {
        let op = compile(|[x]| x.neg()).on(&device);
        let x = Tensor::zeros((3, 0, 2), DType::F32, &candle_core::Device::Cpu).unwrap();
        assert_eq!(x.apply_op1_no_bwd(&op).unwrap().dims(), [3, 0, 2]);
    }
}
