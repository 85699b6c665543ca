//! The operands of a contraction: coordinates, accumulator type, and loads of weights along K.

use tallow_ir::form::ContractionForm;
use tallow_ir::index::{AtomDef, Index};
use tallow_ir::{DType, Dim, NodeId, Shape, Value};

use crate::blocks::operand;
use crate::emit::Emitter;
use crate::error::CodegenError;
use crate::glsl::Glsl;
use crate::lines::unrolled;

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

/// Coordinates of a right operand from batch, column and K index.
pub(crate) fn right_at(
    e: &mut Emitter<'_>,
    form: &ContractionForm,
    rhs: Value,
    [batch, column, k]: [&Index; 3],
) -> Vec<Index> {
    let shape = e.body.ty(rhs).shape.clone();
    let mut at = batch_at(e, &form.batch, &shape, batch);
    at.extend([k.clone(), column.clone()]);
    at
}

/// The variable `n` that counts the columns of a right operand.
pub(crate) fn column(e: &mut Emitter<'_>, rhs: Value) -> Index {
    let shape = &e.body.ty(rhs).shape;
    e.atom(&shape.dims()[shape.rank() - 1], "n")
}

/// Whether an extent is a multiple of `by`, whatever the symbols stand for.
pub(crate) fn is_multiple(extent: &Dim, by: u32) -> bool {
    extent.as_const().is_some_and(|n| n % i64::from(by) == 0)
}

/// Batch coordinates of an operand; batch extents of 1 are broadcast.
fn batch_at(e: &mut Emitter<'_>, batch: &Shape, operand: &Shape, linear: &Index) -> Vec<Index> {
    let at = e.atoms.unflatten(linear, batch);
    let pick = |(i, d): (Index, &Dim)| if d.is(1) { Index::default() } else { i };
    at.into_iter().zip(operand.dims()).map(pick).collect()
}

/// Lines that load the right operand's elements `k0 .. k0 + step` of column `n` into `w`.
pub(crate) fn right(
    e: &mut Emitter<'_>,
    form: &ContractionForm,
    id: NodeId,
    batch: &Index,
    step: u32,
) -> Result<Vec<String>, CodegenError> {
    let rhs = e.body.node(id).operands[1];
    e.scoped_lines(|e| {
        let column = column(e, rhs);
        let probe = e.atoms.fresh(&form.k, AtomDef::Free);
        let k = e.atoms.index(probe);
        let at = right_at(e, form, rhs, [batch, &column, &k]);
        let found = if i64::from(step) == operand::WIDE { operand::wide(e, rhs, &at, probe) } else { None };
        if let Some((buffer, base)) = found {
            let base = e.index(&base)?;
            let load = e.buffers[buffer].load_eight(&format!("{} + k0", base.text), "w");
            e.line(load);
            return Ok(());
        }
        e.block(&unrolled("j", step), |e| {
            e.line("const uint k = k0 + j;");
            let k = e.atom(&form.k, "k");
            let at = right_at(e, form, rhs, [batch, &column, &k]);
            let w = e.value(rhs, &at)?;
            e.line(format!("w[j] = {};", w.text));
            Ok(())
        })
    })
}
