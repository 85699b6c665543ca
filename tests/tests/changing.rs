//! Programs whose extents change, on the interpreter: as with numbers for extents, with few plans.

#![allow(clippy::unwrap_used)]

use tallow::{Device, Dynamic};
use tallow_tests::changing::ALL;

/// The only test of this process, whose compilations are counted.
#[test]
fn programs_need_few_plans() {
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
