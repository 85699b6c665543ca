//! Whether extents that change become symbols of plans.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// What the extents of lazy expressions are in plans.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dynamic {
    /// Numbers, until an expression comes again with others: those that differ are symbols then, and one plan serves all
    /// that follow, as far as its guards hold.
    #[default]
    Auto,
    /// Numbers: each set of extents has a plan of its own.
    Never,
}

/// What a device knows of it.
#[derive(Debug)]
pub(crate) struct Dynamics {
    is_off: AtomicBool,
    compiled: AtomicU64,
}

impl Dynamics {
    pub const fn new() -> Dynamics {
        Dynamics { is_off: AtomicBool::new(false), compiled: AtomicU64::new(0) }
    }

    pub fn get(&self) -> Dynamic {
        if self.is_off.load(Ordering::Relaxed) { Dynamic::Never } else { Dynamic::Auto }
    }

    pub fn set(&self, dynamic: Dynamic) {
        self.is_off.store(dynamic == Dynamic::Never, Ordering::Relaxed);
    }

    /// How many programs were compiled.
    pub fn compiled(&self) -> u64 {
        self.compiled.load(Ordering::Relaxed)
    }

    /// Counts a compilation.
    pub fn count(&self) {
        self.compiled.fetch_add(1, Ordering::Relaxed);
    }
}
