//! Variables and their gradients: values at points where a slope is ambiguous or infinite, and what a variable is when it
//! changes.

#![allow(clippy::unwrap_used)]

use tallow::nn::{log_softmax, softmax};
use tallow::{CustomKernel, DType, Device, Error, Input, Result, Symbol, Tensor, Var, compile};

/// The gradient of the sum of `f` of a variable that holds `x`.
fn gradient(x: &[f32], f: impl Fn(&Tensor) -> Result<Tensor>) -> Vec<f32> {
    let x = Var::new(x, &Device::Cpu).unwrap();
    let grads = f(&x).unwrap().backward().unwrap();
    grads.get(&x).map_or(vec![f32::NAN; x.dims()[0]], |g| g.to_vec1().unwrap())
}

/// Where functions bend, PyTorch's choice.
#[test]
fn kinks_have_the_gradients_of_pytorch() {
    let x = [-7.0, -3.0, -1.0, 0.0, 1.0, 3.0, 6.0, 7.0f32];
    assert_eq!(gradient(&x, Tensor::relu), [0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0]);
    assert_eq!(gradient(&x, Tensor::relu6), [0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0]);
    assert_eq!(gradient(&x, Tensor::abs), [-1.0, -1.0, -1.0, 0.0, 1.0, 1.0, 1.0, 1.0]);
    assert_eq!(gradient(&x, |x| x.clamp(-3.0, 3.0)), [0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0]);
    assert_eq!(gradient(&x, |x| x.leaky_relu(0.25)), [0.25, 0.25, 0.25, 0.25, 1.0, 1.0, 1.0, 1.0]);
    assert_eq!(gradient(&x[3..4], |x| x.elu(2.0)), [2.0]);
    assert_eq!(gradient(&x[3..4], Tensor::softplus), [0.5]);
    let sixth = 1.0 / 6.0;
    let close = |a: &[f32], b: &[f32]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-6);
    assert!(close(&gradient(&x[..6], Tensor::hard_sigmoid), &[0.0, 0.0, sixth, sixth, sixth, 0.0]));
    assert_eq!(gradient(&x, Tensor::round), [0.0; 8]);
    // Equal operands share the gradient, and so do equal largest elements.
    assert_eq!(gradient(&x[..3], |x| x.maximum(-3.0)), [0.0, 0.5, 1.0]);
    assert_eq!(gradient(&[1.0, 2.0, 2.0], |x| x.max(0)), [0.0, 0.5, 0.5]);
}

/// Where a slope is infinite or overflows, and the gradient is not.
#[test]
fn gradients_that_exist_are_numbers() {
    assert_eq!(gradient(&[0.0, 0.0], Tensor::norm), [0.0, 0.0]);
    assert_eq!(gradient(&[3.0, 4.0], Tensor::norm), [0.6, 0.8]);
    // The branch that is not taken has an infinite slope at 0.
    let guarded = |x: &Tensor, y: Tensor| x.gt(0.0)?.where_cond(&y, &x.zeros_like()?);
    assert_eq!(gradient(&[0.0, 4.0], |x| guarded(x, x.log()?)), [0.0, 0.25]);
    assert_eq!(gradient(&[0.0, 4.0], |x| guarded(x, x.sqrt()?)), [0.0, 0.25]);
    assert_eq!(gradient(&[0.0, 4.0], |x| guarded(x, x.recip()?)), [0.0, -0.0625]);
    assert_eq!(gradient(&[0.0, 2.0], |x| x.powf(2.0)), [0.0, 4.0]);
    assert_eq!(gradient(&[0.0, -2.0], |x| x.powf(3.0)), [0.0, 12.0]);
    assert_eq!(gradient(&[0.0, 2.0], |x| x.powf(0.0)), [0.0, 0.0]);
    for f in [Tensor::sigmoid, Tensor::silu, Tensor::logsigmoid, Tensor::softplus, Tensor::tanh, Tensor::gelu]
    {
        let slopes = gradient(&[-100.0, 100.0, -1e4, 1e4], f);
        assert!(slopes.iter().all(|slope| slope.is_finite()), "{slopes:?}");
    }
    for f in [|x: &Tensor| softmax(x, 0), |x: &Tensor| log_softmax(x, 0), |x: &Tensor| x.log_sum_exp(0)] {
        let slopes = gradient(&[-100.0, 100.0, 1e4], f);
        assert!(slopes.iter().all(|slope| slope.is_finite()), "{slopes:?}");
    }
    assert_eq!(gradient(&[-1e4, 1e4], |x| x.log_sum_exp(0)), [0.0, 1.0]);
    // Products with zeros among the factors.
    assert_eq!(gradient(&[2.0, 0.0, 3.0], |x| x.prod(0)), [0.0, 6.0, 0.0]);
    assert_eq!(gradient(&[0.0, 0.0, 3.0], |x| x.prod(0)), [0.0, 0.0, 0.0]);
    // Sums of 2, 2 * 0, 2 * 0 * 3.
    assert_eq!(gradient(&[2.0, 0.0, 3.0], |x| x.cumprod(0)), [1.0, 8.0, 0.0]);
}

#[test]
fn a_forced_loss_has_gradients() {
    let x = Var::new([1f32, 2.0], &Device::Cpu).unwrap();
    let hidden = x.sqr().unwrap();
    let loss = hidden.sum_all().unwrap();
    assert_eq!(hidden.to_vec1::<f32>().unwrap(), [1.0, 4.0]);
    assert_eq!(loss.to_scalar::<f32>().unwrap(), 5.0);
    let grads = loss.backward().unwrap();
    assert_eq!(grads.get(&x).unwrap().to_vec1::<f32>().unwrap(), [2.0, 4.0]);
    assert_eq!(grads.get_id(x.id()).unwrap().dims(), [2]);
}

#[test]
fn expressions_read_what_the_variable_held() {
    let x = Var::new([1f32, 2.0], &Device::Cpu).unwrap();
    let before = (x.as_tensor() * 2.0).unwrap();
    let held = x.as_detached_tensor();
    x.set(&(x.as_tensor() + 10.0).unwrap()).unwrap();
    let after = (x.as_tensor() * 2.0).unwrap();
    assert_eq!(before.to_vec1::<f32>().unwrap(), [2.0, 4.0]);
    assert_eq!(after.to_vec1::<f32>().unwrap(), [22.0, 24.0]);
    assert_eq!(held.to_vec1::<f32>().unwrap(), [1.0, 2.0]);
    assert_eq!(x.to_vec1::<f32>().unwrap(), [11.0, 12.0]);
    // Both uses are of one variable, which has one gradient.
    let grads = before.mul(&after).unwrap().backward().unwrap();
    assert_eq!(grads.get(&x).unwrap().to_vec1::<f32>().unwrap(), [48.0, 56.0]);
}

#[test]
fn detached_values_are_data() {
    let x = Var::new([3f32], &Device::Cpu).unwrap();
    let y = x.mul(&x.detach()).unwrap();
    assert_eq!(y.backward().unwrap().get(&x).unwrap().to_vec1::<f32>().unwrap(), [3.0]);
    let lazy = x.sqr().unwrap().detach();
    assert!(lazy.backward().unwrap().get(&x).is_none());
    assert_eq!(lazy.to_vec1::<f32>().unwrap(), [9.0]);
    let data = Tensor::new([1f32], &Device::Cpu).unwrap();
    assert!(data.backward().unwrap().get_ids().next().is_none());
}

#[test]
fn variables_are_set_to_what_fits() {
    let x = Var::zeros((2, 3), DType::F32, &Device::Cpu).unwrap();
    assert!(x.set(&Tensor::zeros((3, 2), DType::F32, &Device::Cpu).unwrap()).is_err());
    assert!(x.set(&Tensor::zeros((2, 3), DType::F64, &Device::Cpu).unwrap()).is_err());
    assert!(x.set(&x).is_err());
    assert!(x.is_variable() && Var::from_tensor(&x).unwrap().id() == x.id());
    x.set(&Tensor::ones((2, 3), DType::F32, &Device::Cpu).unwrap()).unwrap();
    assert_eq!(x.sum_all().unwrap().to_scalar::<f32>().unwrap(), 6.0);
}

const TWICE: &str = "#version 450
layout(local_size_x = 2) in;
layout(set = 0, binding = 0) readonly buffer X { float x[]; };
layout(set = 0, binding = 1) writeonly buffer Y { float y[]; };
void main() { y[gl_GlobalInvocationID.x] = 2.0 * x[gl_GlobalInvocationID.x]; }
";

/// The message names the ops from the output to the one without derivative.
#[test]
fn missing_derivatives_are_errors() {
    let x = Var::new([1f32, 2.0], &Device::Cpu).unwrap();
    let kernel = CustomKernel::glsl("twice", TWICE).input(DType::F32).output(DType::F32).workgroup([2, 1, 1]);
    let y = kernel.build().unwrap().call(&[&x]).output(2).invocations([2.into(), 1.into(), 1.into()]);
    let y = y.one().unwrap();
    let error = (y + 1.0).unwrap().exp().unwrap().backward().unwrap_err();
    let text = error.to_string();
    assert!(text.contains("custom") && text.contains("output <- ") && text.contains("exp"), "{text}");
    assert!(matches!(error, Error::Gradient(_)));
    assert!(x.gt(0.0).unwrap().backward().is_err());
}

/// A function differentiates in each run, with the values of that run, whatever its extents are then.
#[test]
fn functions_differentiate() {
    let rows = Symbol::new("rows", 8);
    let w = Var::new([[1f32, 2.0], [3.0, 4.0]], &Device::Cpu).unwrap();
    let step = compile(&Device::Cpu, &[Input::new("x", DType::F32, (rows, 2))], |x| {
        let loss = x[0].matmul(&w)?.sqr()?.sum_all()?;
        let grads = loss.backward()?;
        let gradient = grads.get(&w).ok_or_else(|| Error::Msg("no gradient".into()))?;
        w.set(&w.sub(&(gradient * 0.5)?)?)?;
        Ok(vec![loss, gradient.clone()])
    })
    .unwrap();
    for x in [Tensor::new([[1f32, 0.0]], &Device::Cpu), Tensor::new([[1f32, 1.0], [0.0, 2.0]], &Device::Cpu)]
    {
        let x = x.unwrap();
        let held = w.as_detached_tensor();
        let y = x.matmul(&held).unwrap();
        let expected = (x.t().unwrap().matmul(&y).unwrap() * 2.0).unwrap();
        let results = step.run(&[&x]).unwrap();
        let loss = y.sqr().unwrap().sum_all().unwrap().to_scalar::<f32>().unwrap();
        assert_eq!(results[0].to_scalar::<f32>().unwrap(), loss);
        let vec = |t: &Tensor| t.to_vec2::<f32>().unwrap();
        assert_eq!(vec(&results[1]), vec(&expected));
        assert_eq!(vec(&w), vec(&held.sub(&(expected * 0.5).unwrap()).unwrap()));
    }
}
