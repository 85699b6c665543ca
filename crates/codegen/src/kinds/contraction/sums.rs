//! The sums of a matvec's tile in shared memory, and what its epilogue needs besides.

use tallow_ir::form::ContractionForm;

use super::epilogue_prefetch::EpiloguePrefetch;
use crate::blocks::{reduction, row_loop};

/// Sums of a tile, of the segment that has most.
pub(crate) fn part_floats(form: &ContractionForm, m: u32, tiles: &[u32]) -> u32 {
    let floats = form.segments.iter().zip(tiles).map(|(s, tile)| s.anchors.len() as u32 * m * tile);
    floats.max().unwrap_or(0)
}

/// Where the sums of a tile are, for its epilogue.
pub(crate) struct Sums<'a> {
    pub m: u32,
    pub tile: u32,
    pub workgroup: u32,
    /// Parts that each sum is still in, so many floats apart.
    pub parts: u32,
    pub part_floats: u32,
    /// What else is done around the products.
    pub around: EpilogueInputs<'a>,
}

/// What else is done around the products.
#[derive(Clone, Copy, Default)]
pub(crate) struct EpilogueInputs<'a> {
    /// What is met for behind them.
    pub late: Option<&'a DeferredReduction<'a>>,
    /// What was asked for in front of them.
    pub early: Option<&'a EpiloguePrefetch>,
}

/// Reductions of the row in front of the products, of which each invocation has its part, and that only the epilogue reads.
pub(crate) struct DeferredReduction<'a> {
    pub own: reduction::Own,
    pub walk: &'a row_loop::RowLoop,
}
