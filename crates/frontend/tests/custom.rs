//! What a custom kernel is refused for: each is an error that says what is wrong, none a crash. And its gradients.

#![allow(clippy::unwrap_used)]

use tallow::{
    CustomBackward, CustomKernel, CustomKernelBuilder, CustomOutput, DType, Device, Input, Result, Shape,
    Tensor, TrainOptions, Var, nn::optim::Optimizer, nn::optim::SGD, train_step,
};

const GOOD: &str = "#version 450
layout(local_size_x = 64) in;
layout(set = 0, binding = 0) readonly buffer X { float x[]; };
layout(set = 0, binding = 1) writeonly buffer Y { float y[]; };
layout(push_constant) uniform Push { uint n; float by; };
void main() {
    uint i = gl_GlobalInvocationID.x;
    if (i < n) { y[i] = by * x[i]; }
}
";

/// What [`GOOD`] is, with another text.
fn registered(text: &str) -> CustomKernelBuilder {
    let kernel = CustomKernel::glsl("scale", text).input(DType::F32).output(DType::F32);
    kernel.push_int().push_float().workgroup([64, 1, 1])
}

#[cfg(feature = "vulkan")]
#[test]
fn shaders_that_are_not_what_was_registered() {
    registered(GOOD).build().unwrap();
    let cases = [
        ("readonly buffer X", "buffer X", "binding 0 is an input and must be readonly"),
        ("writeonly buffer Y { float y[]; }", "readonly buffer Y { float y[]; }", "does not compile"),
        ("float x[]", "uint x[]", "binding 0 holds int32, registered as f32"),
        ("binding = 1", "binding = 5", "set 0, binding 5; the kernel has set 0, bindings 0 to 1"),
        ("set = 0, binding = 1", "set = 2, binding = 1", "set 2, binding 1; the kernel has"),
        ("binding = 1", "binding = 0", "binding 0 is an input and must be readonly"),
        ("local_size_x = 64", "local_size_x = 32", "workgroup is [32, 1, 1], registered as [64, 1, 1]"),
        ("uint n; float by;", "float by; uint n;", "push constant 0 is not of 32 bits"),
        ("uint n; float by;", "uint n; float by; float more;", "push constant 2 is not"),
        ("uint n; float by;", "layout(offset = 8) uint n; float by;", "push constant 0 is not"),
        ("y[i] = by * x[i];", "float z = by * x[i];", "output 0 (binding 1) is never used"),
        ("y[i] = by", "y[i] = missing", "'missing' : undeclared identifier"),
        ("#version 450\n", "", "does not begin with #version"),
        ("float y[];", "struct { float a; uint b; } y[];", "does not compile"),
    ];
    for (from, to, expected) in cases {
        assert!(GOOD.contains(from), "{from}");
        let error = registered(&GOOD.replace(from, to)).build().unwrap_err().to_string();
        assert!(error.contains(expected) && error.contains("scale"), "{to}: {error}");
    }
    let garbage = CustomKernel::spirv("garbage", &[1, 2, 3]).input(DType::F32).output(DType::F32).build();
    let error = garbage.unwrap_err().to_string();
    assert!(error.contains("custom kernel 'garbage': this is no SPIR-V"), "{error}");
}

#[test]
fn calls_that_do_not_fit() {
    let kernel = registered(GOOD).build().unwrap();
    let x = Tensor::zeros(3, DType::F32, &Device::Cpu).unwrap();
    let ints = Tensor::zeros(3, DType::U32, &Device::Cpu).unwrap();
    let shape = Shape::from([3usize]);
    let error = |call: tallow::CustomCall| call.one().unwrap_err().to_string();
    let cases = [
        (error(kernel.call(&[&ints]).push(3).push(0.5).output(&shape)), "takes [F32], got [U32]"),
        (error(kernel.call(&[&x, &x]).push(3).push(0.5).output(&shape)), "takes [F32], got [F32, F32]"),
        (error(kernel.call(&[]).push(3).push(0.5).output(&shape)), "takes no input, so it has no device"),
        (error(kernel.call(&[&x]).push(3).output(&shape)), "has push constants [Int, Float], got [Int]"),
        (error(kernel.call(&[&x]).push(0.5).push(3).output(&shape)), "got [Float, Int]"),
        (error(kernel.call(&[&x]).push(3).push(0.5)), "has 1 outputs, got shapes for 0"),
        (
            error(kernel.call(&[&x]).push(3).push(0.5).output(&shape).invocations([
                (-1).into(),
                1.into(),
                1.into(),
            ])),
            "cannot run -1 invocations",
        ),
    ];
    for (error, expected) in cases {
        assert!(error.contains(expected), "{error} lacks {expected}");
    }
    // No function for the CPU, and one that gives what it should not.
    let y = kernel.call(&[&x]).push(3).push(0.25).output(&shape).one().unwrap();
    assert!(y.to_vec1::<f32>().unwrap_err().to_string().contains("has no function for the CPU"));
    let short = registered(&(GOOD.to_string() + "// short\n"));
    let short = short.on_cpu(|_| Ok(vec![CustomOutput::new(vec![1f32])])).build().unwrap();
    let y = short.call(&[&x]).push(3).push(0.25).output(&shape).one().unwrap();
    assert!(y.to_vec1::<f32>().unwrap_err().to_string().contains("takes 12 bytes, got 4"));
}

/// `n` for the first push constant and `by` for the second, on the interpreter.
fn scale(name: &str) -> CustomKernelBuilder {
    let kernel = CustomKernel::glsl(name, GOOD).input(DType::F32).output(DType::F32);
    kernel.push_int().push_float().workgroup([64, 1, 1]).on_cpu(|a| {
        let by = a.push_float(1)?;
        Ok(vec![CustomOutput::new(a.input::<f32>(0)?.iter().map(|x| by * x).collect())])
    })
}

fn call(kernel: &CustomKernel, x: &Tensor, by: f32) -> Result<Tensor> {
    let n = x.shape().numel();
    kernel.call(&[x]).push(n.clone()).push(by).output(x.shape()).invocations([n, 1.into(), 1.into()]).one()
}

/// The gradient of `by * x`: the same kernel, applied to the gradient.
fn scaled_gradient(a: &CustomBackward<'_>, kernel: &CustomKernel) -> Result<Vec<Option<Tensor>>> {
    let (g, n) = (&a.gradients[0], a.inputs[0].shape().numel());
    let call = kernel.call(&[g]).push(a.push[0].clone()).push(a.push[1].clone()).output(g.shape());
    Ok(vec![Some(call.invocations([n, 1.into(), 1.into()]).one()?)])
}

#[test]
fn gradients_pass_through_kernels() {
    let inner = scale("inner").build().unwrap();
    let kernel = scale("differentiable").backward(move |a| scaled_gradient(a, &inner)).build().unwrap();
    let x = Var::new([1f32, -2.0, 3.0], &Device::Cpu).unwrap();
    // 3 (2 x^2) + 2 x, through two uses of the kernel and past them.
    let inner = call(&kernel, &x.sqr().unwrap(), 2.0).unwrap();
    let y = call(&kernel, &inner, 3.0).unwrap().add(&(x.as_tensor() * 2.0).unwrap()).unwrap();
    for _ in 0..2 {
        let grads = y.sum_all().unwrap().backward().unwrap();
        assert_eq!(grads.get(&x).unwrap().to_vec1::<f32>().unwrap(), [14.0, -22.0, 38.0]);
        y.to_vec1::<f32>().unwrap(); // now with known values
    }
}

/// A function may read inputs, outputs, tensors of its own and the variable that is the input.
#[test]
fn kernels_gradients_are_any_expression() {
    let own = Tensor::new([10f32, 20.0, 30.0], &Device::Cpu).unwrap();
    let x = Var::new([1f32, -2.0, 3.0], &Device::Cpu).unwrap();
    let same = x.clone();
    let kernel = scale("expression").backward(move |a| {
        assert!(a.inputs[0].to_vec1::<f32>().is_err(), "there are no values");
        let [input, output, gradient] = [&a.inputs[0], &a.outputs[0], &a.gradients[0]];
        Ok(vec![Some(input.add(output)?.add(&own)?.add(&same)?.mul(gradient)?)])
    });
    let y = call(&kernel.build().unwrap(), &x, 2.0).unwrap();
    let grads = (y * 0.5).unwrap().sum_all().unwrap().backward().unwrap();
    // (x + 2 x + own + x) / 2
    assert_eq!(grads.get(&x).unwrap().to_vec1::<f32>().unwrap(), [7.0, 6.0, 21.0]);
}

#[test]
fn kernels_train_in_compiled_steps() {
    let inner = scale("inner2").build().unwrap();
    let kernel = scale("trained").backward(move |a| scaled_gradient(a, &inner)).build().unwrap();
    let w = Var::new([1f32, 1.0], &Device::Cpu).unwrap();
    let mut sgd = SGD::new(vec![w.clone()], 0.1).unwrap();
    let inputs = [Input::new("x", DType::F32, 2)];
    let step =
        train_step(&Device::Cpu, &inputs, std::slice::from_ref(&w), &mut sgd, TrainOptions::default(), |x| {
            call(&kernel, &w.mul(&x[0])?, 2.0)?.sum_all()
        })
        .unwrap();
    step.run(&[&Tensor::new([1f32, -1.0], &Device::Cpu).unwrap()]).unwrap();
    let values = w.to_vec1::<f32>().unwrap();
    assert!((values[0] - 0.8).abs() < 1e-6 && (values[1] - 1.2).abs() < 1e-6, "{values:?}");
}

#[test]
fn gradients_that_do_not_fit_are_errors() {
    let x = Var::new([1f32, 2.0], &Device::Cpu).unwrap();
    let error = |kernel: CustomKernelBuilder| {
        let y = call(&kernel.build().unwrap(), &x, 2.0).unwrap();
        y.sum_all().unwrap().backward().unwrap_err().to_string()
    };
    let none = error(scale("no gradient"));
    assert!(none.contains("no gradient through custom") && none.contains("backward"), "{none}");
    let count = error(scale("count").backward(|_| Ok(vec![])));
    assert!(count.contains("0 gradients for 1 operands"), "{count}");
    let shape = error(scale("shape").backward(|a| Ok(vec![Some(a.gradients[0].sum_all()?)])));
    assert!(shape.contains("for operand 0 of type f32[2]"), "{shape}");
    let own = error(scale("own").backward(|_| Err(tallow::Error::msg("not today"))));
    assert!(own.contains("not today") && own.contains("custom"), "{own}");
    // No gradient is zeros.
    let kernel = scale("constant").backward(|_| Ok(vec![None])).build().unwrap();
    let grads = call(&kernel, &x, 2.0).unwrap().sum_all().unwrap().backward().unwrap();
    assert_eq!(grads.get(&x).unwrap().to_vec1::<f32>().unwrap(), [0.0; 2]);
}
