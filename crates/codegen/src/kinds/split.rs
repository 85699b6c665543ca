//! Rows shared among workgroups: few rows that are so long that a workgroup for each would leave most of the device idle.
//! Each workgroup reduces its part of a row; the last that is done reduces what the parts gave. No workgroup waits for
//! another, and which is the last does not show in the result, since each part has its place.

use tallow_ir::ReduceKind;
use tallow_ir::form::{RowForm, bindings};

use super::floor_pow2;
use crate::emit::Emitter;
use crate::kernel::Scratch;
use crate::scalar::Glsl;

/// Invocations of a part, at least.
const WORKGROUP: u32 = 256;

/// How rows are split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Split {
    /// Workgroups of a row, at most as many as each has invocations.
    pub parts: u32,
    /// Invocations of a workgroup.
    pub workgroup: u32,
}

impl Split {
    /// How the rows of a kernel are split; `None` where a workgroup takes a row as fast, or what is written needs results
    /// of a whole row before its end.
    pub fn of(e: &Emitter<'_>, form: &RowForm) -> Option<Split> {
        let parts = form.parts()?;
        let bindings = bindings(e.body, e.caps) + form.meeting_places();
        if !form.ends_with_results(e.body) || bindings > u64::from(e.caps.max_storage_buffers) {
            return None;
        }
        let most = floor_pow2(e.caps.max_workgroup_invocations);
        let parts = parts.min(most);
        let split = Split { parts, workgroup: parts.next_power_of_two().max(WORKGROUP).min(most) };
        // The loop's variable goes beyond the row by less than a step of all parts.
        let end = form.inner.max_value().saturating_add(i64::from(split.parts) * i64::from(split.workgroup));
        (end <= i64::from(u32::MAX)).then_some(split)
    }
}

/// A value of each part, for all parts of all rows.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub name: String,
    pub ty: Glsl,
}

/// What a reduction found in a part, in each of its invocations: the variable of it, which is to hold what another part
/// found instead, and for positions of extremes that of the position.
pub(crate) struct Found<'a> {
    pub kind: ReduceKind,
    pub ty: Glsl,
    pub acc: &'a str,
    /// Over the workgroup, as an expression.
    pub reduced: String,
    pub identity: String,
}

/// Emits the end of a part: all but the last workgroup of a row leave there, and in that invocation `p` holds for each
/// reduction what part `p` found.
pub(crate) fn meet(e: &mut Emitter<'_>, parts: u32, found: &[Found<'_>]) -> Vec<Place> {
    let mut places: Vec<Place> = vec![];
    let mut place = |ty| {
        let name = format!("parts{}", places.len());
        places.push(Place { name: name.clone(), ty });
        name
    };
    let own = format!("row * {parts}u + part");
    let mut again = vec![];
    for Found { kind, ty, acc, reduced, identity } in found {
        let (values, whole) = (place(*ty), e.fresh_name("p"));
        if kind.is_arg() {
            let positions = place(Glsl::Uint);
            e.line(format!("const uint {whole} = {reduced};"));
            // One invocation has it, or all have nothing.
            e.line(format!("if ({acc}_at == {whole}) {values}[{own}] = {acc};"));
            e.line(format!("if (lane == 0u) {positions}[{own}] = {whole};"));
            again.push((format!("{acc}_at"), positions, "0xffffffffu".to_string()));
        } else {
            e.line(format!("const {} {whole} = {reduced};", ty.name()));
            e.line(format!("if (lane == 0u) {values}[{own}] = {whole};"));
        }
        again.push((acc.to_string(), values, identity.clone()));
    }
    for line in [
        "memoryBarrierBuffer();",
        "barrier();",
        "if (lane == 0u) before = atomicAdd(done[row], 1u);",
        "barrier();",
        &format!("if (before + 1u < {parts}u) return;"),
        "memoryBarrierBuffer();",
        "if (lane == 0u) done[row] = 0u;",
    ] {
        e.line(line.to_string());
    }
    for (variable, values, nothing) in again {
        e.line(format!("{variable} = lane < {parts}u ? {values}[row * {parts}u + lane] : {nothing};"));
    }
    places
}

/// What the template declares of the places where parts meet: of each its binding, type and name, and the binding of the
/// counts of parts that are done.
pub(crate) fn declare(
    e: &mut Emitter<'_>,
    form: &RowForm,
    split: Split,
    places: &[Place],
) -> minijinja::Value {
    let rows = u64::try_from(form.rows.max_value()).unwrap_or(0).max(1);
    let mut declared = vec![];
    for Place { name, ty } in places {
        let bytes = rows * u64::from(split.parts) * u64::from(ty.bytes());
        let binding = e.scratch(Scratch { bytes, fill: None });
        declared.push(minijinja::context! { binding => binding, type => ty.name(), name => name });
    }
    let done = e.scratch(Scratch { bytes: 4 * rows, fill: Some(0) });
    minijinja::context! { places => declared, done => done, parts => split.parts }
}
