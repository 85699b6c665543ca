//! Quantized caches of models on the device, against the interpreter.

use tallow::Device;
use tallow_models::{Activations, CacheType, CacheTypes, LoadOptions, Model, ModelFile};
use tallow_tests::nmse;

use crate::harness::{device_with_range, device_with_rolled_loops, sampled};

const PROMPT: [u32; 9] = [0, 453, 309, 261, 448, 418, 342, 261, 951];
const NEXT: [u32; 6] = [418, 309, 494, 901, 16, 386];

fn load(device: &Device, keys: CacheType, values: CacheType) -> Model {
    let path = tallow_testmodels::model("storyteller-nano-Q4_K_M");
    let (activations, cache) = (Activations::Exact, CacheTypes { keys, values });
    let options = LoadOptions { activations, cache, ..LoadOptions::default() };
    ModelFile::open(path).unwrap().load(device, &options, &mut |_| {}).unwrap()
}

/// The logits after a prompt and after each of some tokens.
fn logits(model: &mut Model) -> Vec<Vec<f64>> {
    let mut feed =
        |tokens: &[u32]| -> Vec<f64> { model.feed(tokens).unwrap().into_iter().map(f64::from).collect() };
    let mut all = vec![feed(&PROMPT)];
    all.extend(NEXT.iter().map(|token| feed(&[*token])));
    all
}

/// Keys and values differ by some 1e-5 between f32 and f64 sums. Where a quotient is as near to a half, the device rounds
/// it the other way: of bytes that are 2 * 127 * 1e-5 of all at most, each off by a step, which is 12 times the mean error of
/// rounding. So the device is off by at most 3 % of what rounding costs; a mistake in a scale or a place would be
/// off by as much as that or more. (The rest is the bound of caches of floats.)
fn check(device: &Device, keys: CacheType, values: CacheType) {
    let reference = logits(&mut load(&Device::Cpu, CacheType::F32, CacheType::F32));
    let want = logits(&mut load(&Device::Cpu, keys, values));
    let mut model = load(device, keys, values);
    let got = logits(&mut model);
    for (step, ((want, got), reference)) in want.iter().zip(&got).zip(&reference).enumerate() {
        let (error, lost) = (nmse(want, got), nmse(reference, want));
        println!("{keys} {values} step {step}: NMSE {error:.1e}, of rounding {lost:.1e}");
        assert!(error <= 0.03 * lost + 1e-6, "{keys} {values} step {step}: NMSE {error:e} of {lost:e}");
    }
    let (stats, layers) = (model.decode_stats(), model.layers());
    println!("{keys} {values}: {} dispatches a step", stats.dispatches);
    assert!(stats.dispatches <= 7 * layers + 3, "{} dispatches", stats.dispatches);
    assert_eq!(stats.barriers, stats.barriers_lower_bound);
}

#[test]
fn models_with_caches_of_blocks() {
    let Some(device) = device_with_rolled_loops() else { return };
    for both in sampled(&device, 2, [CacheType::Q8_0, CacheType::Q4_0]) {
        check(&device, both, both);
    }
}

#[test]
fn models_with_caches_of_two_types() {
    let Some(device) = device_with_rolled_loops() else { return };
    let types = [(CacheType::Q8_0, CacheType::F16), (CacheType::F32, CacheType::Q4_0)];
    for (keys, values) in sampled(&device, 2, types) {
        check(&device, keys, values);
    }
}

/// Caches of 136 KiB, in windows of 128 KiB.
#[test]
fn models_with_caches_in_windows() {
    let Some(device) = device_with_range(1 << 17) else { return };
    check(&device, CacheType::Q8_0, CacheType::Q8_0);
}
