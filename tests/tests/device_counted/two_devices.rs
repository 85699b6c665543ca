//! Two devices in one process, which exchange values.

use tallow::{DType, Device, Error, Input, Result, Tensor, compile, eval};
use tallow_tests::device::own_devices as devices;
use tallow_tests::tensors::{assert_close as close, random};

use crate::lazy_resources::{ALONE, around_the_ring, figures, idle};

/// `x = tanh(x / 2 + 1)`, half of it on one device and half on the other.
fn to_and_fro(here: &Device, there: &Device, seed: u32, n: usize, steps: usize) -> Result<Tensor> {
    let mut x = random(seed, &[n], here)?;
    for _ in 0..steps {
        let y = x.affine(0.5, 1.0)?.to_device(there)?;
        x = y.tanh()?.to_device(here)?;
    }
    Ok(x)
}

/// Two threads, one from either device, exchange values at once: of a size that goes with the commands, and larger.
fn exchange(a: &Device, b: &Device, steps: usize) {
    let one = |here: &Device, there: &Device, seed: u32| {
        for n in [1000, 50_000] {
            let got = to_and_fro(here, there, seed, n, steps).unwrap();
            let want = to_and_fro(&Device::Cpu, &Device::Cpu, seed, n, steps).unwrap();
            assert_eq!(got.device(), here);
            close(&got, &want, 1e-5);
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| one(a, b, 41));
        scope.spawn(|| one(b, a, 42));
    });
}

#[test]
fn two_devices_exchange_values() {
    let _alone = ALONE.lock();
    let steps = if std::env::var_os("TALLOW_FULL").is_some() { 500 } else { 20 };
    for (a, b) in devices().into_iter().zip(devices()) {
        assert_ne!(a, b);
        let both = [&a, &b];
        around_the_ring(&a, || exchange(&a, &b, 1));
        let before = both.map(idle);
        exchange(&a, &b, steps);
        // Each thread holds a few values of either size at once.
        for (device, before) in both.iter().zip(&before) {
            let (in_use, cached, _) = figures(device);
            assert!(in_use + cached <= before.0 + 16 * 4 * 51_000, "{in_use} in use, {cached} cached");
        }
        assert_eq!(both.map(idle), before);
    }
}

/// A device goes with the last of its users: itself, its tensors, its functions. What was compiled for it is no user.
#[test]
fn devices_that_nobody_uses_are_closed() {
    let _alone = ALONE.lock();
    for device in devices() {
        let Device::Vulkan(vulkan) = &device else { continue };
        let open = vulkan.watch();
        let x = random(45, &[64, 64], &device).unwrap();
        let y = x.matmul(&x).unwrap().tanh().unwrap();
        eval(&[&y]).unwrap();
        let inputs = [Input::new("x", DType::F32, (64, 64))];
        let function = compile(&device, &inputs, |given| Ok(vec![given[0].exp()?])).unwrap();
        drop(device);
        let z = function.run(&[&x]).unwrap();
        drop((x, y, function));
        assert_eq!(z[0].dims(), [64, 64]);
        assert!(z[0].sum_all().unwrap().to_scalar::<f32>().unwrap().is_finite(), "results keep their device");
        drop(z);
        assert_eq!(open.strong_count(), 0, "the device is still open");
    }
}

/// Two devices are two devices, also where one GPU is behind both: an operation has its operands on one.
#[test]
fn operations_on_tensors_of_two_devices_are_errors() {
    let _alone = ALONE.lock();
    for (a, b) in devices().into_iter().zip(devices()) {
        let x = random(43, &[4, 4], &a).unwrap();
        let y = random(44, &[4, 4], &b).unwrap();
        let ids = Tensor::new([0u32, 1], &b).unwrap();
        let inputs = [Input::new("x", DType::F32, (4, 4))];
        let results: Vec<(&str, Result<()>)> = vec![
            ("add", x.add(&y).map(drop)),
            ("matmul", x.matmul(&y).map(drop)),
            ("cat", Tensor::cat(&[&x, &y], 0).map(drop)),
            ("index_select", x.index_select(&ids, 0).map(drop)),
            ("rms_norm", tallow::nn::ops::rms_norm(&x, &y.get(0).unwrap(), 1e-5).map(drop)),
            ("rope", {
                let x = x.reshape((1, 1, 4, 4)).unwrap();
                let angles = y.narrow(1, 0, 2).unwrap();
                tallow::nn::rotary_emb::rope(&x, &angles, &angles).map(drop)
            }),
            ("eval", eval(&[&x.exp().unwrap(), &y.exp().unwrap()])),
            ("compile", compile(&a, &inputs, |given| Ok(vec![given[0].add(&y)?])).map(drop)),
        ];
        for (op, result) in results {
            let error = result.expect_err(op);
            assert!(matches!(error, Error::DeviceMismatchBinaryOp { .. }), "{op}: {error}");
            let text = error.to_string();
            assert!(text.contains(&a.name()) && text.contains("opened another time"), "{op}: {text}");
        }
        let [x, y] = [&x, &y].map(|t| t.to_device(&Device::Cpu).unwrap());
        assert!(x.add(&y).is_ok(), "both are still good");
    }
}
