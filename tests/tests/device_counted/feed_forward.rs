//! A feed-forward block of one row as a compiled function: what a run does beside its kernels.

use tallow::{DType, Device, Function, Input, Result, Tensor, compile, eval, nn};
use tallow_tests::device::own_devices as devices;

const WIDTH: usize = 256;
const HIDDEN: usize = 512;
const RUNS: usize = 5;

/// `rms_norm`, `silu(x w1) * (x w3)`, `w2`, with weights `[k, n]`.
fn block(x: &Tensor, norm: &Tensor, [w1, w3, w2]: [&Tensor; 3]) -> Result<Tensor> {
    let x = nn::ops::rms_norm(x, norm, 1e-5)?;
    (x.matmul(w1)?.silu()? * x.matmul(w3)?)?.matmul(w2)
}

fn weights(device: &Device) -> Result<[Tensor; 4]> {
    let all = [
        Tensor::ones(WIDTH, DType::F16, device)?,
        Tensor::randn(0f32, 0.05, (WIDTH, HIDDEN), device)?.to_dtype(DType::F16)?,
        Tensor::randn(0f32, 0.05, (WIDTH, HIDDEN), device)?.to_dtype(DType::F16)?,
        Tensor::randn(0f32, 0.05, (HIDDEN, WIDTH), device)?.to_dtype(DType::F16)?,
    ];
    eval(&all.each_ref())?;
    Ok(all)
}

/// Bytes up and down, recordings and pipelines of runs that read their results.
fn moved(device: &Device, function: &Function, inputs: &[&Tensor]) -> Result<[u64; 4]> {
    let Device::Vulkan(vulkan) = device else { panic!("{device} is no Vulkan device") };
    let read =
        || -> Result<Vec<f32>> { function.run(inputs)?[0].to_dtype(DType::F32)?.flatten_all()?.to_vec1() };
    let first = read()?;
    read()?;
    let (up, down) = vulkan.bytes_moved();
    let work = vulkan.work_done();
    for _ in 0..RUNS {
        assert_eq!(read()?, first);
    }
    let (up_after, down_after) = vulkan.bytes_moved();
    let after = vulkan.work_done();
    Ok([up_after - up, down_after - down, after.0 - work.0, after.1 - work.1])
}

#[test]
fn a_run_moves_only_what_is_read() {
    for device in devices() {
        let [norm, w1, w3, w2] = weights(&device).unwrap();
        let x = Tensor::randn(0f32, 1.0, (1, WIDTH), &device).unwrap().to_dtype(DType::F16).unwrap();
        eval(&[&x]).unwrap();
        let input = |name: &str, shape: &[usize]| Input::new(name, DType::F16, shape.to_vec());
        let row = input("x", &[1, WIDTH]);
        let captured =
            compile(&device, std::slice::from_ref(&row), |i| Ok(vec![block(&i[0], &norm, [&w1, &w3, &w2])?]))
                .unwrap();
        let (up, down) = ([WIDTH, HIDDEN], [HIDDEN, WIDTH]);
        let all = [row, input("norm", &[WIDTH]), input("w1", &up), input("w3", &up), input("w2", &down)];
        let given =
            compile(&device, &all, |i| Ok(vec![block(&i[0], &i[1], [&i[2], &i[3], &i[4]])?])).unwrap();
        // The result is read as f32.
        let read = (RUNS * WIDTH * 4) as u64;
        assert_eq!(moved(&device, &captured, &[&x]).unwrap(), [0, read, 0, 0]);
        assert_eq!(moved(&device, &given, &[&x, &norm, &w1, &w3, &w2]).unwrap(), [0, read, 0, 0]);
    }
}
