//! The cases: every one that is measured, by name.

mod attention;
mod contraction;
mod map;
mod matvec;
mod row;

pub use matvec::weight_formats;

use crate::case::{Axis, Case};

/// Every case that is a graph of its own, in the order in which they are listed and run; with `quick`, of shapes that
/// a software device computes in milliseconds.
pub fn cases(quick: bool) -> Vec<Case> {
    [
        matvec::cases(quick),
        contraction::cases(quick),
        attention::cases(quick),
        map::cases(quick),
        row::cases(quick),
    ]
    .concat()
}

/// An axis that is checked as a whole.
fn full(name: &'static str, size: usize) -> Axis {
    Axis { name, size, sampled: None }
}

/// An axis of which a few positions are checked.
fn sampled(name: &'static str, size: usize, positions: usize) -> Axis {
    Axis { name, size, sampled: Some(positions) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_axes_are_known() {
        for quick in [false, true] {
            let cases = cases(quick);
            for (i, case) in cases.iter().enumerate() {
                assert!(cases[..i].iter().all(|other| other.name != case.name), "{}", case.name);
                let known = |axis: &&str| case.axes.iter().any(|a| a.name == *axis);
                assert!(case.result.iter().all(known), "{}", case.name);
                assert!(case.operands.iter().all(|o| o.axes.iter().all(known)), "{}", case.name);
                assert!(case.bytes() > 0, "{}", case.name);
                for operand in &case.operands {
                    let last = operand.axes.last().copied().unwrap_or_default();
                    let blocks = operand.format().is_some_and(|f| !f.is_plain());
                    let cut = case.axes.iter().any(|a| a.name == last && a.sampled.is_some());
                    assert!(!(blocks && cut), "{}: rows of {} are cut", case.name, operand.name);
                }
            }
        }
    }
}
