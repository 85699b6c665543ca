//! An element of a result that no right kernel returns.

use std::fmt;

/// An element outside its interval.
#[derive(Clone, Debug, PartialEq)]
pub struct Outside {
    /// Its index, outermost axis first.
    pub index: Vec<usize>,
    /// Type and extents of its tensor.
    pub ty: String,
    /// What the interpreter computes.
    pub expected: f64,
    /// What the kernel returned.
    pub got: f64,
    /// The least that is allowed.
    pub low: f64,
    /// The most that is allowed.
    pub high: f64,
}

impl fmt::Display for Outside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Outside { index, ty, expected, got, low, high } = self;
        write!(
            f,
            "at {index:?} of {ty}: expected {expected:?}, got {got:?}, which is outside {low:?} ..= {high:?}"
        )
    }
}
