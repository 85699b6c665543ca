//! What cannot be done is Candle's error, and leaves tensors, ops and the device as they were.

use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device, Module, Tensor};
use candle_nn::Conv1dConfig;
use tallow_candle::{compile, nn};

use crate::support::{Numbers, devices, values, vulkan};

#[test]
fn shapes_and_types_that_do_not_fit() {
    let cpu = &Device::Cpu;
    let (x, y) = (Numbers(1).tensor(&[2, 3]), Numbers(2).tensor(&[2, 4]));
    for device in devices() {
        let op = compile(|[x, y]| x.matmul(y)).named("product").on(&device);
        let error = x.apply_op2(&y, op.clone()).unwrap_err().to_string();
        assert!(error.contains("matmul") && error.contains("[2,3]") && error.contains("[2,4]"), "{error}");
        let whole = y.to_dtype(candle_core::DType::U32).unwrap().t().unwrap().narrow(0, 0, 3).unwrap();
        let error = x.apply_op2(&whole, op.clone()).unwrap_err().to_string();
        assert!(error.contains("u32") && error.contains("f32"), "{error}");
        assert!(op.call(&[&x]).unwrap_err().to_string().contains("takes 2 tensors"));
        // The same op works after its errors.
        let z = x.apply_op2(&y.t().unwrap().narrow(0, 0, 3).unwrap(), op).unwrap();
        assert_eq!(z.dims(), [2, 2]);

        // An error of the function itself.
        let op = compile(|[_]: &[tallow::Tensor; 1]| -> tallow::Result<tallow::Tensor> {
            Err(tallow::Error::msg("no such thing"))
        });
        assert!(x.apply_op1(op.on(&device)).unwrap_err().to_string().contains("no such thing"));

        let weight = QTensor::quantize(&Numbers(3).tensor(&[4, 64]), GgmlDType::Q4_0).unwrap();
        let layer = nn::QMatMul::on(&weight, &device).unwrap();
        for wrong in [
            x.clone(),
            Tensor::zeros((2, 64), candle_core::DType::U8, cpu).unwrap(),
            x.get(0).unwrap().get(0).unwrap(),
        ] {
            assert!(layer.forward(&wrong).is_err(), "{wrong:?}");
        }
        assert!(layer.forward(&Numbers(4).tensor(&[64])).is_ok());
        let flat = QTensor::quantize(&Numbers(3).tensor(&[64]), GgmlDType::Q4_0).unwrap();
        assert!(nn::QMatMul::on(&flat, &device).is_err());

        let bias = Numbers(5).tensor(&[5]);
        assert!(nn::Linear::on(&x, Some(&bias), &device).is_err());
        let conv =
            nn::Conv1d::on(&Numbers(6).tensor(&[4, 2, 3]), None, Conv1dConfig::default(), &device).unwrap();
        assert!(conv.forward(&Numbers(7).tensor(&[1, 3, 8])).is_err());
        assert!(conv.forward(&Numbers(7).tensor(&[1, 2, 2])).is_err());
        let table = nn::Embedding::on(&x, 3, &device).unwrap();
        for wrong in [Tensor::new(&[2u32], cpu).unwrap(), Tensor::new(&[-1i64], cpu).unwrap()] {
            assert!(table.forward(&wrong).unwrap_err().to_string().contains("table of 2"));
        }
    }
}

#[test]
fn memory_that_is_not_there() {
    let Some(device) = vulkan() else { return };
    let op = compile(|[x]| x.broadcast_as((1usize << 16, 1usize << 20))).named("huge").on(&device);
    let x = Tensor::new(&[1f32], &Device::Cpu).unwrap();
    // 2^38 bytes, more than any device has.
    let error = x.apply_op1_no_bwd(&op).unwrap_err().to_string();
    assert!(!error.is_empty() && values(&x) == [1.0], "{error}");
    assert!(x.inplace_op1(&op).is_err());
    assert_eq!(values(&x), [1.0]);
    let small = compile(|[x]| x.neg()).on(&device);
    assert_eq!(values(&x.apply_op1(small).unwrap()), [-1.0]);
}

#[test]
#[cfg(feature = "vulkan")]
fn a_closed_device() {
    if vulkan().is_none() {
        return;
    }
    let device = tallow::Device::best_vulkan().unwrap();
    let op = compile(|[x]| x.affine(2.0, 0.0)).on(&device);
    let weight = QTensor::quantize(&Numbers(3).tensor(&[4, 64]), GgmlDType::Q4_0).unwrap();
    let layer = nn::QMatMul::on(&weight, &device).unwrap();
    let (x, wide) = (Tensor::new(&[1f32, 2.0], &Device::Cpu).unwrap(), Numbers(4).tensor(&[3, 64]));
    assert_eq!(values(&x.apply_op1_no_bwd(&op).unwrap()), [2.0, 4.0]);
    layer.forward(&wide).unwrap();
    device.close().unwrap();
    for _ in 0..2 {
        // What was recorded, and what would be compiled.
        for error in [
            x.apply_op1_no_bwd(&op).unwrap_err(),
            x.inplace_op1(&op).unwrap_err(),
            x.narrow(0, 0, 1).unwrap().apply_op1_no_bwd(&op).unwrap_err(),
            layer.forward(&wide).unwrap_err(),
            nn::QMatMul::on(&weight, &device).unwrap_err(),
        ] {
            assert!(error.to_string().contains("closed"), "{error}");
        }
        assert_eq!(values(&x), [1.0, 2.0]);
    }
    // Another context on the same device is none of its business.
    let again = op.on(&tallow::Device::best_vulkan().unwrap());
    assert_eq!(values(&x.apply_op1_no_bwd(&again).unwrap()), [2.0, 4.0]);
}
