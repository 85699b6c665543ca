//! Convolutions, pools and resizing: the interpreter against naive loops, the structure of their kernels, and
//! what is refused.

#![allow(clippy::unwrap_used)]

use tallow::{DType, Device, Result, Tensor};
use tallow_tests::window_cases::{Case, convolutions, pools, resizings, transposed_convolutions};

const CPU: Device = Device::Cpu;

fn check(cases: &[Case]) {
    let wrong: Vec<String> = cases.iter().filter_map(|case| case.check(&CPU).err()).collect();
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

#[test]
fn convolutions_are_those_of_naive_loops() {
    check(&convolutions());
}

#[test]
fn transposed_convolutions_are_those_of_naive_loops() {
    check(&transposed_convolutions());
}

#[test]
fn pools_are_those_of_naive_loops() {
    check(&pools());
}

#[test]
fn resizings_are_those_of_naive_loops() {
    check(&resizings());
}

/// Integers wrap as sums and products of them do.
#[test]
fn integers_convolve() -> Result<()> {
    let x = Tensor::new([[[1i64, 2, 3, 4]]], &CPU)?;
    let k = Tensor::new([[[1i64, 10]]], &CPU)?;
    assert_eq!(x.conv1d(&k, 1, 1, 1, 1)?.to_vec3::<i64>()?, [[[10, 21, 32, 43, 4]]]);
    assert_eq!(x.max_pool1d(2)?.to_vec3::<i64>()?, [[[2, 4]]]);
    Ok(())
}

/// As PyTorch 2 prints `interpolate(mode="bicubic")` of this image.
#[test]
fn bicubic_has_known_values() -> Result<()> {
    let x = Tensor::new([[[[1f32, 2.0], [3.0, 4.0]]]], &CPU)?;
    let row = x.upsample_bicubic2d(4, 4, false)?.flatten_all()?.to_vec1::<f32>()?;
    for (got, want) in row.iter().zip([0.6836, 1.0156, 1.5625, 1.8945, 1.3477]) {
        assert!((got - want).abs() < 1e-4, "{row:?}");
    }
    Ok(())
}

/// Half precision sums in f32: 4096 elements of 60 would overflow f16 on the way.
#[test]
fn means_of_short_floats_do_not_overflow() -> Result<()> {
    let x = Tensor::full(60f32, (1, 1, 64, 64), &CPU)?.to_dtype(DType::F16)?;
    let mean = x.avg_pool2d(64)?.to_dtype(DType::F32)?;
    assert_eq!(mean.flatten_all()?.to_vec1::<f32>()?, [60.0]);
    Ok(())
}

#[test]
fn what_does_not_fit_is_refused() -> Result<()> {
    let zeros = |dims: &[usize]| Tensor::zeros(dims, DType::F32, &CPU);
    let (x1, x2) = (zeros(&[1, 4, 9])?, zeros(&[1, 4, 5, 6])?);
    let (k1, k2) = (zeros(&[6, 4, 3])?, zeros(&[6, 4, 3, 3])?);
    let half = k2.to_dtype(DType::F16)?;
    let ints = Tensor::zeros((1, 1, 4, 4), DType::U8, &CPU)?;
    let huge = usize::MAX / 2;
    for (result, says) in [
        (
            x1.conv1d(&k1, 0, 1, 1, 2),
            "conv1d invalid args the number of in-channels on the input doesn't match",
        ),
        (
            x2.conv2d(&k2, 0, 1, 1, 2),
            "conv2d: in_channel mismatch between input (4, groups 2) and kernel (4)",
        ),
        (x2.conv2d(&k1, 0, 1, 1, 1), "unexpected rank, expected: 4, got: 3"),
        (x1.conv2d(&k2, 0, 1, 1, 1), "unexpected rank, expected: 4, got: 3"),
        (x2.conv2d(&half, 0, 1, 1, 1), "dtype mismatch in conv2d, lhs: f32, rhs: f16"),
        (x2.conv2d(&k2, 0, 0, 1, 1), "conv2d: stride 0, dilation 1 and groups 1 must not be 0"),
        (x2.conv2d(&k2, 0, 1, 3, 1), "conv2d: windows of 3 elements 3 apart are longer than axis 3"),
        (x2.conv2d(&k2, huge, 1, 1, 1), "conv2d: padding, stride and dilation must be below 2^32"),
        (x2.conv2d(&k2, 1, 1, huge, 1), "conv2d: padding, stride and dilation must be below 2^32"),
        (x2.conv2d(&k2, u32::MAX as usize, 1, 1, 1), "more than 2^40 elements"),
        (x2.conv2d(&zeros(&[5, 2, 3, 3])?, 0, 1, 1, 2), "5 out-channels are no multiple of 2 groups"),
        (x2.conv2d(&zeros(&[5, 4, 0, 3])?, 0, 1, 1, 1), "conv2d: size 0"),
        (x1.conv_transpose1d(&k1, 0, 0, 1, 1, 1), "in_channel mismatch between input (4) and kernel (6)"),
        (
            x1.conv_transpose1d(&zeros(&[4, 1, 1])?, 5, 0, 1, 1, 1),
            "conv_transpose1d: padding 5 leaves nothing of axis 2 of [1,4,9]",
        ),
        (x2.max_pool2d(7), "max_pool2d: kernel-size [7, 7] is larger than the input size [1,4,5,6]"),
        (x2.avg_pool2d_with_stride(2, 0), "stride 0"),
        (x2.avg_pool2d(0), "size 0"),
        (x1.avg_pool2d(2), "unexpected rank, expected: 4, got: 3"),
        (ints.avg_pool2d(2), "unexpected dtype in avg_pool2d, expected: a float type, got: u8"),
        (ints.upsample_bilinear2d(2, 2, false), "expected: a float type, got: u8"),
        (x2.adaptive_avg_pool2d(0), "0 windows of axis 2"),
        (x2.interpolate2d(0, 3), "axis 2 of shape [1,4,5,6] cannot be resized to 0"),
        (x2.interpolate2d(3, huge), "cannot be resized to"),
        (x2.upsample_bilinear2d_with_scale(f64::NAN, 1.0, false), "a factor of NaN is no positive number"),
        (x2.upsample_bilinear2d_with_scale(1e300, 1.0, false), "cannot be resized to"),
        (x1.unfold(2, 10, 1), "unfold: windows of 10 elements 1 apart are longer than axis 2"),
        (x1.unfold(3, 1, 1), "dim 3 out of range in unfold"),
        (x1.unfold(2, 3, 0), "stride 0"),
    ] {
        let error = result.map(|t| format!("{t:?}")).unwrap_err().to_string();
        assert!(error.contains(says), "{error:?} does not say {says:?}");
    }
    Ok(())
}
