//! Convolutions, pools and resizing on the device, against naive loops.

use tallow_tests::window_cases::{convolutions, pools, resizings, transposed_convolutions};

use crate::harness::device;

#[test]
fn windows_are_those_of_naive_loops() {
    let Some(device) = device() else { return };
    let mut wrong = vec![];
    for cases in [convolutions(), transposed_convolutions(), pools(), resizings()] {
        wrong.extend(cases.iter().filter_map(|case| case.check(&device).err()));
    }
    assert!(wrong.is_empty(), "{} are wrong:\n{}", wrong.len(), wrong.join("\n"));
}
