//! Backward functions: a training step through a compiled op is that of Candle.

use candle_core::{Tensor, Var};
use candle_nn::{Optimizer, SGD};
use tallow_candle::{CompiledOp, compile};

use crate::support::{Numbers, devices, distance};

/// Gradients pass through some ten roundings of f32 in another order.
const ROUNDINGS: f64 = 1e-5;

/// `silu(x w) ` and its gradients: with `z = x w`, `s = 1 / (1 + e^-z)`, d silu(z) = s (1 + z (1 - s)).
fn layer(device: &tallow::Device) -> CompiledOp<2> {
    compile(|[x, w]| x.matmul(w)?.silu())
        .named("layer")
        .with_backward(|[x, w], _y, dy| {
            let z = x.matmul(w)?;
            let s = z.neg()?.exp()?.affine(1.0, 1.0)?.recip()?;
            let dz = z.mul(&s.affine(-1.0, 1.0)?)?.affine(1.0, 1.0)?.mul(&s)?.mul(dy)?;
            Ok([Some(dz.matmul(&w.t()?)?), Some(x.t()?.matmul(&dz)?)])
        })
        .on(device)
}

#[test]
fn training_steps_are_those_of_candle() {
    let mut numbers = Numbers(7);
    let (x, target) = (numbers.tensor(&[6, 5]), numbers.tensor(&[6, 3]));
    let (first, second) = (numbers.tensor(&[5, 4]), numbers.tensor(&[4, 3]));
    for device in devices() {
        let op = layer(&device);
        let compiled = |x: &Tensor, w: &Tensor| x.apply_op2(w, op.clone()).unwrap();
        let pure = |x: &Tensor, w: &Tensor| x.matmul(w).unwrap().silu().unwrap();
        let train = |f: &dyn Fn(&Tensor, &Tensor) -> Tensor| {
            let vars = [Var::from_tensor(&first).unwrap(), Var::from_tensor(&second).unwrap()];
            let mut sgd = SGD::new(vars.to_vec(), 0.5).unwrap();
            let mut losses = vec![];
            for _ in 0..5 {
                let y = f(&f(&x, vars[0].as_tensor()), vars[1].as_tensor());
                let loss = (y - &target).unwrap().sqr().unwrap().sum_all().unwrap();
                sgd.backward_step(&loss).unwrap();
                losses.push(loss.to_scalar::<f32>().unwrap());
            }
            (losses, vars)
        };
        let ((losses, vars), (expected_losses, expected)) = (train(&compiled), train(&pure));
        for (a, b) in vars.iter().zip(&expected) {
            assert!(distance(a.as_tensor(), b.as_tensor()) < ROUNDINGS, "{device}");
        }
        for (a, b) in losses.iter().zip(&expected_losses) {
            assert!(f64::from((a - b).abs()) < ROUNDINGS * f64::from(b.abs()), "{a} {b} {device}");
        }
        // A step that changes nothing would agree as well.
        assert!(losses[4] < 0.9 * losses[0], "{losses:?}");
    }
}

#[test]
fn an_operand_may_have_no_gradient() {
    for device in devices() {
        let op = compile(|[x, mask]| x.mul(mask))
            .with_backward(|[_, mask], _, dy| Ok([Some(dy.mul(mask)?), None]))
            .on(&device);
        let x = Var::new(&[1f32, 2.0, 3.0], &candle_core::Device::Cpu).unwrap();
        let mask = Var::new(&[0f32, 1.0, 2.0], &candle_core::Device::Cpu).unwrap();
        let y = x.as_tensor().apply_op2(mask.as_tensor(), op).unwrap().sum_all().unwrap();
        let gradients = y.backward().unwrap();
        assert_eq!(gradients.get(x.as_tensor()).unwrap().to_vec1::<f32>().unwrap(), [0.0, 1.0, 2.0]);
        let none = gradients.get(mask.as_tensor());
        assert!(none.is_none_or(|g| g.to_vec1::<f32>().unwrap() == [0.0; 3]));
    }
}

#[test]
fn three_operands() {
    for device in devices() {
        let op = compile(|[x, y, z]| x.mul(y)?.add(z))
            .with_backward(|[x, y, _], _, dy| Ok([Some(dy.mul(y)?), Some(dy.mul(x)?), Some(dy.clone())]))
            .on(&device);
        let cpu = &candle_core::Device::Cpu;
        let vars: Vec<Var> = [2f32, 3.0, 4.0].iter().map(|v| Var::new(&[*v], cpu).unwrap()).collect();
        let [x, y, z] = [0, 1, 2].map(|i: usize| vars[i].as_tensor());
        let result = x.apply_op3(y, z, op).unwrap();
        let gradients = result.sum_all().unwrap().backward().unwrap();
        let of = |t: &Tensor| gradients.get(t).unwrap().to_vec1::<f32>().unwrap()[0];
        assert_eq!([of(x), of(y), of(z)], [3.0, 2.0, 1.0]);
    }
}

#[test]
fn without_a_backward_function_it_is_an_error() {
    let x = Var::new(&[1f32, 2.0], &candle_core::Device::Cpu).unwrap();
    let op = compile(|[x]| x.sqr()).named("square").on(&tallow::Device::Cpu);
    let y = x.as_tensor().apply_op1(op.clone()).unwrap().sum_all().unwrap();
    assert!(y.backward().unwrap_err().to_string().contains("square"));
    // A gradient of another shape does not reach the variable.
    let wrong = op.with_backward(|[x], _, _| Ok([Some(x.sum_all()?)]));
    let y = x.as_tensor().apply_op1(wrong).unwrap().sum_all().unwrap();
    assert!(y.backward().unwrap_err().to_string().contains("gradient"));
}
