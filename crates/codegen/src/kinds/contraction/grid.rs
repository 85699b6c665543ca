//! The grid of a contraction: workgroups along the columns of its segments.

use tallow_ir::Dim;
use tallow_ir::form::{ContractionForm, Segment};

use crate::emit::Emitter;
use crate::kernel::Count;

/// Widest tile of a matvec, for results with more columns than the grid has workgroups: 65535 workgroups then cover 16
/// million columns.
pub(crate) const MAX_COLUMNS: u32 = 256;

/// The tile of each segment: `columns`, rounded up to what its epilogue needs together, and widened if the grid limit
/// requires it.
pub(crate) fn widened(e: &Emitter<'_>, form: &ContractionForm, columns: u32) -> Vec<u32> {
    let limit = e.caps.max_workgroup_count[0];
    let mut tiles: Vec<u32> = form.segments.iter().map(|s| columns.next_multiple_of(s.tile.max(1))).collect();
    while columns_grid(form, &tiles, limit).most() > u64::from(limit)
        && tiles.iter().all(|t| *t < MAX_COLUMNS)
    {
        tiles.iter_mut().for_each(|t| *t *= 2);
    }
    tiles
}

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
        let groups = count(segment, *tile);
        &sum + &segment.n.as_const().map_or_else(all, |_| Dim::constant(groups.most() as i64))
    });
    Count { value: groups, per: 1, limit }
}

/// The workgroups of one segment, by the variable `group`.
pub(crate) struct Range {
    /// GLSL condition that a workgroup belongs to the segment.
    pub test: String,
    /// The workgroup's first column in the segment, as an expression.
    pub column0: String,
}

/// The workgroups of each segment, with tiles of this many columns.
pub(crate) fn ranges(e: &mut Emitter<'_>, form: &ContractionForm, tiles: &[u32]) -> Vec<Range> {
    let (mut constant, mut symbolic) = (0, vec![]);
    let end_of = |constant: u64, symbolic: &[String]| {
        let constant = (constant > 0).then(|| format!("{constant}u"));
        symbolic.iter().cloned().chain(constant).collect::<Vec<_>>().join(" + ")
    };
    let mut all = vec![];
    for (i, (segment, tile)) in form.segments.iter().zip(tiles).enumerate() {
        let first = end_of(constant, &symbolic);
        match segment.n.as_const() {
            Some(n) => constant += u64::try_from(n).unwrap_or(0).div_ceil(u64::from(*tile)),
            None => symbolic.push(format!("({} + {}u) / {tile}u", e.dim(&segment.n), tile - 1)),
        }
        let end = end_of(constant, &symbolic);
        let end = if end.is_empty() { "0u" } else { &end };
        all.push(match i {
            0 => Range { test: format!("group < {end}"), column0: format!("group * {tile}u") },
            _ => {
                let first = if first.is_empty() { "0u" } else { &first };
                Range {
                    test: format!("group >= {first} && group < {end}"),
                    column0: format!("(group - ({first})) * {tile}u"),
                }
            }
        });
    }
    all
}

/// The number of workgroups of one segment, as a GLSL `uint` expression.
pub(crate) fn segment_groups(e: &mut Emitter<'_>, segment: &Segment, tile: u32) -> String {
    match segment.n.as_const() {
        Some(n) => format!("{}u", u64::try_from(n).unwrap_or(0).div_ceil(u64::from(tile))),
        None => format!("({} + {}u) / {tile}u", e.dim(&segment.n), tile - 1),
    }
}
