//! Kernels that users write: in graphs with everything around them, and what is refused.

use std::sync::Arc;

use tallow::nn::optim::{Optimizer, SGD};
use tallow::{
    CustomKernel, CustomOutput, DType, Device, Input, Symbol, Tensor, TrainOptions, Var, compile, eval,
    train_step,
};
use tallow_codegen::compile_spirv;
use tallow_ir::{
    Custom, CustomCode, CustomKernel as Definition, Dim, ElementwiseOp, Graph, Op, Shape, Value,
};
use tallow_tests::custom::{MIX, mix};
use tallow_tests::{Tolerance, assert_close, random_inputs};

use crate::harness::{device, interpret, run};

/// Views, constants and results of other kernels as operands; both results read, by kernels and by another of its
/// kind; the extent known at run time.
#[test]
fn a_custom_kernel_amid_others() {
    let Some(device) = device() else { return };
    let rows = Symbol::new("rows", 40);
    let mut g = Graph::new("amid");
    let x = g.input("x", DType::F32, [Dim::from(&rows), 7.into()]).unwrap();
    let w = g.input("w", DType::F32, [7.into(), Dim::from(&rows)]).unwrap();
    let n = Shape::from([Dim::from(&rows), 7.into()]).numel();
    let shape = g.ty(x).shape.clone();
    let turned = g.permute(w, &[1, 0]).unwrap();
    let first = g.add(Op::Custom(Box::new(mix(&n, &shape))), &[x, turned]).unwrap();
    let (mixed, order) = (first, Value { node: first.node, result: 1 });
    let half = g.full_like(x, 0.5).unwrap();
    let sum = g.elementwise(ElementwiseOp::Add, &[mixed, half]).unwrap();
    let second = g.add(Op::Custom(Box::new(mix(&n, &shape))), &[half, sum]).unwrap();
    let third = g.add(Op::Custom(Box::new(mix(&n, &shape))), &[second, second]).unwrap();
    let order = g.add(Op::Cast(DType::F32), &[order]).unwrap();
    let last = g.elementwise(ElementwiseOp::Mul, &[order, third]).unwrap();
    g.output("last", last).unwrap();
    g.output("second", second).unwrap();
    for (seed, rows) in [(1, 40), (2, 1), (3, 13), (4, 0)] {
        let mut inputs = random_inputs(&g, seed);
        inputs.symbols.insert("rows".into(), rows);
        for leaf in inputs.inputs.values_mut() {
            leaf.shape = leaf.shape.iter().map(|d| if *d == 7 { 7 } else { rows as usize }).collect();
            leaf.bytes.resize(4 * 7 * rows as usize, 0);
        }
        let (want, got) = (interpret(&g, &inputs).unwrap(), run(&device, &g, &inputs).unwrap());
        for ((name, want), (_, got)) in want.iter().zip(&got) {
            assert_close(want, got, Tolerance::Values);
            assert_eq!(got.shape, [rows as usize, 7], "{name}");
        }
    }
}

/// One recording serves all values of a symbol that is a push constant.
#[test]
fn push_constants_follow_symbols() {
    let Some(device) = device() else { return };
    let fill = CustomKernel::glsl(
        "fill",
        "#version 450
        layout(local_size_x = 8) in;
        layout(set = 0, binding = 0) readonly buffer X { float x[]; };
        layout(set = 0, binding = 1) writeonly buffer Y { float y[]; };
        layout(push_constant) uniform Push { uint n; int minus; float by; } p;
        void main() {
            uint i = gl_GlobalInvocationID.x;
            if (i < p.n) { y[i] = x[0] + p.by * float(p.n) + float(p.minus); }
        }",
    )
    .input(DType::F32)
    .output(DType::F32)
    .push_int()
    .push_int()
    .push_float()
    .workgroup([8, 1, 1])
    .build()
    .unwrap();
    let rows = Symbol::new("rows", 100);
    let f = compile(&device, &[Input::new("x", DType::F32, (rows,))], |x| {
        let n = x[0].shape().numel();
        let call = fill.call(&[&x[0]]).push(&n).push(-3).push(0.5).output(x[0].shape());
        Ok(vec![call.invocations([n, 1.into(), 1.into()]).one()?])
    })
    .unwrap();
    for n in [1usize, 100, 17] {
        let x = Tensor::full(2f32, n, &Device::Cpu).unwrap().to_device(&device).unwrap();
        let y = f.run(&[&x]).unwrap()[0].to_vec1::<f32>().unwrap();
        assert_eq!(y, vec![2.0 + 0.5 * n as f32 - 3.0; n]);
    }
    assert_eq!(f.executable().unwrap().stats().recordings, 1);
}

/// SPIR-V does what its GLSL does.
#[test]
fn spirv_is_taken_as_it_is() {
    let Some(device) = device() else { return };
    let (words, _) = compile_spirv(&[("mix", MIX)], None).unwrap();
    let graph = |code: CustomCode| {
        let mut g = Graph::new("spirv");
        let x = g.input("x", DType::F32, [33]).unwrap();
        let of = mix(&33.into(), &g.ty(x).shape.clone());
        let kernel = Arc::new(Definition { code, ..(*of.kernel).clone() });
        let y = g.add(Op::Custom(Box::new(Custom { kernel, ..of })), &[x, x]).unwrap();
        g.output("mixed", y).unwrap();
        g.output("order", Value { node: y.node, result: 1 }).unwrap();
        g
    };
    let (glsl, spirv) = (graph(CustomCode::Glsl(MIX.into())), graph(CustomCode::Spirv(words[0].to_vec())));
    assert_eq!(tallow_ir::text::parse(&spirv.to_string()).as_ref(), Ok(&spirv));
    let inputs = random_inputs(&glsl, 5);
    let (want, got) = (interpret(&glsl, &inputs).unwrap(), run(&device, &spirv, &inputs).unwrap());
    for ((_, want), (_, got)) in want.iter().zip(&got) {
        assert_close(want, got, Tolerance::Values);
    }
}

/// Outputs are tensors of their own; asked for together they are computed together. On the CPU it is the function.
#[test]
fn several_outputs_as_tensors() {
    let split = |on: &Device| {
        let kernel = CustomKernel::glsl(
            "split",
            "#version 450
            layout(local_size_x = 4, local_size_y = 2) in;
            layout(set = 0, binding = 0) readonly buffer X { vec2 x[]; };
            layout(set = 0, binding = 1) writeonly buffer A { float a[]; };
            layout(set = 0, binding = 2) writeonly buffer B { float b[]; };
            layout(push_constant) uniform Push { uint width; uint height; };
            void main() {
                uvec2 at = gl_GlobalInvocationID.xy;
                if (at.x < width && at.y < height) {
                    vec2 both = x[at.y * width + at.x];
                    a[at.y * width + at.x] = both.x;
                    b[at.y * width + at.x] = both.y;
                }
            }",
        )
        .input(DType::F32)
        .output(DType::F32)
        .output(DType::F32)
        .push_int()
        .push_int()
        .workgroup([4, 2, 1])
        .on_cpu(|a| {
            let x = a.input::<f32>(0)?;
            let part = |which: usize| CustomOutput::new(x.iter().skip(which).step_by(2).copied().collect());
            Ok(vec![part(0), part(1)])
        })
        .build()
        .unwrap();
        let x = Tensor::arange(0f32, 30.0, on).unwrap().reshape((3, 5, 2)).unwrap();
        let shape = Shape::from([3usize, 5]);
        let call = kernel.call(&[&x]).push(5usize).push(3usize).output(&shape).output(&shape);
        let [a, b] = call.invocations([5.into(), 3.into(), 1.into()]).all().unwrap().try_into().unwrap();
        let product = (&a * &b).unwrap().sum_all().unwrap();
        eval(&[&a, &b, &product]).unwrap();
        (a.to_vec2::<f32>().unwrap(), b.to_vec2::<f32>().unwrap(), product.to_scalar::<f32>().unwrap())
    };
    let want = split(&Device::Cpu);
    assert_eq!(want.0[2], [20.0, 22.0, 24.0, 26.0, 28.0]);
    let Some(device) = device() else { return };
    assert_eq!(split(&device), want);
}

/// A kernel's gradient may be a kernel of several outputs; both run on the device.
#[test]
fn gradients_of_kernels() {
    let Some(device) = device() else { return };
    let define = |name: &str, outputs: &str, body: &str| {
        CustomKernel::glsl(
            name,
            &format!(
                "#version 450\nlayout(local_size_x = 32) in;\n\
             layout(set = 0, binding = 0) readonly buffer A {{ float a[]; }};\n\
             layout(set = 0, binding = 1) readonly buffer B {{ float b[]; }};\n{outputs}\
             layout(push_constant) uniform Push {{ uint n; }};\n\
             void main() {{ uint i = gl_GlobalInvocationID.x; if (i < n) {{ {body} }} }}\n"
            ),
        )
        .workgroup([32, 1, 1])
        .push_int()
        .input(DType::F32)
        .input(DType::F32)
    };
    // The gradients of a * b: g b and g a.
    let both = "layout(set = 0, binding = 2) readonly buffer G { float g[]; };\n\
                layout(set = 0, binding = 3) writeonly buffer C { float c[]; };\n\
                layout(set = 0, binding = 4) writeonly buffer D { float d[]; };\n";
    let reverse = define("product_gradient", both, "c[i] = g[i] * b[i]; d[i] = g[i] * a[i];");
    let reverse = reverse.input(DType::F32).output(DType::F32).output(DType::F32).build().unwrap();
    let one = "layout(set = 0, binding = 2) writeonly buffer C { float c[]; };\n";
    let product = define("product", one, "c[i] = a[i] * b[i];")
        .output(DType::F32)
        .backward(move |node| {
            let (a, b, g) = (&node.inputs[0], &node.inputs[1], &node.gradients[0]);
            let n = a.shape().numel();
            let call = reverse.call(&[a, b, g]).push(n.clone()).output(a.shape()).output(b.shape());
            Ok(call.invocations([n, 1.into(), 1.into()]).all()?.into_iter().map(Some).collect())
        })
        .build()
        .unwrap();
    let a = Var::new([1f32, -2.0, 3.0], &device).unwrap();
    let b = Var::new([5f32, 0.5, 4.0], &device).unwrap();
    let loss = || -> tallow::Result<Tensor> {
        let n = Dim::from(3usize);
        let y = product
            .call(&[&a, &b])
            .push(n.clone())
            .output(3usize)
            .invocations([n, 1.into(), 1.into()])
            .one()?;
        y.sqr()?.sum_all()?.affine(0.5, 0.0)
    };
    let grads = loss().unwrap().backward().unwrap();
    let of = |var: &Var| grads.get(var).unwrap().to_vec1::<f32>().unwrap();
    assert_eq!((of(&a), of(&b)), (vec![25.0, -0.5, 48.0], vec![5.0, 2.0, 36.0]));
    let vars = [a.clone(), b.clone()];
    let mut sgd = SGD::new(vars.to_vec(), 0.5).unwrap();
    let step = train_step(&device, &[], &vars, &mut sgd, TrainOptions::default(), |_| loss()).unwrap();
    step.run(&[]).unwrap();
    assert_eq!(a.to_vec1::<f32>().unwrap(), [-11.5, -1.75, -21.0]);
    assert_eq!(b.to_vec1::<f32>().unwrap(), [2.5, -0.5, -14.0]);
}
