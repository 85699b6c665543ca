//! Layers against those of `candle_nn`, and quantized products against dequantized ones.

use std::sync::Arc;

use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{D, DType, Module, Tensor};
use candle_nn::{Conv1dConfig, Conv2dConfig, VarBuilder, VarMap};
use tallow_candle::nn;

use crate::support::{Numbers, devices, distance, values};

/// f32 sums of some hundred terms in another order.
const ROUNDINGS: f64 = 1e-5;

#[test]
fn quantized_products_of_every_format() {
    let weights = Numbers(8).tensor(&[40, 512]);
    let formats = [
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
    for device in devices() {
        for format in formats {
            let weight = QTensor::quantize(&weights, format).unwrap();
            let exact = weight.dequantize(&candle_core::Device::Cpu).unwrap();
            let layer = nn::QMatMul::on(&weight, &device).unwrap();
            for dims in [&[1, 512][..], &[2, 5, 512], &[1, 1, 17, 512], &[512], &[0, 512]] {
                let x = Numbers(9).tensor(dims);
                let expected = match dims {
                    [512] => exact.matmul(&x.unsqueeze(1).unwrap()).unwrap().squeeze(1).unwrap(),
                    [0, _] => Tensor::zeros((0, 40), DType::F32, &candle_core::Device::Cpu).unwrap(),
                    _ => x.broadcast_matmul(&exact.t().unwrap()).unwrap(),
                };
                assert!(
                    distance(&layer.forward(&x).unwrap(), &expected) < ROUNDINGS,
                    "{format:?} {dims:?} {device}"
                );
            }
            // Any strides, and types that the product is rounded to: by 2^-9 at most for bf16.
            let x = Numbers(10).tensor(&[512, 3]).t().unwrap();
            let expected = x.matmul(&exact.t().unwrap()).unwrap();
            for (ty, bound) in [(DType::F32, ROUNDINGS), (DType::F16, 2e-3), (DType::BF16, 2e-2)] {
                let got = layer.forward(&x.to_dtype(ty).unwrap()).unwrap();
                assert_eq!(got.dtype(), ty);
                assert!(distance(&got.to_dtype(DType::F32).unwrap(), &expected) < bound, "{format:?} {ty:?}");
            }
            let ids = Tensor::new(&[[39u32, 0], [7, 7]], &candle_core::Device::Cpu).unwrap();
            let rows =
                exact.index_select(&ids.flatten_all().unwrap(), 0).unwrap().reshape((2, 2, 512)).unwrap();
            assert_eq!(values(&layer.embedding(&ids).unwrap()), values(&rows), "{format:?} {device}");
        }
    }
    // Candle's constructors, on the process's device.
    let weight = || QTensor::quantize(&weights, GgmlDType::Q4K).unwrap();
    let x = Numbers(9).tensor(&[2, 512]);
    let one = nn::QMatMul::from_qtensor(weight()).unwrap().forward(&x).unwrap();
    let other = nn::QMatMul::from_arc(Arc::new(weight())).unwrap().forward(&x).unwrap();
    assert_eq!(values(&one), values(&other));
}

/// A builder of random weights, which makes them as layers ask.
fn builder(dtype: DType) -> (VarMap, VarBuilder<'static>) {
    let map = VarMap::new();
    let vb = VarBuilder::from_varmap(&map, dtype, &candle_core::Device::Cpu);
    (map, vb)
}

#[test]
fn layers_from_a_builder_are_those_of_candle() {
    // f16 and bf16 round each step by 2^-11 and 2^-8, in places that fusion may leave out.
    for (ty, bound) in [(DType::F32, ROUNDINGS), (DType::F16, 4e-3), (DType::BF16, 3e-2)] {
        let (_map, vb) = builder(ty);
        let cast = |x: Tensor| x.to_dtype(ty).unwrap();
        let check = |name: &str, ours: &dyn Module, candle: &dyn Module, x: &Tensor| {
            let got = ours.forward(x).unwrap();
            assert_eq!(got.dtype(), ty, "{name}");
            let expected = match candle.forward(x) {
                // Candle's CPU lacks some products of bf16, which ones depends on its version.
                Err(error) if ty == DType::BF16 && error.to_string().contains("BF16") => return,
                expected => expected.unwrap(),
            };
            let wide = |t: Tensor| t.to_dtype(DType::F32).unwrap();
            let apart = distance(&wide(got), &wide(expected));
            assert!(apart < bound, "{name} {ty:?} {:?}: {apart}", x.dims());
        };
        for dims in [&[3, 20][..], &[2, 7, 20], &[1, 20]] {
            let x = cast(Numbers(12).tensor(dims));
            check(
                "linear",
                &nn::linear(20, 11, vb.pp("a")).unwrap(),
                &candle_nn::linear(20, 11, vb.pp("a")).unwrap(),
                &x,
            );
            let (ours, candle) =
                (nn::linear_no_bias(20, 3, vb.pp("b")), candle_nn::linear_no_bias(20, 3, vb.pp("b")));
            check("linear_no_bias", &ours.unwrap(), &candle.unwrap(), &x);
            let (ours, candle) =
                (nn::layer_norm(20, 1e-5, vb.pp("c")), candle_nn::layer_norm(20, 1e-5, vb.pp("c")));
            check("layer_norm", &ours.unwrap(), &candle.unwrap(), &x);
            let (ours, candle) =
                (nn::rms_norm(20, 1e-6, vb.pp("d")), candle_nn::rms_norm(20, 1e-6, vb.pp("d")));
            check("rms_norm", &ours.unwrap(), &candle.unwrap(), &x);
        }
        let ids = Tensor::new(&[[4u32, 0, 8], [1, 1, 3]], &candle_core::Device::Cpu).unwrap();
        let (ours, candle) = (nn::embedding(9, 5, vb.pp("e")), candle_nn::embedding(9, 5, vb.pp("e")));
        check("embedding", &ours.unwrap(), &candle.unwrap(), &ids);

        let config = Conv1dConfig { padding: 2, stride: 2, groups: 2, ..Conv1dConfig::default() };
        let x = cast(Numbers(13).tensor(&[2, 4, 15]));
        let (ours, candle) =
            (nn::conv1d(4, 6, 3, config, vb.pp("f")), candle_nn::conv1d(4, 6, 3, config, vb.pp("f")));
        check("conv1d", &ours.unwrap(), &candle.unwrap(), &x);
        let config = Conv2dConfig { padding: 1, dilation: 2, ..Conv2dConfig::default() };
        let x = cast(Numbers(14).tensor(&[1, 3, 9, 8]));
        let (ours, candle) =
            (nn::conv2d(3, 5, 3, config, vb.pp("g")), candle_nn::conv2d(3, 5, 3, config, vb.pp("g")));
        check("conv2d", &ours.unwrap(), &candle.unwrap(), &x);
    }
}

#[test]
fn a_gradient_through_a_layer_is_an_error() {
    let x = candle_core::Var::from_tensor(&Numbers(1).tensor(&[2, 4])).unwrap();
    let layer = nn::Linear::on(&Numbers(2).tensor(&[3, 4]), None, &tallow::Device::Cpu).unwrap();
    let loss = layer.forward(x.as_tensor()).unwrap().sum_all().unwrap();
    assert!(loss.backward().unwrap_err().to_string().contains("linear"));
}

#[test]
fn many_lengths_are_few_graphs() {
    for device in devices() {
        let weight = Numbers(2).tensor(&[3, 4]);
        let layer = nn::Linear::on(&weight, None, &device).unwrap();
        for rows in [1, 9, 10, 15, 16, 33, 64, 63, 2] {
            let x = Numbers(rows as u64).tensor(&[rows, 4]);
            let expected = x.matmul(&weight.t().unwrap()).unwrap();
            assert!(distance(&layer.forward(&x).unwrap(), &expected) < ROUNDINGS);
            assert_eq!(layer.forward(&x).unwrap().dim(D::Minus1).unwrap(), 3);
        }
    }
}
