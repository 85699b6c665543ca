//! Copies of weights in another order: made once for each weight, not in each run, shared by executables, never stale.
//! (A custom kernel reads its operands in the order of their axes, so what it reads of a permuted weight is a copy.)

use std::collections::HashMap;

use tallow::{CustomKernel, DType, Device, Input, Tensor, Weight, compile, plan_memory};
use tallow_ir::{Custom, Graph, Op};
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

/// A function keeps what it captured, although the tensor goes on and may be overwritten.
#[test]
fn functions_keep_copies_of_what_they_captured() {
    let Some(device) = device() else { return };
    let add = CustomKernel::glsl(
        "add",
        "#version 450
        layout(local_size_x = 8) in;
        layout(set = 0, binding = 0) readonly buffer X { float x[]; };
        layout(set = 0, binding = 1) readonly buffer W { float w[]; };
        layout(set = 0, binding = 2) writeonly buffer Y { float y[]; };
        void main() {
            uint i = gl_GlobalInvocationID.x;
            if (i < 6) { y[i] = x[i] + w[i]; }
        }",
    )
    .input(DType::F32)
    .input(DType::F32)
    .output(DType::F32)
    .workgroup([8, 1, 1])
    .build()
    .unwrap();
    let data =
        |by: f32| Tensor::new([[1f32, 2.0, 3.0], [4.0, 5.0, 6.0]], &device).unwrap().affine(by.into(), 0.0);
    let mut w = data(10.0).unwrap();
    let made = |w: &Tensor| {
        compile(&device, &[Input::new("x", DType::F32, (3, 2))], |x| {
            let call = add.call(&[&x[0], &w.t()?]).output(x[0].shape());
            Ok(vec![call.invocations([8.into(), 1.into(), 1.into()]).one()?])
        })
        .unwrap()
    };
    let f = made(&w);
    assert!(f.explain().unwrap().contains("is copied from"), "{}", f.explain().unwrap());
    let x = Tensor::zeros((3, 2), DType::F32, &device).unwrap();
    let ten = vec![vec![10f32, 40.0], vec![20.0, 50.0], vec![30.0, 60.0]];
    for _ in 0..3 {
        assert_eq!(f.run(&[&x]).unwrap()[0].to_vec2::<f32>().unwrap(), ten);
        w = w.affine(2.0, 0.0).unwrap();
        tallow::eval(&[&w]).unwrap();
    }
    assert_eq!(f.executable().unwrap().stats().dispatches, 1);
    let g = made(&w);
    let eighty: Vec<Vec<f32>> = ten.iter().map(|row| row.iter().map(|v| 8.0 * v).collect()).collect();
    assert_eq!(g.run(&[&x]).unwrap()[0].to_vec2::<f32>().unwrap(), eighty);
    assert_eq!(f.run(&[&x]).unwrap()[0].to_vec2::<f32>().unwrap(), ten);
    let lazy = add.call(&[&x, &w.t().unwrap()]).output(x.shape()).invocations([8.into(), 1.into(), 1.into()]);
    assert_eq!(lazy.one().unwrap().to_vec2::<f32>().unwrap(), eighty);
}
