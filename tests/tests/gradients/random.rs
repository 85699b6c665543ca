//! Random graphs against differences in f64.

use tallow_ir::DType;
use tallow_tests::gradients::check;
use tallow_tests::{Options, covering_graph, random_graph, random_row_program};

fn options() -> Options {
    Options {
        floats: vec![DType::F64],
        custom: false,
        states: false,
        max_elements: 256,
        ..Options::default()
    }
}

/// Few graphs may lie at a kink: else differences would check nothing.
#[test]
fn of_random_graphs_are_those_of_differences() {
    let options = options();
    let mut counts = [0usize; 4];
    for seed in 0..1200 {
        let graph = match seed % 3 {
            0 => random_graph(seed, 6, &options),
            1 => covering_graph(seed, seed / 3, 3, &options),
            _ => random_row_program(seed),
        };
        match check(&graph, seed) {
            Ok(outcome) => counts[outcome as usize] += 1,
            Err(why) => panic!("seed {seed}: {why}\n{graph}"),
        }
    }
    let [agree, kinks, nothing, refused] = counts;
    println!("{agree} agree, {kinks} at kinks, {nothing} without floats, {refused} refused");
    assert!(kinks * 20 < agree, "{kinks} of {agree} graphs lie at kinks");
}
