//! The epilogue of a matvec: combines the partials of a tile, applies the fused ops and stores the results.

use minijinja::context;
use tallow_ir::dot;
use tallow_ir::form::ContractionForm;

use super::column_groups;
use super::epilogue_prefetch::EpiloguePrefetch;
use super::plan::Matvec;
use super::store::stores;
use crate::blocks::reduce_functions::{Accumulator, Used};
use crate::blocks::row_loop::RowLoop;
use crate::blocks::{quantize_results, reduction};
use crate::emit::{Anchor, Emitter};
use crate::error::CodegenError;
use crate::template::render;

/// Number of sums per tile, for the segment that has the most.
pub(crate) fn slice_floats(form: &ContractionForm, m: u32, tiles: &[u32]) -> u32 {
    let floats = form.segments.iter().zip(tiles).map(|(s, tile)| s.anchors.len() as u32 * m * tile);
    floats.max().unwrap_or(0)
}

/// Inputs of the epilogue besides the sums.
#[derive(Clone, Copy)]
pub(crate) struct Inputs<'a> {
    /// Reductions of the prologue that are combined after the products.
    pub deferred: Option<&'a Deferred<'a>>,
    /// Operands that were prefetched before the products.
    pub prefetched: Option<&'a EpiloguePrefetch>,
}

/// Prologue reductions that only the epilogue reads. Each invocation holds a partial; the partials are combined after
/// the products.
pub(crate) struct Deferred<'a> {
    pub accumulators: Vec<Accumulator>,
    pub row_loop: &'a RowLoop,
}

/// Generates the code after a segment's products: partials, column-group reductions, the epilogue of each column and
/// quantized blocks.
pub(crate) fn emit(
    e: &mut Emitter<'_>,
    used: &mut Used,
    mv: &Matvec<'_>,
    number: usize,
    Inputs { deferred, prefetched }: Inputs<'_>,
) -> Result<String, CodegenError> {
    let (segment, tile) = (&mv.form.segments[number], mv.tiles[number]);
    let (m, workgroup) = (mv.m, mv.workgroup);
    let neighbours = quantize_results::neighbours(e, segment);
    let t = if neighbours { "gl_SubgroupID * gl_SubgroupSize + gl_SubgroupInvocationID" } else { "lane" };
    let n = e.dim(&segment.n);
    let exists = mv.rows.as_ref().map_or(String::new(), |rows| format!(" && m < {rows}"));
    let ((reduce, store, blocks), deferred) = e.scope(|e| {
        if let Some(Deferred { accumulators, row_loop }) = deferred {
            row_loop.in_groups(e, |e| reduction::finish(e, used, accumulators, row_loop))?;
        }
        let depth = e.depth() + 1;
        for (i, id) in segment.anchors.iter().enumerate() {
            let row = format!("{}u + m * {tile}u", i as u32 * m * tile);
            let (array, base) = ("tile".into(), "column0".into());
            e.anchors.insert(*id, Anchor::Tile { array, row, base, depth, call: false });
        }
        let reduce = column_groups::lines(e, used, mv, number)?;
        let store = e.scoped_lines(|e| {
            let [row, column] = match prefetched {
                Some(EpiloguePrefetch { row, column, .. }) => {
                    [e.bind_atom(*row, "m"), e.bind_atom(*column, "n")]
                }
                None => [e.atom(&mv.form.m, "m"), e.atom(&segment.n, "n")],
            };
            if let Some(prefetched) = prefetched {
                prefetched.show(e);
            }
            stores(e, mv.form, segment, [&mv.batch, &row, &column], &mv.buffers)?;
            if let Some(prefetched) = prefetched {
                prefetched.hide(e);
            }
            Ok(())
        })?;
        let blocks = quantize_results::of_segment(e, mv.form, segment, &mv.batch, &mv.buffers)?;
        Ok((reduce, store.join("\n"), blocks))
    })?;
    let floats = segment.anchors.len() as u32 * m * tile;
    let (slices, slice_floats) = (mv.slices, mv.slice_floats);
    let holes = context! {
        deferred => deferred.join("\n"), t, m, tile, workgroup, slices, slice_floats, floats, n, exists, reduce, store, blocks,
        block => dot::BLOCK,
    };
    render("matvec_epilogue.glsl", holes)
}
