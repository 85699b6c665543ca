//! A kernel as users write them, for random graphs and device tests: two inputs, two outputs, a symbolic push constant.

use std::sync::{Arc, OnceLock};

use tallow_ir::{Custom, CustomCode, CustomKernel, DType, Dim, PushType, PushValue, Shape};
use tallow_reference::{Array, CustomArguments, register_custom};

/// `mixed[i] = a[n - 1 - i] + factor * b[i]` and `order[i] = number of elements after i`.
pub const MIX: &str = "#version 450
layout(local_size_x = 32) in;
layout(set = 0, binding = 0) readonly buffer A { float a[]; };
layout(set = 0, binding = 1) readonly buffer B { float b[]; };
layout(set = 0, binding = 2) writeonly buffer Mixed { float mixed[]; };
layout(set = 0, binding = 3) writeonly buffer Order { uint order[]; };
layout(push_constant) uniform Push { uint n; float factor; };
void main() {
    uint i = gl_GlobalInvocationID.x;
    if (i < n) {
        mixed[i] = a[n - 1u - i] + factor * b[i];
        order[i] = n - 1u - i;
    }
}
";

/// The kernel of [`MIX`], with its function for the CPU.
pub fn mix_kernel() -> Arc<CustomKernel> {
    static KERNEL: OnceLock<Arc<CustomKernel>> = OnceLock::new();
    let make = || {
        let kernel = CustomKernel {
            name: "mix".into(),
            code: CustomCode::Glsl(MIX.into()),
            inputs: vec![DType::F32, DType::F32],
            outputs: vec![DType::F32, DType::U32],
            push: vec![PushType::Int, PushType::Float],
            workgroup: [32, 1, 1],
        };
        register_custom(&kernel, Arc::new(mix_on_cpu));
        Arc::new(kernel)
    };
    KERNEL.get_or_init(make).clone()
}

/// The kernel applied to operands of `n` elements; results of `shape`.
pub fn mix(n: &Dim, shape: &Shape) -> Custom {
    Custom {
        kernel: mix_kernel(),
        shapes: vec![shape.clone(), shape.clone()],
        // A power of two, so that a fused multiply-add rounds as two operations do.
        push: vec![PushValue::Int(n.clone()), PushValue::float(0.25)],
        invocations: [n.clone(), Dim::one(), Dim::one()],
    }
}

fn mix_on_cpu(arguments: &CustomArguments<'_>) -> Result<Vec<Array>, String> {
    let [a, b] = arguments.inputs else { return Err("mix takes two inputs".into()) };
    let [n, factor] = arguments.push else { return Err("mix takes two push constants".into()) };
    let (a, b, n, factor) = (a.to_f64s(), b.to_f64s(), *n as usize, f64::from(f32::from_bits(*factor)));
    if a.len() != n || b.len() != n {
        return Err(format!("mix takes {n} elements, got {} and {}", a.len(), b.len()));
    }
    let mixed: Vec<f64> = (0..n).map(|i| a[n - 1 - i] + factor * b[i]).collect();
    let order: Vec<f64> = (0..n).map(|i| (n - 1 - i) as f64).collect();
    let array = |ty, at: usize, values: &[f64]| Array::from_f64s(ty, &arguments.shapes[at], values);
    let both = [array(DType::F32, 0, &mixed), array(DType::U32, 1, &order)];
    both.into_iter().map(|x| x.map_err(|e| e.to_string())).collect()
}
