//! Convolutions, pools and resizing: the interpreter against naive loops, the structure of their kernels, and
//! what is refused.

#![allow(clippy::unwrap_used)]

use tallow::{DType, Device, Input, Result, Symbol, Tensor, compile};
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
        (x2.conv2d(&k1, 0, 1, 1, 1), "unexpected rank in conv2d, expected: 4, got: 3"),
        (x1.conv2d(&k2, 0, 1, 1, 1), "unexpected rank in conv2d, expected: 4, got: 3"),
        (x2.conv2d(&half, 0, 1, 1, 1), "dtype mismatch in conv2d, lhs: f32, rhs: f16"),
        (x2.conv2d(&k2, 0, 0, 1, 1), "conv2d: stride 0, dilation 1 and groups 1 must not be 0"),
        (x2.conv2d(&k2, 0, 1, 3, 1), "conv2d: windows of 3 elements 3 apart are longer than axis 3"),
        (x2.conv2d(&k2, huge, 1, 1, 1), "conv2d: padding, stride and dilation must be below 2^32"),
        (x2.conv2d(&k2, 1, 1, huge, 1), "conv2d: padding, stride and dilation must be below 2^32"),
        (x2.conv2d(&k2, u32::MAX as usize, 1, 1, 1), "more than 2^40 elements"),
        (
            x1.conv1d(&k1, 1 << 31, 1 << 31, 1, 1),
            "conv1d: axis 2 of shape [1,4,4294967305] is longer than 2^31 - 1",
        ),
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
        (x1.avg_pool2d(2), "unexpected rank in avg_pool2d, expected: 4, got: 3"),
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

/// Kernels of a function of one input for a profile: algorithm and last op of each, and bytes of the arena.
fn kernels(profile: &str, shape: &[usize], build: impl Fn(&Tensor) -> Result<Tensor>) -> (Vec<String>, u64) {
    let function = compile(&CPU, &[Input::new("x", DType::F32, shape)], |x| Ok(vec![build(&x[0])?])).unwrap();
    let caps = tallow_ir::caps::profile(profile).unwrap();
    let module = tallow_codegen::compile(function.graph(), &caps).unwrap();
    let name = |k: &tallow_codegen::Kernel| {
        let last = k.name.rsplit(' ').next().unwrap_or_default();
        format!("{} .. {last}", k.schedule.algorithm.name())
    };
    (module.kernels.iter().map(name).collect(), module.plan.arena.bytes)
}

/// Bias and activation are in the kernel of the convolution, padding and windows in its reads: one dispatch, and
/// nothing unfolded in memory.
#[test]
fn a_convolution_is_one_dispatch_without_scratch() -> Result<()> {
    let weight = |dims: &[usize]| Tensor::ones(dims, DType::F32, &CPU);
    let bias_relu = |y: Tensor, channels: usize| y.broadcast_add(&weight(&[channels, 1, 1])?)?.relu();
    for profile in ["lavapipe", "h200", "rdna3", "minimum"] {
        let one = |name: &str| (vec![name.to_string()], 0);
        let conv = |x: &Tensor| bias_relu(x.conv2d(&weight(&[32, 8, 3, 3])?, 1, 1, 1, 1)?, 32);
        assert_eq!(kernels(profile, &[2, 8, 20, 22], conv), one("matmul .. maximum"));
        let strided = |x: &Tensor| bias_relu(x.conv2d(&weight(&[32, 4, 5, 5])?, 2, 2, 1, 2)?, 32);
        assert_eq!(kernels(profile, &[2, 8, 20, 22], strided), one("matmul .. maximum"));
        let depthwise = |x: &Tensor| bias_relu(x.conv2d(&weight(&[8, 1, 3, 3])?, 1, 1, 2, 8)?, 8);
        assert_eq!(kernels(profile, &[2, 8, 20, 22], depthwise), one("short_rows .. maximum"));
        let few = |x: &Tensor| bias_relu(x.conv2d(&weight(&[3, 64, 3, 3])?, 1, 1, 1, 1)?, 3);
        // Its K is split among workgroups, whose partial sums are far smaller than the unfolded windows.
        let (names, scratch) = kernels(profile, &[1, 64, 20, 22], few);
        assert_eq!(names, ["matmul .. maximum"], "{profile}");
        assert!(scratch <= 64 * 9 * 20 * 22 * 4 / 16, "{profile}: {scratch}");
        let transposed =
            |x: &Tensor| bias_relu(x.conv_transpose2d(&weight(&[8, 16, 4, 4])?, 1, 0, 2, 1)?, 16);
        assert_eq!(kernels(profile, &[2, 8, 20, 22], transposed), one("matmul .. maximum"));
        let pool = |x: &Tensor| x.relu()?.max_pool2d(3);
        assert_eq!(kernels(profile, &[2, 8, 20, 22], pool), one("short_rows .. reduce_max"));
        // Of two convolutions the first one's result is in memory, and nothing else: the second reads it
        // through pads and windows.
        let two = |x: &Tensor| {
            let y = bias_relu(x.conv2d(&weight(&[16, 8, 3, 3])?, 1, 1, 1, 1)?, 16)?;
            bias_relu(y.conv2d(&weight(&[16, 16, 3, 3])?, 1, 1, 1, 1)?, 16)
        };
        let expected = (vec!["matmul .. maximum".to_string(); 2], 2 * 16 * 20 * 22 * 4);
        assert_eq!(kernels(profile, &[2, 8, 20, 22], two), expected);
    }
    // Tables of both axes take more buffers than the minimum has.
    let resize = |x: &Tensor| x.upsample_bilinear2d(31, 45, false);
    assert_eq!(kernels("h200", &[2, 8, 20, 22], resize).0.len(), 1);
    let nearest = |x: &Tensor| x.upsample_nearest2d(40, 44)?.relu();
    assert_eq!(kernels("minimum", &[2, 8, 20, 22], nearest), (vec!["map .. maximum".to_string()], 0));
    Ok(())
}

/// The length and the batch are known only when the function runs.
#[test]
fn convolutions_of_symbolic_extents() -> Result<()> {
    let (batch, length) = (Symbol::new("batch", 4), Symbol::new("length", 40));
    let kernel = Tensor::arange(0f32, 54.0, &CPU)?.reshape((9, 2, 3))?;
    let inputs = [Input::new("x", DType::F32, (batch, 2, length))];
    let function = compile(&CPU, &inputs, |x| Ok(vec![x[0].conv1d(&kernel, 1, 1, 1, 1)?]))?;
    for (batch, length) in [(1usize, 1usize), (3, 7), (4, 40)] {
        let x = Tensor::arange(0f32, (batch * 2 * length) as f32, &CPU)?.reshape((batch, 2, length))?;
        let want = x.conv1d(&kernel, 1, 1, 1, 1)?.to_vec3::<f32>()?;
        assert_eq!(function.run(&[&x])?[0].to_vec3::<f32>()?, want);
    }
    Ok(())
}
