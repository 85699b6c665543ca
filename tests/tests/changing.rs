//! Programs whose extents change, on the interpreter: as with numbers for extents, with few plans.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::sync::{Mutex, PoisonError};

use tallow::{Device, Dynamic};
use tallow_tests::changing::ALL;
use tallow_tests::lazy::{ShapeCounts, check_shapes};

/// Compilations of the CPU are counted for the process.
static ALONE: Mutex<()> = Mutex::new(());

#[test]
fn programs_need_few_plans() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let device = Device::Cpu;
    for case in ALL {
        let before = device.lazy_compilations();
        let numbers = (case.run)(&device).unwrap_or_else(|why| panic!("{}: {why}", case.name));
        let compilations = device.lazy_compilations() - before;
        device.set_dynamic(Dynamic::Never);
        let literal = (case.run)(&device).unwrap_or_else(|why| panic!("{}: {why}", case.name));
        device.set_dynamic(Dynamic::Auto);
        assert_eq!(numbers, literal, "{}", case.name);
        assert_eq!(compilations, case.compilations, "{}", case.name);
    }
}

/// `TALLOW_FUZZ` raises the number of programs.
#[test]
fn random_programs_under_many_shapes() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let count = std::env::var("TALLOW_FUZZ").ok().and_then(|n| n.parse().ok()).unwrap_or(300);
    let mut counts = ShapeCounts::default();
    for seed in 0..count {
        if let Err(why) = check_shapes(seed, 20, &Device::Cpu, &mut counts) {
            panic!(
                "cargo run -p tallow-tests --bin fuzz -- --mode shapes --seed {seed} --count 1 --no-device\n{why}"
            );
        }
    }
    println!("{counts:?}");
    // Where no extent were ever a symbol, nothing would be tested.
    assert!(counts.compilations * 2 < counts.instances, "{counts:?}");
}
