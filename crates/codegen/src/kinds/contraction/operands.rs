//! The operands of a contraction: coordinates, accumulator type, and loads of weights along K.

use tallow_ir::form::ContractionForm;
use tallow_ir::index::{AtomDef, AtomId, Index};
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
    extent.divisor().is_multiple_of(by.into())
}

/// Batch coordinates of an operand; batch extents of 1 are broadcast.
fn batch_at(e: &mut Emitter<'_>, batch: &Shape, operand: &Shape, linear: &Index) -> Vec<Index> {
    let at = e.atoms.unflatten(linear, batch);
    let pick = |(i, d): (Index, &Dim)| if d.is(1) { Index::default() } else { i };
    at.into_iter().zip(operand.dims()).map(pick).collect()
}

/// Coordinates of an element from its K index.
pub(crate) type AlongK<'a> = &'a mut dyn FnMut(&mut Emitter<'_>, Index) -> Vec<Index>;

/// The buffer and the position of the first of the neighbours that `find` finds along an atom. `None` if there are none.
pub(crate) type Find<'a> = &'a dyn Fn(&mut Emitter<'_>, &[Index], AtomId) -> Option<(usize, Index)>;

/// The buffer and the position of element `k0`, whose neighbours are adjacent: all along K, or those of the same `group`.
/// Emits what the position needs.
pub(crate) fn from_k0(
    e: &mut Emitter<'_>,
    (extent, group): (&Dim, i64),
    at: AlongK<'_>,
    find: Find<'_>,
) -> Result<Option<(usize, String)>, CodegenError> {
    let probe = e.atoms.fresh(extent, AtomDef::Free);
    let k = e.atoms.index(probe);
    let place = at(e, k);
    if let Some((buffer, base)) = find(e, &place, probe) {
        return Ok(Some((buffer, format!("{} + k0", e.index(&base)?.text))));
    }
    let by = Dim::constant(group);
    let Some(groups) = extent.div_exact(&by) else { return Ok(None) };
    e.line(format!("const uint chunk = k0 / {group}u;"));
    let chunk = e.atom(&groups, "chunk");
    let j = e.atoms.fresh(&by, AtomDef::Free);
    let element = e.atoms.index(j);
    let k = e.atoms.add(&chunk.scale(&by), &element);
    let place = at(e, k);
    let Some((buffer, base)) = find(e, &place, j) else { return Ok(None) };
    Ok(Some((buffer, format!("{} + k0 % {group}u", e.index(&base)?.text))))
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
        if i64::from(step) == operand::WIDE && operand::reads_groups(e.body, rhs) {
            let at = &mut |e: &mut Emitter<'_>, k| right_at(e, form, rhs, [batch, &column, &k]);
            let find = &|e: &mut Emitter<'_>, at: &[Index], k| operand::wide(e, rhs, at, k);
            if let Some((buffer, first)) = from_k0(e, (&form.k, operand::WIDE), at, find)? {
                let load = e.buffers[buffer].load_eight(&first, "w");
                e.line(load);
                return Ok(());
            }
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
