//! Epilogues that read results from a staging tile in shared memory, so that they may read other columns of the tile.

use super::store::stores;
use super::tile_code::Matmul;
use crate::emit::{Anchor, Emitter};
use crate::error::CodegenError;
use crate::lines::block;

/// A part of an output tile that is staged at a time: some of its rows, all columns of all anchors.
pub(crate) struct StagingTile {
    /// The loop over the parts.
    pub passes: String,
    /// Lines that write the accumulators of a part to shared memory.
    pub write: Vec<String>,
    /// Rows of a part.
    pub rows: u32,
    /// Row `r` of the part as a row of the output tile.
    pub row: String,
    /// The position of row `r` of an anchor with this many columns, in elements.
    pub at: Box<dyn Fn(u32, u32) -> String>,
}

/// Generates the epilogue of a segment: the workgroup stages a part of the tile, then stores its results.
pub(crate) fn epilogue(
    e: &mut Emitter<'_>,
    mm: &Matmul<'_>,
    number: usize,
    staging: StagingTile,
) -> Result<Vec<String>, CodegenError> {
    let (segment, bn) = (&mm.form.segments[number], mm.columns[number]);
    let store = e.scoped_lines(|e| {
        let depth = e.depth();
        for (i, id) in segment.anchors.iter().enumerate() {
            let (array, base) = ("result".into(), "column0".into());
            let row = (staging.at)(i as u32, bn);
            e.anchors.insert(*id, Anchor::Tile { array, row, base, depth, call: true });
        }
        let (row, column) = (e.atom(&mm.form.m, "m"), e.atom(&segment.n, "n"));
        stores(e, mm.form, segment, [&mm.batch, &row, &column], &mm.buffers)
    })?;
    let n = e.dim(&segment.n);
    let StagingTile { passes, write, rows, row, .. } = staging;
    let coordinates = format!("const uint r = t / {bn}u, m = row0 + {row}, n = column0 + t % {bn}u;");
    let store = block(&format!("if (m < {} && n < {n})", mm.m), store);
    let head = format!("for (uint t = lane; t < {}u; t += {}u)", rows * bn, mm.schedule.workgroup);
    let results = block(&head, [vec![coordinates], store].concat());
    let barrier = || vec!["barrier();".to_string()];
    Ok(block(&passes, [write, barrier(), results, barrier()].concat()))
}
