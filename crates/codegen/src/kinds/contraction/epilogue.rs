//! The epilogue of a matvec: combines the partials of a tile, applies the fused ops and stores the results.

use minijinja::context;
use tallow_ir::dot;
use tallow_ir::form::{ContractionForm, Segment};
use tallow_ir::index::Index;

use super::column_groups;
use super::epilogue_prefetch::EpiloguePrefetch;
use super::store::stores;
use super::sums::{EpilogueInputs, Sums};
use crate::blocks::{quantize_results, reduction};
use crate::emit::{Anchor, Emitter};
use crate::kernel::CodegenError;
use crate::template::render;

/// Generates the code after a segment's products: partials, column-group reductions, the epilogue of each column and
/// quantized blocks. Closes the segment's scope and returns its lines too, as `(prelude, epilogue)`.
pub(crate) fn end(
    e: &mut Emitter<'_>,
    used: &mut reduction::Used,
    form: &ContractionForm,
    segment: &Segment,
    batch: &Index,
    buffers: &[usize],
    sums: &Sums<'_>,
) -> Result<(String, String), CodegenError> {
    let Sums { m, tile, workgroup, parts, part_floats, around: EpilogueInputs { late, early } } = *sums;
    let neighbours = quantize_results::neighbours(e, segment);
    let t = if neighbours { "gl_SubgroupID * gl_SubgroupSize + gl_SubgroupInvocationID" } else { "lane" };
    let n = e.dim(&segment.n);
    e.open(); // after the products
    if let Some(late) = late {
        late.walk.in_groups(e, |e| reduction::finish(e, used, &late.own, late.walk))?;
    }
    let depth = e.depth() + 1;
    for (i, id) in segment.anchors.iter().enumerate() {
        let row = format!("{}u + m * {tile}u", i as u32 * m * tile);
        let anchor = Anchor::Tile { array: "tile".into(), row, base: "column0".into(), depth, call: false };
        e.anchors.insert(*id, anchor);
    }
    let reduce = column_groups::lines(e, used, form, segment, batch, sums)?;
    e.open(); // the epilogue
    let [row, column] = match early {
        Some(EpiloguePrefetch { row, column, .. }) => [e.bind_atom(*row, "m"), e.bind_atom(*column, "n")],
        None => [e.atom(&form.m, "m"), e.atom(&segment.n, "n")],
    };
    if let Some(early) = early {
        early.show(e);
    }
    stores(e, form, segment, [batch, &row, &column], buffers)?;
    if let Some(early) = early {
        early.hide(e);
    }
    let store = e.close().join("\n");
    let blocks = quantize_results::of_segment(e, form, segment, batch, buffers)?;
    let late = e.close().join("\n");
    let prelude = e.close().join("\n");
    let floats = segment.anchors.len() as u32 * m * tile;
    let holes = context! { late, t, m, tile, workgroup, parts, part_floats, floats, n, reduce, store, blocks, block => dot::BLOCK };
    Ok((prelude, render("matvec_epilogue.glsl", holes)?))
}
