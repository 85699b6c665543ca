//! Updates in place, seen by the memory that they take. (Programs of other tests in this process are few enough that none is
//! compiled again.)

use tallow::{DType, Device, State, Tensor, eval};
use tallow_tests::device::own_devices as devices;

/// A loop that updates a state and reads the result holds the state alone, copies nothing, and compiles once.
#[test]
fn updates_are_in_place() {
    for device in devices() {
        let state = State::zeros((64, 4096), DType::F32, &device).unwrap();
        let Device::Vulkan(vulkan) = &device else { panic!("{device} is no Vulkan device") };
        let (mut in_use, mut pipelines) = (0, 0);
        for at in 0..40 {
            let row = Tensor::full(at as f32, (1, 4096), &device).unwrap();
            state.slice_set(&row, 0, at).unwrap();
            let sum = state.read().unwrap().sum_all().unwrap().to_scalar::<f32>().unwrap();
            assert_eq!(sum, (0..=at).sum::<usize>() as f32 * 4096.0);
            // All command buffers have been used once by then.
            if at == 20 {
                in_use = device.memory().unwrap().in_use;
                pipelines = vulkan.work_done().1;
            }
        }
        assert_eq!(device.memory().unwrap().in_use, in_use);
        assert_eq!(vulkan.work_done().1, pipelines);
        // A copy would have left a second block of the state's size behind.
        let cached = device.memory().unwrap().cached;
        assert!(cached < 64 * 4096 * 4, "{cached} bytes are cached");
    }
}

/// `x = f(x)` overwrites `x`, but not where somebody holds it.
#[test]
fn elementwise_chains_are_in_place() {
    for device in devices() {
        let n = 1 << 20;
        let mut x =
            Tensor::from_vec((0..n).map(|i| i as f32).collect::<Vec<_>>(), n as usize, &device).unwrap();
        eval(&[&x]).unwrap();
        let step = |x: &Tensor| (x * 2.0).unwrap().affine(0.5, 1.0).unwrap();
        for _ in 0..5 {
            x = step(&x);
            eval(&[&x]).unwrap();
        }
        // The cache may hold nothing of this size then.
        let cached = device.memory().unwrap().cached;
        assert!(cached < 4 << 20, "{cached} bytes are cached");
        let held = x.clone();
        let y = step(&x);
        drop(x);
        eval(&[&y]).unwrap();
        assert_eq!(held.get(7).unwrap().to_scalar::<f32>().unwrap(), 12.0);
        assert_eq!(y.get(7).unwrap().to_scalar::<f32>().unwrap(), 13.0);
        // An expression that is still to be computed needs its operand.
        let later = (&y * 10.0).unwrap();
        let z = step(&y);
        drop(y);
        eval(&[&z]).unwrap();
        assert_eq!(later.get(7).unwrap().to_scalar::<f32>().unwrap(), 130.0);
    }
}
