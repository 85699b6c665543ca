//! Two devices in one process, which exchange values.

use tallow::{Device, Result, Tensor};
use tallow_tests::device::own_devices as devices;
use tallow_tests::tensors::{assert_close as close, random};

use crate::lazy_resources::{around_the_ring, figures, idle};

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
