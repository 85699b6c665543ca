//! Programs whose extents change, against the interpreter with numbers for extents.

use std::time::Instant;

use tallow::{Device, Dynamic};
use tallow_tests::changing::{ALL, Changing, growing_cache, growing_cache_by_hand};
use tallow_tests::lazy::{ShapeCounts, check_shapes};

use crate::harness::{device, is_software};

/// The numbers of a program on the CPU, where each set of extents has a plan of its own.
fn expected(case: &Changing) -> Vec<f32> {
    Device::Cpu.set_dynamic(Dynamic::Never);
    let numbers = (case.run)(&Device::Cpu);
    Device::Cpu.set_dynamic(Dynamic::Auto);
    numbers.unwrap_or_else(|why| panic!("{}: {why}", case.name))
}

/// A device whose compilations no other test counts: software devices are each test's own.
fn own_device() -> Option<Device> {
    let shared = device()?;
    Some(if is_software(&shared) { shared } else { Device::best_vulkan().unwrap() })
}

#[test]
fn programs_need_few_plans() {
    let Some(device) = own_device() else { return };
    for case in ALL {
        let before = device.lazy_compilations();
        let numbers = (case.run)(&device).unwrap_or_else(|why| panic!("{}: {why}", case.name));
        let compilations = device.lazy_compilations() - before;
        let wanted = expected(&case);
        for (step, (number, wanted)) in numbers.iter().zip(&wanted).enumerate() {
            // Sums of a few hundred numbers, added in another order.
            let error = (number - wanted).abs() / wanted.abs().max(1.0);
            assert!(error < 1e-5, "{}, step {step}: {number}, not {wanted}", case.name);
        }
        assert_eq!(numbers.len(), wanted.len());
        // Other devices choose other kernels for few rows.
        if is_software(&device) {
            assert_eq!(compilations, case.with_kernels, "{}", case.name);
        }
        assert!(compilations <= 2 * case.compilations, "{}: {compilations}", case.name);
    }
}

/// A plan of numbers for each of the first steps, one of symbols to 256, and one for each doubling.
#[test]
fn two_thousand_steps_need_seven_plans() {
    let Some(device) = own_device() else { return };
    let before = device.lazy_compilations();
    let start = Instant::now();
    let numbers = growing_cache(&device, 2000).unwrap();
    println!("{} ms", start.elapsed().as_millis());
    for (step, (number, wanted)) in numbers.iter().zip(growing_cache_by_hand(2000)).enumerate() {
        let error = (f64::from(*number) - wanted).abs() / wanted.abs().max(1.0);
        assert!(error < 1e-5, "step {step}: {number}, not {wanted}");
    }
    assert_eq!(device.lazy_compilations() - before, 7);
}

/// `TALLOW_FUZZ` raises the number of programs.
#[test]
fn random_programs_under_many_shapes() {
    let Some(device) = device() else { return };
    let (default, instances) = if is_software(&device) { (8, 6) } else { (100, 20) };
    let count: u64 = std::env::var("TALLOW_FUZZ").ok().and_then(|n| n.parse().ok()).unwrap_or(default);
    let mut counts = ShapeCounts::default();
    for seed in 5000..5000 + count {
        if let Err(why) = check_shapes(seed, instances, &device, &mut counts) {
            panic!("cargo run -p tallow-tests --bin fuzz -- --mode shapes --seed {seed} --count 1\n{why}");
        }
    }
    println!("{counts:?}");
    assert!(counts.programs * 2 > count && counts.compilations < counts.instances, "{counts:?}");
}
