//! The grid of a contraction: workgroups along the columns of its segments.

use tallow_ir::Dim;
use tallow_ir::form::{ContractionForm, Segment};

use crate::emit::Emitter;
use crate::kernel::Count;

/// Workgroups along the column axis: one per tile of columns of each segment.
pub(crate) fn columns_grid(form: &ContractionForm, tiles: &[u32], limit: u32) -> Count {
    let count = |segment: &Segment, per: u32| Count { value: segment.n.clone(), per, limit };
    if let ([segment], [tile]) = (form.segments.as_slice(), tiles) {
        return count(segment, *tile);
    }
    // A `Dim` divides only without remainder, so a segment of symbolic width counts one workgroup per column.
    // Workgroups without a tile exit at once.
    let groups = form.segments.iter().zip(tiles).fold(Dim::zero(), |sum, (segment, tile)| {
        let all = || &segment.n + &Dim::constant(i64::from(tile - 1));
        let own = count(segment, *tile);
        &sum + &segment.n.as_const().map_or_else(all, |_| Dim::constant(own.most() as i64))
    });
    Count { value: groups, per: 1, limit }
}

/// The number of workgroups of one segment, as a GLSL `uint` expression.
pub(crate) fn segment_groups(e: &mut Emitter<'_>, segment: &Segment, tile: u32) -> String {
    match segment.n.as_const() {
        Some(n) => format!("{}u", u64::try_from(n).unwrap_or(0).div_ceil(u64::from(tile))),
        None => format!("({} + {}u) / {tile}u", e.dim(&segment.n), tile - 1),
    }
}
