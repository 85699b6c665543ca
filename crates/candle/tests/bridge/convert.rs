//! Tensors there and back: every element type, every kind of view, bit for bit.

use candle_core::Tensor;
use tallow_candle::{candle_dtype, dtype, to_candle, to_resident, to_tallow};

use crate::support::{DTYPES, devices, values, views};

#[test]
fn every_view_of_every_type_comes_back() {
    for device in devices() {
        for ty in DTYPES {
            assert_eq!(candle_dtype(dtype(ty).unwrap()).unwrap(), ty);
            for (name, view) in views(ty) {
                let expected = values(&view);
                let there = to_tallow(&view, &device).unwrap();
                assert_eq!(there.dims(), view.dims());
                for there in [there, to_resident(&view, &device).unwrap()] {
                    let back = to_candle(&there).unwrap();
                    assert_eq!((back.dims(), back.dtype()), (view.dims(), ty));
                    assert_eq!(values(&back), expected, "{name} of {ty:?} on {device}");
                }
            }
        }
    }
}

#[test]
fn a_result_is_computed_on_the_way() {
    for device in devices() {
        let x = Tensor::new(&[[1f32, -2.0], [3.0, -4.0]], &candle_core::Device::Cpu).unwrap();
        let w = to_resident(&x.t().unwrap(), &device).unwrap();
        let y = to_tallow(&x, &device).unwrap().matmul(&w).unwrap();
        assert_eq!(to_candle(&y).unwrap().to_vec2::<f32>().unwrap(), [[5.0, 11.0], [11.0, 25.0]]);
    }
}

#[test]
fn what_candle_cannot_hold_is_an_error() {
    let row = tallow::Tensor::zeros(32, tallow::DType::F32, &tallow::Device::Cpu).unwrap();
    let blocks = row.quantize(tallow::Format::Q8_0).unwrap();
    assert!(to_candle(&blocks).unwrap_err().to_string().contains("dequantize"));
    assert!(dtype(candle_core::DType::F4).is_err());
}
