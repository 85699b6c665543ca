//! Candle's own quantized models, unmodified, with every product intercepted.

use std::io::Cursor;
use std::sync::Arc;

use candle_core::quantized::{GgmlDType, QMatMul, QTensor, gguf_file};
use candle_core::{Module, Tensor};
use candle_transformers::models::quantized_llama::ModelWeights;
use tallow_candle::quantized::Interceptor;

use crate::support::{Numbers, devices, distance, fastest, nmse, values};

/// Formats that Candle quantizes to.
const FORMATS: [GgmlDType; 10] = [
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

/// f32 products of 512 terms in another order.
const ROUNDINGS: f64 = 1e-5;

#[test]
fn every_format_is_intercepted_for_one_row_and_many() {
    let weights = Numbers(5).tensor(&[64, 512]);
    for device in devices() {
        for format in FORMATS {
            let interceptor = Interceptor::new(&device);
            let weight = QTensor::quantize(&weights, format).unwrap();
            let exact = weight.dequantize(&candle_core::Device::Cpu).unwrap();
            let wrapped = Arc::new(interceptor.wrap(&weight).unwrap());
            let layer = QMatMul::from_arc(wrapped.clone()).unwrap();
            for (n, dims) in [&[1, 512][..], &[2, 3, 512], &[20, 512]].into_iter().enumerate() {
                let x = Numbers(6).tensor(dims);
                let got = layer.forward(&x).unwrap();
                let expected = x.broadcast_matmul(&exact.t().unwrap()).unwrap();
                assert!(distance(&got, &expected) < ROUNDINGS, "{format:?} {dims:?} {device}");
                // Candle has kernels of its own for some of these formats, which would miss the device.
                assert_eq!(interceptor.matmuls(), n + 1, "{format:?} {dims:?} {device}");
            }
            let half = Numbers(6).tensor(&[2, 512]).to_dtype(candle_core::DType::F16).unwrap();
            let expected =
                half.to_dtype(candle_core::DType::F32).unwrap().matmul(&exact.t().unwrap()).unwrap();
            let got = layer.forward(&half).unwrap().to_dtype(candle_core::DType::F32).unwrap();
            // One rounding to f16: 2^-11.
            assert!(distance(&got, &expected) < 5e-4 && interceptor.matmuls() == 4);

            assert_eq!(values(&wrapped.dequantize(&candle_core::Device::Cpu).unwrap()), values(&exact));
            let ids = Tensor::new(&[[3u32, 0], [63, 3]], &candle_core::Device::Cpu).unwrap();
            let rows =
                exact.index_select(&ids.flatten_all().unwrap(), 0).unwrap().reshape((2, 2, 512)).unwrap();
            assert_eq!(values(&wrapped.embedding(&ids).unwrap()), values(&rows));
            let beyond = Tensor::new(&[64u32], &candle_core::Device::Cpu).unwrap();
            assert!(wrapped.embedding(&beyond).is_err());
            // What says to be of another format gives nobody its bytes.
            assert!(wrapped.data().unwrap().is_empty() && interceptor.wrap(&wrapped).is_err());
        }
    }
}

/// The content of a model's file as `from_ggml` takes it, and the number of its matrices.
fn file(name: &str, interceptor: &Interceptor) -> (ModelWeights, usize) {
    let bytes = std::fs::read(tallow_testmodels::model(name)).unwrap();
    let content = gguf_file::Content::read(&mut Cursor::new(&bytes)).unwrap();
    let layers = content.metadata["llama.block_count"].to_u32().unwrap() as usize;
    let (content, groups) = interceptor.ggml_content(&content, &mut Cursor::new(&bytes)).unwrap();
    (ModelWeights::from_ggml(content, groups).unwrap(), 7 * layers + 1)
}

/// Candle's own `quantized_llama` runs unmodified, each of its products on the device, for a prompt and for steps.
#[test]
fn candles_model_code_runs_unmodified() {
    // The mix has matrices of Q4_K and Q6_K, which Candle would multiply by itself.
    for name in ["storyteller-nano-Q4_K_M", "storyteller-nano-Q4_0"] {
        let interceptor = Interceptor::new(&fastest());
        let (mut model, matrices) = file(name, &interceptor);
        let mut exact = crate::models::exact(name);
        let prompt = [1u32, 9, 4, 27, 300, 5];
        let (mut at, mut tokens) = (0, prompt.to_vec());
        for step in 1..=6 {
            let x = Tensor::new(&tokens[..], &candle_core::Device::Cpu).unwrap().unsqueeze(0).unwrap();
            let got = model.forward(&x, at).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
            let expected = exact.forward(&x, at).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
            let error = nmse(&got, &expected);
            assert!(error < 1e-9, "{name}: NMSE {error}");
            assert_eq!(interceptor.matmuls(), matrices * step, "{name}: a product was not intercepted");
            at += tokens.len();
            tokens = vec![crate::models::greedy(&got)];
        }
    }
}
