//! The operands of a contraction: coordinates, accumulator type, and loads of weights along K.

use tallow_ir::form::ContractionForm;
use tallow_ir::index::{AtomDef, Index};
use tallow_ir::{DType, Dim, Shape};

use crate::blocks::operand;
use crate::emit::Emitter;
use crate::error::CodegenError;
use crate::glsl::Glsl;

/// The accumulator type: f32 for narrow floats, otherwise the type that holds the element in registers.
pub(crate) fn accumulator(e: &Emitter<'_>, form: &ContractionForm) -> Result<(Glsl, DType), CodegenError> {
    let mut found = None;
    for id in form.segments.iter().flat_map(|s| &s.anchors) {
        let dtype = e.body.node(*id).types[0].dtype;
        let ty = Glsl::of(dtype, e.caps).filter(|ty| found.is_none_or(|(first, _)| first == *ty));
        let refused = || CodegenError::Dtype { what: e.body.node_text(*id), dtype };
        found = Some((ty.ok_or_else(refused)?, dtype));
    }
    Ok(found.unwrap_or((Glsl::Float, DType::F32)))
}

/// Coordinates of the left operand from batch, row and K index.
pub(crate) fn left_at(
    e: &mut Emitter<'_>,
    form: &ContractionForm,
    batch: &Index,
    m: &Index,
    k: &Index,
) -> Vec<Index> {
    let shape = e.body.ty(form.lhs).shape.clone();
    let mut at = batch_at(e, &form.batch, &shape, batch);
    at.extend([m.clone(), k.clone()]);
    at
}

/// Batch coordinates of an operand; batch extents of 1 are broadcast.
pub(crate) fn batch_at(e: &mut Emitter<'_>, batch: &Shape, operand: &Shape, linear: &Index) -> Vec<Index> {
    let at = e.atoms.unflatten(linear, batch);
    let pick = |(i, d): (Index, &Dim)| if d.is(1) { Index::default() } else { i };
    at.into_iter().zip(operand.dims()).map(pick).collect()
}

/// Lines that load the right operand's elements `k0 .. k0 + step` of column `n` into `w`.
pub(crate) fn right(
    e: &mut Emitter<'_>,
    form: &ContractionForm,
    id: tallow_ir::NodeId,
    batch: &Index,
    step: u32,
) -> Result<Vec<String>, CodegenError> {
    let rhs = e.body.node(id).operands[1];
    let shape = e.body.ty(rhs).shape.clone();
    e.scoped_lines(|e| {
        let column = e.atom(&shape.dims()[shape.rank() - 1].clone(), "n");
        let probe = e.atoms.fresh(&form.k, AtomDef::Free);
        let mut at = batch_at(e, &form.batch, &shape, batch);
        at.extend([e.atoms.index(probe), column.clone()]);
        let found = if i64::from(step) == operand::WIDE { operand::wide(e, rhs, &at, probe) } else { None };
        if let Some((buffer, base)) = found {
            let base = e.index(&base)?;
            let load = e.buffers[buffer].load_eight(&format!("{} + k0", base.text), "w");
            e.line(load);
            return Ok(());
        }
        e.block(&format!("[[unroll]] for (uint j = 0u; j < {step}u; ++j)"), |e| {
            e.line("const uint k = k0 + j;");
            let k = e.atom(&form.k, "k");
            let mut at = batch_at(e, &form.batch, &shape, batch);
            at.extend([k, column]);
            let w = e.value(rhs, &at)?;
            e.line(format!("w[j] = {};", w.text));
            Ok(())
        })
    })
}
