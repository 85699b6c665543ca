//! Drawn blocks of networks against the interpreter.

use tallow_tests::blocks::Block;

use crate::differential::{check, report};
use crate::harness::device;

#[test]
fn drawn_blocks_match_the_interpreter() {
    if device().is_none() {
        return;
    }
    let failures: Vec<_> =
        (1..=20).flat_map(|seed| check(&Block::draw(seed).graph().unwrap(), seed)).collect();
    report(failures, 20);
}
