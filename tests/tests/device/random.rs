//! Random draws on the device are those of the interpreter.

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
