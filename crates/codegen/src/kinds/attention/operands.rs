//! Loads of queries, keys and values, and stores of results, shared by all attention kernels.

use tallow_ir::form::{AttentionForm, output_root};
use tallow_ir::index::{AtomDef, Index};
use tallow_ir::{DType, DeviceCaps, Dim, Value};

use crate::blocks::operand::{self, WIDE};
use crate::emit::{Anchor, Emitter, Expr};
use crate::kernel::CodegenError;
use crate::library::Uses;
use crate::scalar::{self, Glsl};

/// Lanes of a team: those that together read a key or value of up to `elements` elements, eight each. `None` if a
/// subgroup would have several teams and the device cannot combine them.
pub(crate) fn team(caps: &DeviceCaps, elements: u32) -> Option<u32> {
    let lanes = elements.div_ceil(WIDE as u32).next_power_of_two().min(caps.scheduled_subgroup_size());
    (lanes == caps.scheduled_subgroup_size() || caps.subgroup_shuffle).then_some(lanes)
}

/// Whether eight adjacent elements of a row of `value`, from any multiple of eight on, are contiguous in a buffer.
pub(crate) fn has_eights(e: &mut Emitter<'_>, value: Value) -> bool {
    let dims = e.body.ty(value).shape.dims().to_vec();
    let Some((last, rows)) = dims.split_last() else { return false };
    let rows: Vec<Index> = rows.iter().map(|n| e.atoms.free(n)).collect();
    last.div_exact(&WIDE.into()).is_some() && neighbours_of(e, value, &rows, last).is_some()
}

/// The line that loads eight adjacent elements of a row of `value`, from element `name` on. Requires [`has_eights`].
pub(crate) fn eight(
    e: &mut Emitter<'_>,
    value: Value,
    row: &[Index],
    name: &str,
) -> Result<Vec<String>, CodegenError> {
    let last = e.body.ty(value).shape.dims()[row.len()].clone();
    let found = neighbours_of(e, value, row, &last);
    let (buffer, base) = found.ok_or_else(|| CodegenError::Node(e.body.node_text(value.node)))?;
    let base = e.index(&base)?.text;
    Ok(vec![e.buffers[buffer].load_eight(&format!("{base} + {name}"), "w")])
}

/// Whether eight adjacent elements of `value` are one load that may be prefetched before the kernel knows the number of
/// rows. No row below `rows` may lie past the end of the buffer.
pub(crate) fn holds(e: &mut Emitter<'_>, value: Value, rows: i64) -> bool {
    let dims = e.body.ty(value).shape.dims().to_vec();
    let [g, _, last] = dims.as_slice() else { return false };
    let row = [e.atoms.free(g), e.atoms.free(&Dim::constant(rows))];
    let probe = e.atoms.fresh(last, AtomDef::Free);
    let at = [&row[..], &[e.atoms.index(probe)]].concat();
    let Some((buffer, base)) = operand::one_load(e, value, &at, probe) else { return false };
    let end = e.atoms.max(&base).map(|at| at.max_value() + last.max_value());
    end.is_some_and(|end| u64::try_from(end).is_ok_and(|end| end <= e.buffers[buffer].elements))
}

/// The load of eight adjacent elements of a row of `value`, from element `name` on, and the function that widens the
/// loaded word. Requires [`holds`].
pub(crate) fn held(
    e: &mut Emitter<'_>,
    value: Value,
    row: &[Index],
    name: &str,
) -> Result<(String, String), CodegenError> {
    let last = e.body.ty(value).shape.dims()[row.len()].clone();
    let found = neighbours_of(e, value, row, &last);
    let (buffer, base) = found.ok_or_else(|| CodegenError::Node(e.body.node_text(value.node)))?;
    let (base, b) = (e.index(&base)?.text, e.buffers[buffer].binding);
    e.buffers[buffer].widens = true;
    Ok((format!("wide{b}(({base} + {name}) >> 3)"), format!("widen8_{b}")))
}

fn neighbours_of(e: &mut Emitter<'_>, value: Value, row: &[Index], last: &Dim) -> Option<(usize, Index)> {
    let probe = e.atoms.fresh(last, AtomDef::Free);
    let mut at = row.to_vec();
    at.push(e.atoms.index(probe));
    operand::wide(e, value, &at, probe)
}

/// The lines that store `result`, of type `wide`, to all outputs as the attention's element at head, query and column
/// `at`. Ends the open scope.
pub(crate) fn store(
    e: &mut Emitter<'_>,
    form: &AttentionForm,
    wide: DType,
    at: [Index; 3],
) -> Result<String, CodegenError> {
    let ty = e.body.node(form.node).types[0].clone();
    let text = if ty.dtype == wide { "result".into() } else { narrow(wide, ty.dtype, e.uses()) };
    let depth = e.depth();
    e.anchors.insert(form.node, Anchor::Var(Expr { text, depth }));
    let linear = e.atoms.flatten(&at, &ty.shape);
    for output in 0..e.body.outputs().len() {
        let buffer = e.result(output as u32);
        let to = e.body.ty(output_root(e.body, output)).shape.clone();
        let at = e.atoms.unflatten(&linear, &to);
        e.store(output as u32, buffer, &at)?;
    }
    Ok(e.close().join("\n"))
}

/// The accumulator type of scores and sums: f64 if an operand is f64, else f32.
pub(crate) fn accumulator(e: &Emitter<'_>, form: &AttentionForm) -> Result<DType, CodegenError> {
    let mut wide = DType::F32;
    for v in &e.body.node(form.node).operands {
        let dtype = e.body.ty(*v).dtype;
        match Glsl::of(dtype, e.caps) {
            Some(Glsl::Double) => wide = DType::F64,
            Some(Glsl::Float) => {}
            Some(Glsl::Uint | Glsl::Int | Glsl::Long) | None => {
                return Err(CodegenError::Dtype { what: e.body.node_text(form.node), dtype });
            }
        }
    }
    Ok(wide)
}

/// An element converted to the accumulator type.
pub(crate) fn widened(
    e: &mut Emitter<'_>,
    wide: DType,
    value: Value,
    at: &[Index],
) -> Result<String, CodegenError> {
    let text = e.value(value, at)?.text;
    Ok(if wide == DType::F64 { scalar::cast(e.body.ty(value).dtype, wide, &text, e.uses()) } else { text })
}

/// The result converted to the attention's type. Floats narrower than f32 remain in f32 where possible.
fn narrow(wide: DType, dtype: DType, uses: &mut Uses) -> String {
    if wide == DType::F64 {
        scalar::cast(wide, dtype, "result", uses)
    } else {
        scalar::held(dtype, "result".into(), uses)
    }
}
