//! Results of matrix instructions that are converted from f32 to f16 before they reach shared memory, which takes half of
//! the space and no packing.

use tallow_ir::caps::{MatrixElement, MatrixShape};
use tallow_ir::form::{Segment, output_root};
use tallow_ir::index::Index;
use tallow_ir::{DType, Dim};

use super::k_tile::HALVES;
use crate::blocks::vector_group::Results;
use crate::emit::Emitter;
use crate::error::CodegenError;

/// Whether the segment stores exactly one product, in f16, and the device has f16 accumulators. Then the accumulators
/// are converted to f16 as cooperative matrices with sides of `side`.
pub(crate) fn converts(e: &Emitter<'_>, side: u32, segment: &Segment) -> bool {
    let of_f16 = |s: &MatrixShape| s.c == MatrixElement::F16 && [s.m, s.n, s.k] == [side; 3];
    if !e.caps.cooperative_matrix.iter().any(of_f16) {
        return false;
    }
    let ([anchor], [output]) = (segment.anchors.as_slice(), segment.outputs.as_slice()) else { return false };
    let stored = e.body.ty(e.body.outputs()[*output].value).dtype;
    output_root(e.body, *output).node == *anchor
        && e.body.node(*anchor).types[0].dtype == DType::F16
        && stored == DType::F16
        && e.caps.storage_16bit
}

/// Emits the stores of the 16 bytes in `found0`, the results of column group `g` at this batch and row.
pub(crate) fn store(
    e: &mut Emitter<'_>,
    rows: &Results<'_>,
    [batch, row]: [Index; 2],
    buffers: &[usize],
) -> Result<(), CodegenError> {
    let column = e.atom(&rows.groups(HALVES), "g").scale(&Dim::constant(HALVES.into()));
    let linear = e.atoms.flatten(&[batch, row, column], rows.shape);
    for output in rows.outputs {
        let at = e.atoms.unflatten(&linear, &e.body.ty(output_root(e.body, *output)).shape.clone());
        let written = e.written(*output as u32, &at)?;
        let to = e.index(&written.to)?.text;
        let line = e.buffers[buffers[*output]].store_words(&to, "found0");
        e.line(written.guarded(&line));
    }
    Ok(())
}
