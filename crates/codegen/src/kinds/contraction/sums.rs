//! The sums of a matvec's tile in shared memory, and the other inputs of its epilogue.

use tallow_ir::form::ContractionForm;

use super::epilogue_prefetch::EpiloguePrefetch;
use crate::blocks::{reduction, row_loop};

/// Number of sums per tile, for the segment that has the most.
pub(crate) fn part_floats(form: &ContractionForm, m: u32, tiles: &[u32]) -> u32 {
    let floats = form.segments.iter().zip(tiles).map(|(s, tile)| s.anchors.len() as u32 * m * tile);
    floats.max().unwrap_or(0)
}

/// The layout of a tile's sums in shared memory, for its epilogue.
pub(crate) struct Sums<'a> {
    pub m: u32,
    pub tile: u32,
    pub workgroup: u32,
    /// Partials per sum that are still to be combined, `part_floats` floats apart.
    pub parts: u32,
    pub part_floats: u32,
    /// Its other inputs.
    pub around: EpilogueInputs<'a>,
}

/// Inputs of the epilogue besides the sums.
#[derive(Clone, Copy, Default)]
pub(crate) struct EpilogueInputs<'a> {
    /// Reductions of the prologue that are combined after the products.
    pub late: Option<&'a DeferredReduction<'a>>,
    /// Operands that were prefetched before the products.
    pub early: Option<&'a EpiloguePrefetch>,
}

/// Prologue reductions that only the epilogue reads. Each invocation holds a partial; the partials are combined after
/// the products.
pub(crate) struct DeferredReduction<'a> {
    pub own: reduction::Own,
    pub walk: &'a row_loop::RowLoop,
}
