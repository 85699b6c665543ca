//! Lists whose memory the next run uses again.

/// An empty list in the memory of another, whose elements differ in lifetimes alone.
pub(crate) fn emptied<A, B>(mut list: Vec<A>) -> Vec<B> {
    list.clear();
    // A vector collects into the memory of the one that it iterates over, if elements are as large.
    list.into_iter().map_while(|_| None).collect()
}
