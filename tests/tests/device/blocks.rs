//! Drawn blocks of networks against the interpreter.

use tallow_tests::blocks::Block;

use crate::differential::{check, report};
use crate::harness::{device, sampled};

#[test]
fn drawn_blocks_match_the_interpreter() {
    let Some(device) = device() else { return };
    let seeds: Vec<u64> = sampled(&device, 2, 1..=20).collect();
    let failures = seeds.iter().flat_map(|seed| check(&Block::draw(*seed).graph().unwrap(), *seed)).collect();
    report(failures, seeds.len());
}
