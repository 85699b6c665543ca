//! Random programs of lazy tensors, computed in pieces with reads, clones and drops between, against the same programs
//! computed at once.

use tallow_tests::lazy::{Program, Tally};

use crate::harness::{device, is_software};

/// `TALLOW_FUZZ` raises the number of programs.
#[test]
fn pieces_give_the_values_of_the_whole() {
    let Some(device) = device() else { return };
    // A software device compiles for a second what a GPU compiles at once.
    let default = if is_software(&device) { 40 } else { 400 };
    let count = std::env::var("TALLOW_FUZZ").ok().and_then(|n| n.parse().ok()).unwrap_or(default);
    let mut tally = Tally::default();
    for seed in 1_000_000..1_000_000 + count {
        let program = Program::new(seed, &device).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
        if let Err(why) = program.check(&device, &mut tally) {
            panic!(
                "cargo run -p tallow-tests --bin fuzz -- --mode lazy --seed {seed} --count 1\n{program}{why}"
            );
        }
    }
    println!("{tally}");
    assert!(tally.refused < count / 4, "{tally}");
}
