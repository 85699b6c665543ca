//! Random draws on the device are those of the interpreter.

use tallow::nn::{dropout, sampling};
use tallow::{Device, Tensor};

use crate::harness::device;

#[test]
fn draws_are_the_interpreters() {
    let Some(device) = device() else { return };
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
    let draws = |d: &Device| {
        d.set_seed(13).unwrap();
        let logits: Vec<f32> = (0..20_000).map(|i| (i * 7 % 10) as f32 * 0.3).collect();
        let logits = Tensor::from_vec(logits, (2000, 10), d).unwrap();
        sampling::gumbel_softmax(&logits, 0.7, 1).unwrap().to_vec1::<u32>().unwrap()
    };
    let apart = draws(&device).iter().zip(draws(&Device::Cpu)).filter(|(a, b)| **a != *b).count();
    assert!(apart <= 12, "{apart} of 2000 choices differ");
}
