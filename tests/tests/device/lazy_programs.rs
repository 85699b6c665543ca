//! Random programs of lazy tensors, computed in pieces with reads, clones and drops between, against the same programs
//! computed at once.

use tallow::{Device, RuntimeOptions};
use tallow_ir::caps::OptionalFeature;
use tallow_tests::lazy::{Program, Tally};

use crate::harness::{device, is_software};

/// `TALLOW_FUZZ` raises the number of programs.
fn check(device: &Device, first: u64) {
    // A software device compiles for a second what a GPU compiles at once.
    let default = if is_software(device) { 20 } else { 200 };
    let count = std::env::var("TALLOW_FUZZ").ok().and_then(|n| n.parse().ok()).unwrap_or(default);
    let mut tally = Tally::default();
    for seed in first..first + count {
        let program = Program::new(seed, device).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
        if let Err(why) = program.check(device, &mut tally) {
            panic!(
                "cargo run -p tallow-tests --bin fuzz -- --mode lazy --seed {seed} --count 1\n{program}{why}"
            );
        }
    }
    println!("{tally}");
    assert!(tally.refused < count / 4, "{tally}");
}

#[test]
fn segments_match_the_undivided_program() {
    let Some(device) = device() else { return };
    check(&device, 1_000_000);
}

/// As on a graphics card, whose memory the host does not reach.
#[test]
fn so_they_do_where_values_are_copied_to_the_host() {
    if device().is_none() {
        return;
    }
    let mut options = RuntimeOptions::from_env().unwrap();
    if options.disable.contains(&OptionalFeature::Unified) {
        return; // As the device above is.
    }
    options.disable.push(OptionalFeature::Unified);
    check(&Device::vulkan_with(&options).unwrap(), 2_000_000);
}
