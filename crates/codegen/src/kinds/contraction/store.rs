//! Stores of a contraction's results.

use tallow_ir::form::{ContractionForm, Segment, output_root, quantized_root};
use tallow_ir::index::Index;

use crate::blocks::quantize_results;
use crate::emit::Emitter;
use crate::error::CodegenError;

/// Emits the stores of all outputs of a segment at this batch, row and column. A value that is quantized goes to shared
/// memory, element `t` of the tile, until its block is complete, unless the subgroup quantizes the block directly.
pub(crate) fn stores(
    e: &mut Emitter<'_>,
    form: &ContractionForm,
    segment: &Segment,
    at: [&Index; 3],
    buffers: &[usize],
) -> Result<(), CodegenError> {
    let mut waiting = 0;
    for output in &segment.outputs {
        let linear = form.element(segment, *output, at.map(Index::clone), &mut e.atoms);
        if let Some(rounded) = quantized_root(e.body, *output) {
            let at = e.atoms.unflatten(&linear, &e.body.ty(rounded).shape);
            let x = e.value(rounded, &at)?;
            if !quantize_results::each(e, *output, buffers[*output], &linear, &x.text)? {
                e.line(format!("rounded{waiting}[t] = {};", x.text));
                waiting += 1;
            }
            continue;
        }
        let shape = e.body.ty(output_root(e.body, *output)).shape.clone();
        let at = e.atoms.unflatten(&linear, &shape);
        e.store(*output as u32, buffers[*output], &at)?;
    }
    Ok(())
}
