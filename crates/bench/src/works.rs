//! The works: every one that is measured, by name.

mod attention;
mod contraction;
mod map;
mod matvec;
mod row;

pub use matvec::weight_formats;

use crate::work::{Axis, Work};

/// Every work that is a graph of its own, in the order in which they are listed and run; with `quick`, of shapes that
/// a software device computes in milliseconds.
pub fn works(quick: bool) -> Vec<Work> {
    [
        matvec::works(quick),
        contraction::works(quick),
        attention::works(quick),
        map::works(quick),
        row::works(quick),
    ]
    .concat()
}

/// An axis that is checked as a whole.
fn whole(name: &'static str, size: usize) -> Axis {
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
            let works = works(quick);
            for (i, work) in works.iter().enumerate() {
                assert!(works[..i].iter().all(|other| other.name != work.name), "{}", work.name);
                let known = |axis: &&str| work.axes.iter().any(|a| a.name == *axis);
                assert!(work.result.iter().all(known), "{}", work.name);
                assert!(work.operands.iter().all(|o| o.axes.iter().all(known)), "{}", work.name);
                assert!(work.bytes() > 0, "{}", work.name);
                for operand in &work.operands {
                    let last = operand.axes.last().copied().unwrap_or_default();
                    let blocks = operand.format().is_some_and(|f| !f.is_plain());
                    let cut = work.axes.iter().any(|a| a.name == last && a.sampled.is_some());
                    assert!(!(blocks && cut), "{}: rows of {} are cut", work.name, operand.name);
                }
            }
        }
    }
}
