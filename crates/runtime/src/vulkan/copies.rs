//! The copies of weights on a device that are in use, so that executables of one weight share them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tallow_ir::Graph;

use super::buffer::Buffer;
use super::pool::Block;

/// What identifies memory while its contents stay the same. (The buffer of a block does not: the pool uses it again.)
pub(crate) enum Origin {
    /// A value's.
    Block(Weak<Block>),
    /// Its own buffer.
    Buffer(Weak<Buffer>),
}

impl Origin {
    fn is(&self, other: &Origin) -> bool {
        match (self, other) {
            (Origin::Block(a), Origin::Block(b)) => a.ptr_eq(b),
            (Origin::Buffer(a), Origin::Buffer(b)) => a.ptr_eq(b),
            (Origin::Block(_), Origin::Buffer(_)) | (Origin::Buffer(_), Origin::Block(_)) => false,
        }
    }
}

/// Copies by what they are made of and how. A copy's owner also owns its origin ([`crate::resident::DeviceWeight`]), so
/// that nobody overwrites the origin while the copy is in use.
#[derive(Default)]
pub(crate) struct Copies(Mutex<Vec<(Origin, Graph, Weak<Buffer>)>>);

impl Copies {
    /// The copy that `graph` makes of the origin, if somebody uses it.
    pub fn find(&self, origin: &Origin, graph: &Graph) -> Option<Arc<Buffer>> {
        let entries = self.entries();
        let mut found = entries.iter().filter(|(of, by, _)| of.is(origin) && by == graph);
        found.find_map(|(_, _, copy)| copy.upgrade())
    }

    /// Adds a copy, and forgets those that nobody uses any more.
    pub fn add(&self, origin: Origin, graph: &Graph, copy: &Arc<Buffer>) {
        let mut entries = self.entries();
        entries.retain(|(_, _, copy)| copy.strong_count() > 0);
        entries.push((origin, graph.clone(), Arc::downgrade(copy)));
    }

    fn entries(&self) -> MutexGuard<'_, Vec<(Origin, Graph, Weak<Buffer>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
