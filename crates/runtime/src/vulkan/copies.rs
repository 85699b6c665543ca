//! The copies of weights on a device that are in use, so that executables of one weight share them.

use std::any::Any;
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

/// A copy in use.
struct Entry {
    origin: Origin,
    graph: Graph,
    copy: Weak<Buffer>,
    /// What all owners of the copy keep. Work of the stream keeps the buffer of a copy longer than its owners, and nothing
    /// keeps the origin from being overwritten then.
    original: Weak<Original>,
}

/// A weight, of whose type this module knows nothing.
pub(crate) type Original = dyn Any + Send + Sync;

/// Copies by what they are made of and how.
#[derive(Default)]
pub(crate) struct Copies(Mutex<Vec<Entry>>);

impl Copies {
    /// The copy that `graph` makes of the origin, if somebody owns it, and what its owners keep.
    pub fn find(&self, origin: &Origin, graph: &Graph) -> Option<(Arc<Buffer>, Arc<Original>)> {
        let entries = self.entries();
        let mut found = entries.iter().filter(|entry| entry.origin.is(origin) && entry.graph == *graph);
        found.find_map(|entry| Some((entry.copy.upgrade()?, entry.original.upgrade()?)))
    }

    /// Adds a copy of an original, whose memory is `origin`, and forgets those that nobody owns any more.
    pub fn add(&self, origin: Origin, graph: &Graph, copy: &Arc<Buffer>, original: &Arc<Original>) {
        let mut entries = self.entries();
        entries.retain(|entry| entry.original.strong_count() > 0);
        let (copy, original) = (Arc::downgrade(copy), Arc::downgrade(original));
        entries.push(Entry { origin, graph: graph.clone(), copy, original });
    }

    fn entries(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
