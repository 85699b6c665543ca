//! Stores of a contraction's results.

use tallow_ir::Shape;
use tallow_ir::form::{ContractionForm, Segment, output_root, rounded_root};
use tallow_ir::index::Index;

use crate::blocks::quantize_results;
use crate::emit::Emitter;
use crate::kernel::CodegenError;

/// Stores all outputs of a segment at the loops' batch, row and column; what is rounded to blocks waits for the others of
/// its block in shared memory, element `t` of the tile.
pub(crate) fn stores(
    e: &mut Emitter<'_>,
    form: &ContractionForm,
    segment: &Segment,
    at: [&Index; 3],
    buffers: &[usize],
) -> Result<(), CodegenError> {
    let all = Shape::new(vec![form.batch.numel(), form.m.clone(), segment.n.clone()]);
    let linear = e.atoms.flatten(&[at[0].clone(), at[1].clone(), at[2].clone()], &all);
    let mut waiting = 0;
    for output in &segment.outputs {
        if let Some(rounded) = rounded_root(e.body, *output) {
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
