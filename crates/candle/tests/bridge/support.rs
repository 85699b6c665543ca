//! Devices, tensors of random numbers, and how far two tensors are apart.

use std::cell::OnceCell;
use std::sync::OnceLock;

use candle_core::{DType, Tensor};
use tallow::Device;

/// The interpreter, and the Vulkan device if there is one (`REQUIRE_VULKAN=1`: there must be).
pub fn devices() -> Vec<Device> {
    let mut devices = vec![Device::Cpu];
    devices.extend(vulkan());
    devices
}

/// The Vulkan device, opened once; of a software device each test opens its own, since it runs what a device is given one after
/// the other on one core.
pub fn vulkan() -> Option<Device> {
    static SHARED: OnceLock<Option<Device>> = OnceLock::new();
    thread_local! { static PER_THREAD: OnceCell<Device> = const { OnceCell::new() } }
    let open = || match Device::best_vulkan() {
        Ok(device) => Some(device),
        Err(error) => {
            let required =
                std::env::var_os("REQUIRE_VULKAN").is_some_and(|v| v != "0") && cfg!(feature = "vulkan");
            assert!(!required, "REQUIRE_VULKAN is set: {error}");
            println!("skipped on Vulkan: {error}");
            None
        }
    };
    let shared = SHARED.get_or_init(open).clone()?;
    if shared.caps().is_some_and(|caps| caps.is_software()) {
        return Some(PER_THREAD.with(|cell| cell.get_or_init(|| Device::best_vulkan().unwrap()).clone()));
    }
    Some(shared)
}

/// The device for whole models: the fastest that there is.
pub fn fastest() -> Device {
    vulkan().unwrap_or(Device::Cpu)
}

/// A small generator of numbers, the same in each run (an LCG with the constants of Knuth's MMIX).
pub struct Numbers(pub u64);

impl Numbers {
    /// The next number in -1..1.
    pub fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    /// A tensor of numbers in -1..1.
    pub fn tensor(&mut self, dims: &[usize]) -> Tensor {
        let values: Vec<f32> = (0..dims.iter().product()).map(|_| self.next()).collect();
        Tensor::from_vec(values, dims, &candle_core::Device::Cpu).unwrap()
    }
}

/// The elements, row-major.
pub fn values(tensor: &Tensor) -> Vec<f64> {
    // By way of f32 where that is exact: Candle 0.11's cast from f8 to f64 calls itself without end.
    let wide = match tensor.dtype() {
        DType::F8E4M3 => tensor.to_dtype(DType::F32).unwrap(),
        _ => tensor.clone(),
    };
    wide.to_dtype(DType::F64).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

/// The largest distance of two elements, over the largest magnitude of those expected (or 1).
pub fn distance(got: &Tensor, expected: &Tensor) -> f64 {
    assert_eq!((got.dims(), got.dtype()), (expected.dims(), expected.dtype()));
    let (got, expected) = (values(got), values(expected));
    assert!(got.iter().all(|x| x.is_finite()), "a result that is no number");
    let largest = expected.iter().fold(1.0, |m: f64, x| m.max(x.abs()));
    got.iter().zip(&expected).fold(0.0, |m: f64, (a, b)| m.max((a - b).abs())) / largest
}

/// The sum of squared differences over that of squares.
pub fn nmse(got: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(got.len(), expected.len());
    let square = |x: f32| f64::from(x) * f64::from(x);
    let error: f64 = got.iter().zip(expected).map(|(a, b)| square(a - b)).sum();
    error / expected.iter().map(|x| square(*x)).sum::<f64>()
}

/// Views of a tensor of elements 0, 1, ..: contiguous, transposed, reversed in no way but strided, offset, broadcast,
/// with axes of 1 and of 0 elements, and a scalar.
pub fn views(dtype: DType) -> Vec<(&'static str, Tensor)> {
    let cpu = &candle_core::Device::Cpu;
    let base = Tensor::arange(0u32, 60, cpu).unwrap().to_dtype(DType::F32).unwrap().to_dtype(dtype).unwrap();
    let cube = base.reshape((3, 4, 5)).unwrap();
    let narrow = |t: &Tensor, axis, start, len| t.narrow(axis, start, len).unwrap();
    vec![
        ("contiguous", cube.clone()),
        ("offset", narrow(&cube, 0, 1, 2)),
        ("inner part", narrow(&narrow(&cube, 2, 1, 3), 1, 1, 2)),
        ("transposed", cube.t().unwrap()),
        ("permuted", cube.permute((2, 0, 1)).unwrap()),
        ("transposed part", narrow(&cube.transpose(0, 2).unwrap(), 1, 2, 2)),
        ("broadcast", narrow(&cube, 1, 2, 1).broadcast_as((3, 4, 5)).unwrap()),
        ("repeated scalar", base.get(7).unwrap().broadcast_as((2, 3)).unwrap()),
        ("scalar", base.get(59).unwrap()),
        ("axes of one", narrow(&cube, 1, 3, 1).unsqueeze(0).unwrap().transpose(1, 3).unwrap()),
        ("nothing", narrow(&cube, 1, 2, 0)),
    ]
}

/// The element types that both sides have.
pub const DTYPES: [DType; 10] = [
    DType::U8,
    DType::U32,
    DType::I16,
    DType::I32,
    DType::I64,
    DType::BF16,
    DType::F16,
    DType::F32,
    DType::F64,
    DType::F8E4M3,
];
