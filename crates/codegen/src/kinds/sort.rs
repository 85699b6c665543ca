//! Argsort by rank: each invocation counts how many elements of the row precede its own; the count is the position in
//! the output.
//!
//! Ranks are unique, so no elements are exchanged, and rows of any length take one dispatch. The work is quadratic in
//! the row length.

use minijinja::context;
use tallow_ir::form::{Rows, SingleForm};
use tallow_ir::{DType, Op};

use crate::assemble::{finish, floor_pow2};
use crate::emit::{Anchor, Emitter, Expr};
use crate::error::CodegenError;
use crate::glsl::Glsl;
use crate::kernel::{Count, Kernel};
use crate::library as lib;
use crate::schedule::{Algorithm, Schedule};

/// Elements per tile, one per invocation.
const WORKGROUP: u32 = 256;

/// Unroll factor of the comparison loop. Mesa's software device silently leaves all loops of an invocation after 65535
/// iterations in total. With one comparison per iteration, rows of more elements came out in no order.
const STEP: u32 = 16;

/// The schedule: one invocation per element of a row, up to [`WORKGROUP`].
pub(crate) fn schedule(e: &Emitter<'_>, form: &SingleForm) -> Schedule {
    let node = e.body.node(form.node);
    let len = match node.op {
        Op::ArgSort { axis, .. } => node.types[0].shape.dims()[axis].max_value(),
        _ => 1,
    };
    let wanted = u32::try_from(len).unwrap_or(u32::MAX).clamp(1, WORKGROUP).next_power_of_two();
    Schedule::new(Algorithm::Sort, wanted.min(floor_pow2(e.caps.max_workgroup_invocations)))
}

pub(crate) fn kernel(
    mut e: Emitter<'_>,
    form: &SingleForm,
    schedule: Schedule,
) -> Result<Kernel, CodegenError> {
    let node = e.body.node(form.node);
    let Op::ArgSort { axis, descending } = node.op else {
        return Err(CodegenError::Node(e.body.node_text(form.node)));
    };
    let from = e.body.ty(node.operands[0]).dtype;
    let unknown = || CodegenError::Dtype { what: e.body.node_text(form.node), dtype: from };
    // Sort keys: unsigned integers with the same order as the elements.
    let ty = Glsl::of(from, e.caps).filter(|ty| *ty != Glsl::Double || e.caps.int64).ok_or_else(unknown)?;
    let (before, after, key_type, zero) = match ty {
        Glsl::Float => ("sort_key(", ")", "uint", "0u"),
        Glsl::Int => ("uint(", ") ^ 0x80000000u", "uint", "0u"),
        Glsl::Uint => ("", "", "uint", "0u"),
        Glsl::Long => ("uint64_t(", ") ^ 0x8000000000000000ul", "uint64_t", "0ul"),
        Glsl::Double => ("sort_key(", ")", "uint64_t", "0ul"),
    };
    if ty.is_float() {
        e.uses().add(lib::SORT_KEY);
    }
    e.uses().long |= ty.bytes() == 8;
    let key = |x: &str| {
        if descending { format!("~({before}{x}{after})") } else { format!("{before}{x}{after}") }
    };
    let rows = Rows { shape: node.types[0].shape.clone(), axes: vec![axis] };
    let (count, len) = (rows.rows(), rows.inner());
    let workgroup = schedule.workgroup;
    let (rows_text, len_text) = (e.dim(&count), e.dim(&len));
    let ((own, other, store), row_lines) = e.scope(|e| {
        let row = e.atom(&count, "row");
        // Loaded under two names: the invocation's own element, and an element of the tile.
        let mut element = |name| {
            e.scope(|e| {
                let i = e.atom(&len, name);
                let at = rows.at(&row, &i, &mut e.atoms);
                Ok(key(&e.value(node.operands[0], &at)?.text))
            })
        };
        let (own, other) = (element("i")?, element("j")?);
        let result = e.result(0);
        let store = e.scoped_lines(|e| {
            let place = e.atom(&len, "place");
            let at = rows.at(&row, &place, &mut e.atoms);
            let depth = e.depth();
            e.anchors.insert(form.node, Anchor::Var(Expr { text: "i".into(), depth }));
            e.store(0, result, &at)
        })?;
        Ok((own, other, store))
    })?;
    let ((own, own_lines), (other, other_lines)) = (own, other);
    let [own_lines, other_lines, store, row_lines] =
        [own_lines, other_lines, store, row_lines].map(|lines| lines.join("\n"));
    debug_assert_eq!(node.types[0].dtype, DType::U32);
    let comment = format!("%{} = {}", form.node.0, e.body.node_text(form.node));
    let grid =
        [Count::along(e.caps, 0, len, workgroup), Count::along(e.caps, 1, count, 1), Count::constant(1)];
    let holes = context! {
        rows => rows_text, len => len_text, own, own_lines, other, other_lines, key => key_type, zero,
        most => format!("~{zero}"), step => STEP.min(workgroup), row_lines, store, comment,
    };
    finish(e, schedule, "sort.comp", grid, String::new(), holes)
}
