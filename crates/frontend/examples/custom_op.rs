//! An op of one's own: a kernel in GLSL, used among the others, on a Vulkan device or (by its function) on the CPU.
//!
//! ```sh
//! cargo run -p tallow --example custom_op
//! ```

use std::io::Write;

use tallow::{CustomKernel, CustomOutput, DType, Device, Result, Tensor};

/// The snake activation, `x + sin(a x)^2 / a` (Ziyin et al., 2020, "Neural Networks Fail to Learn Periodic Functions").
const SNAKE: &str = "#version 450
layout(local_size_x = 64) in;
layout(set = 0, binding = 0) readonly buffer Input { float x[]; };
layout(set = 0, binding = 1) writeonly buffer Output { float y[]; };
layout(push_constant) uniform Push { uint n; float a; };
void main() {
    uint i = gl_GlobalInvocationID.x;
    if (i < n) {
        float s = sin(a * x[i]);
        y[i] = x[i] + s * s / a;
    }
}
";

fn main() -> Result<()> {
    let snake = CustomKernel::glsl("snake", SNAKE)
        .input(DType::F32)
        .output(DType::F32)
        .push_int()
        .push_float()
        .workgroup([64, 1, 1])
        .on_cpu(|call| {
            let a = call.push_float(1)?;
            let y = |x: f32| x + (a * x).sin().powi(2) / a;
            Ok(vec![CustomOutput::new(call.input::<f32>(0)?.into_iter().map(y).collect())])
        })
        .build()?;

    let device = Device::vulkan_if_available();
    let x = Tensor::arange_step(-2f32, 2.0, 0.25, &device)?;
    let (n, a) = (x.shape().numel(), 2.0);
    let call = snake.call(&[&(&x * 1.5)?]).push(&n).push(a).output(x.shape());
    let y = call.invocations([n, 1.into(), 1.into()]).one()?;

    // The same, composed of the ops that there are: one kernel too, as it happens.
    let z = (&x * 1.5)?;
    let composed = (&z + ((&z * f64::from(a))?.sin()?.sqr()? / f64::from(a))?)?;

    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{device:?}\n{}\n{y}", y.explain()?);
    let difference = (&y - &composed)?.abs()?.max_all()?;
    let _ = writeln!(out, "largest difference to the composition: {:e}", difference.to_scalar::<f32>()?);
    Ok(())
}
