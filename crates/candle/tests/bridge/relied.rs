//! What the bridge relies on in Candle beyond its types: each of these fails loudly when Candle changes it.

use candle_core::quantized::{GgmlDType, QMatMul, QStorage, QTensor};
use candle_core::{Device, Module, Tensor};

use crate::support::{Numbers, values};

/// The versions that `scripts/candle_range.sh` has tested, the ends of the range.
const TESTED: [&str; 2] = ["0.11.0", "0.11.1"];

const WEIGHTS: [GgmlDType; 13] = [
    GgmlDType::F32,
    GgmlDType::F16,
    GgmlDType::BF16,
    GgmlDType::Q4_0,
    GgmlDType::Q4_1,
    GgmlDType::Q5_0,
    GgmlDType::Q5_1,
    GgmlDType::Q8_0,
    GgmlDType::Q2K,
    GgmlDType::Q3K,
    GgmlDType::Q4K,
    GgmlDType::Q5K,
    GgmlDType::Q6K,
];

#[test]
fn the_locked_version_was_tested() {
    let lock = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.lock")).unwrap();
    for package in ["candle-core", "candle-nn", "candle-transformers"] {
        let (_, after) = lock.split_once(&format!("name = \"{package}\"\nversion = \"")).unwrap();
        let version = after.split('"').next().unwrap();
        assert!(
            TESTED.contains(&version),
            "{package} {version} is not among {TESTED:?}: run scripts/candle_range.sh, then name it here and in docs/candle.md"
        );
    }
}

/// `QTensor::data` gives the blocks of a GGUF file, with the very values that Candle gives them.
#[test]
fn data_is_what_files_hold() {
    let x = Numbers(3).tensor(&[4, 512]);
    for format in WEIGHTS {
        let quantized = QTensor::quantize(&x, format).unwrap();
        let data = quantized.data().unwrap();
        assert_eq!(data.len(), 4 * 512 / format.block_size() * format.type_size(), "{format:?}");
        let expected = values(&quantized.dequantize(&Device::Cpu).unwrap());
        let ids = Tensor::arange(0u32, 4, &Device::Cpu).unwrap();
        let layer = tallow_candle::nn::QMatMul::on(&quantized, &tallow::Device::Cpu).unwrap();
        assert_eq!(values(&layer.embedding(&ids).unwrap()), expected, "{format:?}");
    }
}

/// Storage of anybody's own is accepted, and `QMatMul` calls it for one row and for many, in f32 and f16, whatever
/// Candle's own kernels are; what says to be of a plain type is dequantized instead.
#[test]
fn storage_of_ones_own_is_called() {
    let interceptor = tallow_candle::quantized::Interceptor::new(&tallow::Device::Cpu);
    let x = Numbers(3).tensor(&[8, 256]);
    for (calls, format) in
        [GgmlDType::Q4K, GgmlDType::Q6K, GgmlDType::Q8_0, GgmlDType::F16].into_iter().enumerate()
    {
        let wrapped = interceptor.wrap(&QTensor::quantize(&x, format).unwrap()).unwrap();
        let QMatMul::QTensor(layer) = QMatMul::from_qtensor(wrapped).unwrap() else {
            panic!("Candle dequantized a wrapped tensor of {format:?}");
        };
        for rows in [1, 16] {
            let before = interceptor.matmuls();
            let y = QMatMul::QTensor(layer.clone()).forward(&Numbers(4).tensor(&[rows, 256])).unwrap();
            assert_eq!((y.dims(), interceptor.matmuls()), (&[rows, 8][..], before + 1), "{calls} {format:?}");
        }
    }
    let plain = QStorage::from_data(vec![0u8; 64].into(), &Device::Cpu, GgmlDType::F32).unwrap();
    let plain = QTensor::new(plain, (4, 4)).unwrap();
    assert!(matches!(QMatMul::from_qtensor(plain).unwrap(), QMatMul::Tensor(_)));
}

/// An op sees the operand's own storage and layout: no copy was made on the way.
#[test]
fn ops_see_storage_as_it_lies() {
    struct Layouts;
    impl candle_core::CustomOp1 for Layouts {
        fn name(&self) -> &'static str {
            "layouts"
        }

        fn cpu_fwd(
            &self,
            storage: &candle_core::CpuStorage,
            layout: &candle_core::Layout,
        ) -> candle_core::Result<(candle_core::CpuStorage, candle_core::Shape)> {
            assert_eq!((layout.stride(), layout.start_offset()), (&[1, 6][..], 7));
            assert_eq!(storage.as_slice::<f32>()?.len(), 24);
            Ok((candle_core::CpuStorage::F32(vec![]), 0.into()))
        }
    }
    let x = Tensor::arange(0f32, 24.0, &Device::Cpu).unwrap().reshape((4, 6)).unwrap();
    let part = x.narrow(0, 1, 2).unwrap().narrow(1, 1, 3).unwrap().t().unwrap();
    part.apply_op1_no_bwd(&Layouts).unwrap();
}
