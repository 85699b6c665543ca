//! Random graphs against differences in f64.

use tallow_tests::gradients::{Counts, check, differentiable_graph};

/// `fuzz --mode gradients` does the same for longer.
#[test]
fn of_random_graphs_are_those_of_differences() {
    let mut counts = Counts::default();
    for seed in 0..1200 {
        let graph = differentiable_graph(seed);
        match check(&graph, seed) {
            Ok(outcome) => counts.add(outcome),
            Err(why) => panic!("seed {seed}: {why}\n{graph}"),
        }
    }
    println!("{counts}");
    assert!(!counts.are_too_many_rejected(), "{counts}");
}
