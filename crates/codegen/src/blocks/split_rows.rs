//! Rows shared among workgroups: few rows that are so long that a workgroup for each would leave most of the device idle.
//! Each workgroup reduces its part of a row; the last that is done reduces what the parts gave. No workgroup waits for
//! another, and which is the last does not show in the result, since each part has its place.
//!
//! Few long columns are shared alike, of which a workgroup takes a part of several side by side.

use tallow_ir::ReduceKind;
use tallow_ir::form::{RowForm, bindings};

use super::row_loop::{RowLoop, Share};
use crate::assemble::floor_pow2;
use crate::emit::Emitter;
use crate::kernel::{CodegenError, Scratch};
use crate::scalar::Glsl;

/// Invocations of a part, at least.
const WORKGROUP: u32 = 256;

/// Elements of each invocation of a part of columns, at least. See `form::split`, whose parts are for rows.
const ELEMENTS: i64 = 16;

/// Fewest parts of columns for which it is worthwhile to have several, and parts of all columns at most: of 512 invocations each,
/// as they are, they fill half of the largest devices.
const PARTS: (i64, i64) = (4, 256);

/// How rows are split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RowSplit {
    /// Workgroups of a row, at most as many as each has invocations; or of columns side by side, as many as each has slices.
    pub parts: u32,
    /// Invocations of a workgroup.
    pub workgroup: u32,
}

impl RowSplit {
    /// How the rows of a kernel are split; `None` where a workgroup takes a row as fast, or what is written needs results
    /// of a whole row before its end.
    pub fn of(e: &Emitter<'_>, form: &RowForm) -> Option<RowSplit> {
        let parts = form.parts()?;
        let most = floor_pow2(e.caps.max_workgroup_invocations);
        let parts = parts.min(most);
        let split = RowSplit { parts, workgroup: parts.next_power_of_two().max(WORKGROUP).min(most) };
        possible(e, form, i64::from(split.parts) * i64::from(split.workgroup)).then_some(split)
    }

    /// How columns are split of which there are so many `tiles`, each for a workgroup whose `slices` take groups of `group` columns.
    pub fn of_columns(
        e: &Emitter<'_>,
        form: &RowForm,
        tiles: u32,
        (workgroup, slices, group): (u32, u32, u32),
    ) -> Option<RowSplit> {
        form.rows.as_const()?;
        let inner = form.inner.max_value();
        let each = ELEMENTS * i64::from(slices) / i64::from(group.max(1));
        let parts = (inner / each.max(1)).min(PARTS.1 / i64::from(tiles.max(1))).min(i64::from(slices));
        if parts < PARTS.0 || tiles > e.caps.max_workgroup_count[1] {
            return None;
        }
        let split = RowSplit { parts: u32::try_from(parts).ok()?, workgroup };
        possible(e, form, parts * i64::from(slices)).then_some(split)
    }
}

/// Whether parts can meet, of which a step of all together takes so many elements: nothing is done with a row before its end, and
/// there are bindings to meet in. The loop's variable goes beyond the row by less than a step.
fn possible(e: &Emitter<'_>, form: &RowForm, step: i64) -> bool {
    let bindings = bindings(e.body, e.caps) + form.meeting_places();
    form.ends_with_results(e.body)
        && bindings <= u64::from(e.caps.max_storage_buffers)
        && form.inner.max_value().saturating_add(step) <= i64::from(u32::MAX)
}

/// A value of each part, for all parts of all rows.
#[derive(Clone, Debug)]
pub(crate) struct Partials {
    pub name: String,
    pub ty: Glsl,
}

/// What a reduction found in a part, in each of its invocations: the variable of it, which is to hold what another part
/// found instead, and for positions of extremes that of the position.
pub(crate) struct Partial<'a> {
    pub kind: ReduceKind,
    pub ty: Glsl,
    pub acc: &'a str,
    /// Over the workgroup, as an expression.
    pub reduced: String,
    pub identity: String,
}

/// Emits the end of a part: all but the last workgroup of a row leave there, and in that invocation `p` holds for each
/// reduction what part `p` found; where columns are shared, slice `p` of each.
pub(crate) fn combine(
    e: &mut Emitter<'_>,
    walk: &RowLoop,
    parts: u32,
    found: &[Partial<'_>],
) -> Result<Vec<Partials>, CodegenError> {
    let (place, one, own, count) = match walk.share {
        Share::Slices(_) => ("slice", "gl_LocalInvocationIndex == 0u", walk.inside.as_deref(), "tile"),
        Share::Workgroup(_) | Share::Subgroup | Share::Alone => ("lane", "lane == 0u", None, "row"),
    };
    let first = format!("{place} == 0u");
    // Of columns beyond the last, which are the last again, nothing is written.
    let (first, own) = match own {
        Some(own) => (format!("{first} && {own}"), format!(" && {own}")),
        None => (first, String::new()),
    };
    let columns = walk.columns_at_once().is_some();
    let mut places: Vec<Partials> = vec![];
    let mut add = |ty| {
        let name = format!("parts{}", places.len());
        places.push(Partials { name: name.clone(), ty });
        name
    };
    let mut again = vec![];
    for Partial { kind, ty, acc, reduced, identity } in found {
        let (values, whole) = (add(*ty), e.fresh_name("p"));
        if columns {
            walk.open_group(e);
        }
        let at = place_of(&e.index(&walk.row)?.text, parts, "part");
        let value = walk.column(acc);
        if kind.is_arg() {
            let positions = add(Glsl::Uint);
            let position = walk.column(&format!("{acc}_at"));
            e.line(format!("const uint {whole} = {reduced};"));
            // One invocation has it, or all have nothing.
            e.line(format!("if ({position} == {whole}{own}) {values}[{at}] = {value};"));
            e.line(format!("if ({first}) {positions}[{at}] = {whole};"));
            again.push((position, positions, "0xffffffffu".to_string()));
        } else {
            e.line(format!("const {} {whole} = {reduced};", ty.name()));
            e.line(format!("if ({first}) {values}[{at}] = {whole};"));
        }
        again.push((value, values, identity.clone()));
        if columns {
            walk.close_group(e, vec![]);
        }
    }
    for line in [
        "memoryBarrierBuffer();",
        "barrier();",
        &format!("if ({one}) before = atomicAdd(done[{count}], 1u);"),
        "barrier();",
        &format!("if (before + 1u < {parts}u) return;"),
        "memoryBarrierBuffer();",
        &format!("if ({one}) done[{count}] = 0u;"),
    ] {
        e.line(line.to_string());
    }
    if columns {
        walk.open_group(e);
    }
    let at = place_of(&e.index(&walk.row)?.text, parts, place);
    for (variable, values, nothing) in again {
        e.line(format!("{variable} = {place} < {parts}u ? {values}[{at}] : {nothing};"));
    }
    if columns {
        walk.close_group(e, vec![]);
    }
    Ok(places)
}

/// Where a part of a row, whose number is an expression, has its place.
fn place_of(row: &str, parts: u32, part: &str) -> String {
    match row {
        "0u" => part.to_string(),
        row if row.contains(' ') => format!("({row}) * {parts}u + {part}"),
        row => format!("{row} * {parts}u + {part}"),
    }
}

/// What the template declares of the places where parts meet: of each its binding, type and name, and the binding of the
/// counts of parts that are done.
pub(crate) fn declare(
    e: &mut Emitter<'_>,
    form: &RowForm,
    split: RowSplit,
    places: &[Partials],
) -> minijinja::Value {
    let rows = u64::try_from(form.rows.max_value()).unwrap_or(0).max(1);
    let mut declared = vec![];
    for Partials { name, ty } in places {
        let bytes = rows * u64::from(split.parts) * u64::from(ty.bytes());
        let binding = e.scratch(Scratch { bytes, fill: None });
        declared.push(minijinja::context! { binding => binding, type => ty.name(), name => name });
    }
    // One for each row, or for each tile of columns.
    let done = e.scratch(Scratch { bytes: 4 * rows, fill: Some(0) });
    minijinja::context! { places => declared, done => done, parts => split.parts }
}
