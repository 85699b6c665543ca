//! What a custom kernel is refused for: each is an error that says what is wrong, none a crash.

#![allow(clippy::unwrap_used)]

use tallow::{CustomKernel, CustomKernelBuilder, CustomOutput, DType, Device, Shape, Tensor};

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
