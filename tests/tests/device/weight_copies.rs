//! Copies of weights in another order: made once for each weight, not in each run, shared by executables, never stale.
//! (A custom kernel reads its operands in the order of their axes, so what it reads of a permuted weight is a copy.)

use std::collections::HashMap;

use tallow::{CustomKernel, DType, Device, Function, Input, Tensor, Weight, compile, plan_memory};
use tallow_ir::{Custom, Dim, Graph, Op, Symbol};
use tallow_tests::custom::mix;
use tallow_tests::device::own_devices;
use tallow_tests::{Inputs, Tolerance, assert_close, random_inputs};

use crate::harness::{device, interpret, run_counted};

/// `mix(x, w')`, where `w` is a weight or an input.
fn graph(is_weight: bool) -> Graph {
    let mut g = Graph::new("turned");
    let x = g.input("x", DType::F32, [40, 7]).unwrap();
    let w = match is_weight {
        true => g.weight("w", DType::F32, [7, 40]).unwrap(),
        false => g.input("w", DType::F32, [7, 40]).unwrap(),
    };
    let turned = g.permute(w, &[1, 0]).unwrap();
    let of: Custom = mix(&280.into(), &g.ty(x).shape.clone());
    let y = g.add(Op::Custom(Box::new(of)), &[x, turned]).unwrap();
    g.output("y", y).unwrap();
    g
}

fn weights(device: &Device, inputs: &Inputs) -> HashMap<String, Weight> {
    let upload = |leaf: &tallow_tests::random_inputs::Leaf| {
        device.weight(leaf.dtype, &leaf.shape, &leaf.bytes).unwrap()
    };
    inputs.weights.iter().map(|(name, leaf)| (name.clone(), upload(leaf))).collect()
}

/// Runs with these inputs and compares with the interpreter.
fn check(executable: &tallow::Executable, graph: &Graph, inputs: &Inputs) {
    let want = interpret(graph, inputs).unwrap();
    let got = executable.run(&[], &[("x", &inputs.inputs["x"].bytes)]).unwrap();
    let got = tallow_reference::Array::from_bytes(DType::F32, &got[0].shape, &got[0].bytes).unwrap();
    assert_close(&want[0].1, &got, Tolerance::Values);
}

#[test]
fn runs_do_not_copy_weights() {
    let Some(device) = device() else { return };
    let dispatches = |is_weight: bool| {
        let graph = graph(is_weight);
        let inputs = random_inputs(&graph, 3);
        let (got, dispatches) = run_counted(&device, &graph, &inputs).unwrap();
        assert_close(&interpret(&graph, &inputs).unwrap()[0].1, &got[0].1, Tolerance::Values);
        dispatches
    };
    assert_eq!([dispatches(true), dispatches(false)], [1, 2]);
}

/// A copy of a weight in the host's memory is there too.
#[test]
fn copies_are_where_their_weights_are() {
    let graph = graph(true);
    let inputs = random_inputs(&graph, 3);
    let leaf = &inputs.weights["w"];
    for device in own_devices() {
        let weight = device.host_weight(leaf.dtype, &leaf.shape, &leaf.bytes).unwrap();
        let bytes = device.memory().unwrap().host;
        assert_eq!(bytes, 4 * 7 * 40);
        let weights = HashMap::from([("w".to_string(), weight)]);
        let executable = device.compile(&graph, &weights, &HashMap::new()).unwrap();
        assert_eq!(device.memory().unwrap().host, 2 * bytes);
        check(&executable, &graph, &inputs);
    }
}

/// What depends on a symbol is no copy that could be made before a run.
#[test]
fn slices_at_symbols_are_taken_in_each_run() {
    let Some(device) = device() else { return };
    let mut g = Graph::new("sliced");
    let x = g.input("x", DType::F32, [40, 7]).unwrap();
    let w = g.weight("w", DType::F32, [7, 50]).unwrap();
    let start = Dim::from(Symbol::new("p", 10));
    let part = g.add(Op::Slice { axis: 1, start, len: 40.into() }, &[w]).unwrap();
    let turned = g.permute(part, &[1, 0]).unwrap();
    let of: Custom = mix(&280.into(), &g.ty(x).shape.clone());
    let y = g.add(Op::Custom(Box::new(of)), &[x, turned]).unwrap();
    g.output("y", y).unwrap();
    for seed in 0..4 {
        let inputs = random_inputs(&g, seed);
        let (got, _) = run_counted(&device, &g, &inputs).unwrap();
        assert_close(&interpret(&g, &inputs).unwrap()[0].1, &got[0].1, Tolerance::Values);
    }
}

#[test]
fn executables_share_copies_of_one_weight() {
    own_devices().iter().for_each(sharing);
}

/// On a device that no other test uses, so that its buffers can be counted.
fn sharing(device: &Device) {
    let Device::Vulkan(vulkan) = device else { return };
    let graph = graph(true);
    let prepared = device.prepare(&graph).unwrap();
    let [first, second] = [1, 2].map(|seed| random_inputs(&graph, seed));
    let bound = weights(device, &first);
    let buffers = || vulkan.objects().buffers;
    let before = buffers();
    let one = prepared.bind(&bound, &HashMap::new()).unwrap();
    let of_one = buffers() - before;
    let two = prepared.bind(&bound, &HashMap::new()).unwrap();
    assert_eq!(buffers() - before, 2 * of_one - 1);
    // The weight and its copy.
    assert_eq!(one.stats().weight_bytes, 2 * 4 * 280);
    assert_eq!(plan_memory(&graph, device.caps().unwrap()).unwrap().weights, 2 * 4 * 280);
    let bound = weights(device, &second);
    let before = buffers();
    let other = prepared.bind(&bound, &HashMap::new()).unwrap();
    assert_eq!(buffers() - before, of_one);
    let with_x = |weights: &Inputs, seed: u64| Inputs {
        inputs: random_inputs(&graph, seed).inputs,
        ..weights.clone()
    };
    for seed in [4, 5] {
        check(&one, &graph, &with_x(&first, seed));
        check(&two, &graph, &with_x(&first, seed + 10));
        check(&other, &graph, &with_x(&second, seed + 20));
    }
}

/// Copies are forgotten with their executables: memory that is used again for another weight has another copy.
#[test]
fn a_new_weight_has_a_new_copy() {
    let Some(device) = device() else { return };
    let graph = graph(true);
    let prepared = device.prepare(&graph).unwrap();
    for seed in 1..8 {
        let inputs = random_inputs(&graph, seed);
        let bound = weights(&device, &inputs);
        let executable = prepared.bind(&bound, &HashMap::new()).unwrap();
        drop(bound);
        check(&executable, &graph, &inputs);
    }
}

#[test]
fn a_missing_weight_is_an_error() {
    let Some(device) = device() else { return };
    let prepared = device.prepare(&graph(true)).unwrap();
    let error = prepared.bind(&HashMap::new(), &HashMap::new()).unwrap_err().to_string();
    assert!(error.contains("\"w\"") || error.contains("'w'"), "{error}");
}

/// A kernel that adds `COUNT` numbers to as many others.
fn adding() -> CustomKernel {
    CustomKernel::glsl(
        "add",
        "#version 450
        layout(local_size_x = 8) in;
        layout(set = 0, binding = 0) readonly buffer X { float x[]; };
        layout(set = 0, binding = 1) readonly buffer W { float w[]; };
        layout(set = 0, binding = 2) writeonly buffer Y { float y[]; };
        void main() {
            uint i = gl_GlobalInvocationID.x;
            if (i < 512) { y[i] = x[i] + w[i]; }
        }",
    )
    .input(DType::F32)
    .input(DType::F32)
    .output(DType::F32)
    .workgroup([8, 1, 1])
    .build()
    .unwrap()
}

/// Rows and columns of captured tensors: large enough to be overwritten in place.
const CAPTURED: (usize, usize) = (16, 32);
const COUNT: usize = CAPTURED.0 * CAPTURED.1;

/// `x + w^T` as a custom kernel, which reads a copy of the captured tensor.
fn added(device: &Device, add: &CustomKernel, w: &Tensor) -> Function {
    let (rows, columns) = CAPTURED;
    compile(device, &[Input::new("x", DType::F32, (columns, rows))], |x| {
        let call = add.call(&[&x[0], &w.t()?]).output(x[0].shape());
        Ok(vec![call.invocations([COUNT.into(), 1.into(), 1.into()]).one()?])
    })
    .unwrap()
}

/// The numbers from 0 on times a factor, transposed.
fn transposed(factor: f32) -> Vec<Vec<f32>> {
    let (rows, columns) = CAPTURED;
    (0..columns).map(|c| (0..rows).map(|r| factor * (r * columns + c) as f32).collect()).collect()
}

fn numbers(device: &Device, factor: f64) -> Tensor {
    let all = Tensor::arange(0f32, COUNT as f32, device).unwrap();
    let scaled = all.reshape(CAPTURED).unwrap().affine(factor, 0.0).unwrap();
    tallow::eval(&[&scaled]).unwrap();
    scaled
}

/// A function keeps what it captured, although the tensor goes on and may be overwritten.
#[test]
fn functions_keep_copies_of_what_they_captured() {
    let Some(device) = device() else { return };
    let add = adding();
    let mut w = numbers(&device, 10.0);
    let f = added(&device, &add, &w);
    assert!(f.explain().unwrap().contains("is copied from"), "{}", f.explain().unwrap());
    let x = Tensor::zeros((CAPTURED.1, CAPTURED.0), DType::F32, &device).unwrap();
    for _ in 0..3 {
        assert_eq!(f.run(&[&x]).unwrap()[0].to_vec2::<f32>().unwrap(), transposed(10.0));
        w = w.affine(2.0, 0.0).unwrap();
        tallow::eval(&[&w]).unwrap();
    }
    assert_eq!(f.executable().unwrap().stats().dispatches, 1);
    let g = added(&device, &add, &w);
    assert_eq!(g.run(&[&x]).unwrap()[0].to_vec2::<f32>().unwrap(), transposed(80.0));
    assert_eq!(f.run(&[&x]).unwrap()[0].to_vec2::<f32>().unwrap(), transposed(10.0));
    let lazy = add.call(&[&x, &w.t().unwrap()]).output(x.shape());
    let lazy = lazy.invocations([COUNT.into(), 1.into(), 1.into()]).one().unwrap();
    assert_eq!(lazy.to_vec2::<f32>().unwrap(), transposed(80.0));
}

/// A tensor that is overwritten in place after the functions that copied it are gone is copied again.
#[test]
fn copies_are_not_older_than_what_they_copy() {
    let Some(device) = device() else { return };
    let add = adding();
    let mut w = numbers(&device, 1.0);
    let x = Tensor::zeros((CAPTURED.1, CAPTURED.0), DType::F32, &device).unwrap();
    let mut factor = 1.0;
    for _ in 0..4 {
        let f = added(&device, &add, &w);
        assert_eq!(f.run(&[&x]).unwrap()[0].to_vec2::<f32>().unwrap(), transposed(factor));
        drop(f);
        w = w.affine(2.0, 0.0).unwrap();
        tallow::eval(&[&w]).unwrap();
        factor *= 2.0;
    }
}
