//! Random draws on the device are those of the interpreter, also those of compiled functions.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tallow::nn::{dropout, sampling};
use tallow::{DType, Device, Function, Input, State, Symbol, Tensor, compile};

use crate::harness::device;

/// The sequence is one for the process, so that tests take turns.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn draws_are_the_interpreters() {
    let Some(device) = device() else { return };
    let _turn = turn();
    let draws = |d: &Device| {
        d.set_seed(11).unwrap();
        let even = Tensor::rand(0f32, 1.0, (33, 7), d).unwrap().flatten_all().unwrap();
        let normal = Tensor::randn(0f32, 1.0, 5000, d).unwrap();
        (even.to_vec1::<f32>().unwrap(), normal.to_vec1::<f32>().unwrap())
    };
    let ((even, normal), (want, wanted)) = (draws(&device), draws(&Device::Cpu));
    assert_eq!(even, want);
    // The bound that `randn` states; the logarithm and the cosine differ in their last places.
    let worst = normal.iter().zip(&wanted).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(worst < 1e-5, "{worst}");
}

/// Weights are whole numbers, so that running sums are exact; dropout only compares and multiplies once.
#[test]
fn choices_are_the_interpreters() {
    let Some(device) = device() else { return };
    let _turn = turn();
    let draws = |d: &Device| {
        d.set_seed(12).unwrap();
        let weights: Vec<f32> = (0..3 * 300).map(|i| (i * 7 % 11) as f32).collect();
        let weights = Tensor::from_vec(weights, (3, 300), d).unwrap();
        let chosen = sampling::multinomial(&weights, 70).unwrap();
        let left = dropout(&weights, 0.3).unwrap();
        (chosen.to_vec2::<u32>().unwrap(), left.to_vec2::<f32>().unwrap())
    };
    assert_eq!(draws(&device), draws(&Device::Cpu));
}

/// Noise is off by less than 1e-5, the bound of `randn`, whose logarithms these are; logits are at least a tenth apart,
/// but noise may bring two to within 2e-5. That happens to a pair of values with a density below 1/2 with probability
/// 4e-5 at most, so to one of 2000 choices of 10 with 2000 * 45 * 4e-5 = 3.6 expected in the worst case.
#[test]
fn gumbel_choices_are_nearly_always_the_interpreters() {
    let Some(device) = device() else { return };
    let _turn = turn();
    let draws = |d: &Device| {
        d.set_seed(13).unwrap();
        let logits: Vec<f32> = (0..20_000).map(|i| (i * 7 % 10) as f32 * 0.3).collect();
        let logits = Tensor::from_vec(logits, (2000, 10), d).unwrap();
        sampling::gumbel_softmax(&logits, 0.7, 1).unwrap().to_vec1::<u32>().unwrap()
    };
    let apart = draws(&device).iter().zip(draws(&Device::Cpu)).filter(|(a, b)| **a != *b).count();
    assert!(apart <= 12, "{apart} of 2000 choices differ");
}

fn flat(tensor: &Tensor) -> Vec<f32> {
    tensor.to_dtype(DType::F32).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

fn all(tensors: &[Tensor]) -> Vec<Vec<f32>> {
    tensors.iter().map(flat).collect()
}

/// Uniform numbers of awkward shapes; a draw that nothing reads; two of one shape; what follows a reduction.
fn uniform(device: &Device, x: &Tensor) -> tallow::Result<Vec<Tensor>> {
    let first = x.rand_like(-1.0, 1.0)?;
    Tensor::rand(0f32, 1.0, 3, device)?;
    let odd = Tensor::rand(0f32, 1.0, (13, 1, 257), device)?;
    let again = Tensor::rand(0f32, 1.0, (13, 1, 257), device)?;
    let one = Tensor::rand(0f32, 1.0, (), device)?;
    let empty = Tensor::rand(0f32, 1.0, (0, 3), device)?;
    let noise = Tensor::rand(0f32, 1.0, (5, 1), device)?.broadcast_as((5, 31))?;
    Ok(vec![first, odd, again, one, empty, noise, dropout(x, 0.5)?])
}

fn function_of_rows(device: &Device) -> Function {
    let x = Input::new("x", DType::F32, (Symbol::new("rows", 40), 33));
    compile(device, &[x], |x| uniform(device, &x[0])).unwrap()
}

/// Each run of a function draws what eager code draws on the CPU, also where the number of the draw wraps around.
#[test]
fn functions_draw_in_each_run() {
    let Some(device) = device() else { return };
    let _turn = turn();
    let function = function_of_rows(&device);
    for (before, rows) in [(0, 3), (0, 40), (u32::MAX - 3, 1), (u32::MAX, 7)] {
        let ones = |d: &Device| Tensor::ones((rows, 33), DType::F32, d).unwrap();
        let start = || {
            device.set_seed(77 << 33).unwrap();
            device.next_draws(before);
        };
        start();
        let x = ones(&device);
        let runs: Vec<_> = (0..3).map(|_| all(&function.run(&[&x]).unwrap())).collect();
        start();
        let x = ones(&Device::Cpu);
        let eager: Vec<_> = (0..3).map(|_| all(&uniform(&Device::Cpu, &x).unwrap())).collect();
        assert_eq!(runs, eager, "from draw {before}");
        assert_ne!(runs[0], runs[1]);
        assert_ne!(runs[0][1], runs[0][2]);
    }
}

/// The recorded executable, with and without waiting, and one that is made of the function's graph.
#[test]
fn executables_draw_in_each_run() {
    let Some(device) = device() else { return };
    let _turn = turn();
    let function = function_of_rows(&device);
    let x = Tensor::ones((6, 33), DType::F32, &Device::Cpu).unwrap();
    let bytes: Vec<u8> = flat(&x).iter().flat_map(|x| x.to_le_bytes()).collect();
    device.set_seed(78).unwrap();
    let eager: Vec<_> = (0..4).map(|_| all(&uniform(&Device::Cpu, &x).unwrap())).collect();
    let numbers = |bytes: &[u8]| -> Vec<f32> {
        bytes.chunks(4).map(|x| f32::from_le_bytes(x.try_into().unwrap())).collect()
    };
    let results = |outputs: tallow::Outputs| outputs.iter().map(|o| numbers(&o.bytes)).collect::<Vec<_>>();
    let (rows, inputs): (_, [(&str, &[u8]); 1]) = (("rows", 6), [("x", &bytes)]);
    device.set_seed(78).unwrap();
    let executable = function.executable().unwrap();
    assert_eq!(results(executable.run(&[rows], &inputs).unwrap()), eager[0]);
    assert_eq!(results(executable.run_async(&[rows], &inputs).unwrap().wait().unwrap()), eager[1]);
    let mut seen = vec![];
    let mut write = |_: usize, to: &mut [u8]| {
        to.copy_from_slice(&bytes);
        Ok(())
    };
    let types: [(DType, &[usize]); 1] = [(DType::F32, &[6, 33])];
    function.run_with(&types, &mut write, &mut |output| seen.push(numbers(output.bytes))).unwrap();
    assert_eq!(seen, eager[2]);
    let other = device.compile(function.graph(), &HashMap::new(), &HashMap::new()).unwrap();
    let [key, draw] = device.next_draws(function.draws());
    assert_eq!(results(other.run(&[rows, key, draw], &inputs).unwrap()), eager[3]);
}

/// A step that updates a state, and normal numbers, which differ in their last places.
#[test]
fn steps_with_states_draw_in_each_run() {
    let Some(device) = device() else { return };
    let _turn = turn();
    let step = |d: &Device| {
        let sum = State::zeros((7, 65), DType::F32, d).unwrap();
        let function = compile(d, &[], |_| {
            let left = dropout(&Tensor::ones((7, 65), DType::F32, d)?, 0.5)?;
            sum.set(&sum.read()?.add(&left)?)?;
            Ok(vec![Tensor::randn(0f32, 1.0, (3, 333), d)?])
        });
        let function = function.unwrap();
        d.set_seed(79).unwrap();
        let normal: Vec<_> = (0..5).map(|_| flat(&function.run(&[]).unwrap()[0])).collect();
        (normal, flat(&sum.read().unwrap()))
    };
    let ((normal, sum), (want, expected)) = (step(&device), step(&Device::Cpu));
    assert_eq!(sum, expected);
    assert!(sum.iter().any(|n| *n > 0.0 && *n < 10.0));
    for (got, want) in normal.iter().zip(&want) {
        let worst = got.iter().zip(want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst < 1e-5, "{worst}");
    }
    assert_ne!(normal[0], normal[1]);
}

/// What is drawn on the CPU while a function for the device is compiled is data, as it is outside.
#[test]
fn draws_of_another_device_are_data() {
    let Some(device) = device() else { return };
    let _turn = turn();
    let build = || Ok(vec![Tensor::rand(0f32, 1.0, 9, &Device::Cpu)?.to_device(&device)?]);
    let function = compile(&device, &[], |_| build()).unwrap();
    assert_eq!(function.draws(), 0);
    assert_eq!(all(&function.run(&[]).unwrap()), all(&function.run(&[]).unwrap()));
}
