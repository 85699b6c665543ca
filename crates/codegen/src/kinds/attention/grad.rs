//! Gradients of attention: the node and its operands, and the kernel for all devices and types.
//!
//! Its workgroup has one row: a query, or a key with its value. It walks over the rows of the other side in steps of one an
//! invocation, which computes the weight and the gradient of a score; all invocations then add up columns of the results.

use minijinja::{Value as Hole, context};
use tallow_ir::form::SingleForm;
use tallow_ir::index::Index;
use tallow_ir::{AttentionSide, DType, DeviceCaps, Dim, ElementwiseOp, Op, ReduceKind, Value};

use super::operands::{Attention, grid, number};
use crate::assemble::{finish, floor_pow2};
use crate::blocks::reduce_functions::Used;
use crate::emit::{Anchor, Emitter, Expr};
use crate::error::CodegenError;
use crate::kernel::{Count, Kernel};
use crate::library as lib;
use crate::scalar;
use crate::schedule::{Algorithm, Schedule};

/// Invocations of a workgroup.
const WORKGROUP: u32 = 64;

/// The operands of an attention's gradient.
pub(super) struct Gradient<'a> {
    pub attention: Attention<'a>,
    pub side: AttentionSide,
    /// Gradient of the result, `[h, s, width]`.
    pub g: Value,
    /// Sums of the result times its gradient, `[h, s]`.
    pub means: Value,
    /// Logarithms of the sums of exponentials, `[h, s]`; only for keys.
    pub sums: Option<Value>,
}

impl<'a> Gradient<'a> {
    pub fn of(e: &Emitter<'a>, form: &SingleForm) -> Result<Self, CodegenError> {
        let node = e.body.node(form.node);
        let refused = || CodegenError::Node(e.body.node_text(form.node));
        let Op::AttentionGrad(attrs, side) = node.op else { return Err(refused()) };
        let (main, bias) = node.operands.split_at(node.operands.len().min(side.operands()));
        let [q, k, v, g, means, sums @ ..] = main else { return Err(refused()) };
        let attention = Attention::with(e, form.node, attrs, [*q, *k, *v], bias.first().copied())?;
        let sums = sums.first().copied();
        Ok(Gradient { attention, side, g: *g, means: *means, sums })
    }

    /// The extents of the grid: rows and heads of the side.
    pub fn rows(&self) -> [&'a Dim; 2] {
        let a = &self.attention;
        match self.side {
            AttentionSide::Queries => [a.s, a.h],
            AttentionSide::Keys => [a.t, a.g],
        }
    }

    /// The grid of a kernel whose workgroups each have `rows` rows of a head.
    ///
    /// # Errors
    /// If the device does not start as many.
    pub fn grid(&self, caps: &DeviceCaps, rows: u32) -> Result<[Count; 3], CodegenError> {
        let [extent, heads] = self.rows();
        grid(caps, "a gradient of attention", [(extent, rows), (heads, 1)])
    }

    /// As [`grid`](Self::grid), heads first: the longest rows of all heads start before the shorter ones.
    ///
    /// # Errors
    /// If the device does not start as many.
    pub fn grid_by_heads(&self, caps: &DeviceCaps, rows: u32) -> Result<[Count; 3], CodegenError> {
        let [extent, heads] = self.rows();
        grid(caps, "a gradient of attention", [(heads, 1), (extent, rows)])
    }

    /// An element of an operand that has heads and queries, and the lines that compute it.
    pub fn of_query(&self, e: &mut Emitter<'_>, value: Value) -> Result<(String, Vec<String>), CodegenError> {
        let a = &self.attention;
        e.scope(|e| {
            let at = [(a.h, "h"), (a.s, "s")].map(|(extent, name)| e.atom(extent, name));
            a.element(e, value, &at)
        })
    }

    /// The lines that store the variable `found` as result `result` at these coordinates.
    pub fn store(
        &self,
        e: &mut Emitter<'_>,
        result: u32,
        at: &[(&Dim, &str)],
    ) -> Result<Vec<String>, CodegenError> {
        let a = &self.attention;
        e.scoped_lines(|e| {
            let at: Vec<Index> = at.iter().map(|(extent, name)| e.atom(extent, name)).collect();
            let dtype = e.body.node(a.id).types[result as usize].dtype;
            let text = match (a.wide, dtype) {
                (wide, dtype) if wide == dtype => "found".into(),
                (DType::F64, dtype) => scalar::cast(a.wide, dtype, "found", e.uses()),
                (_, dtype) => scalar::held(dtype, "found".into(), e.uses()),
            };
            let depth = e.depth();
            e.anchors.insert(a.id, Anchor::Var(Expr { text, depth }));
            let buffer = e.result(result);
            e.store(result, buffer, &at)
        })
    }
}

/// The schedule; the only candidate.
pub(crate) fn schedule(e: &Emitter<'_>) -> Schedule {
    let workgroup = floor_pow2(e.caps.max_workgroup_invocations.min(WORKGROUP));
    Schedule::new(Algorithm::AttentionGrad, workgroup)
}

pub(crate) fn kernel(
    mut e: Emitter<'_>,
    form: &SingleForm,
    schedule: Schedule,
) -> Result<Kernel, CodegenError> {
    let gradient = Gradient::of(&e, form)?;
    let a = &gradient.attention;
    let (d, width, workgroup) = (number(a.d), number(a.width), schedule.workgroup);
    let mut used = Used::default();
    let mut functions = (String::new(), String::new());
    if gradient.side == AttentionSide::Queries {
        functions = (used.value(ReduceKind::Max, a.ty, a.wide), used.value(ReduceKind::Sum, a.ty, a.wide));
    }
    let elements = d.saturating_add(width).saturating_add(2 * workgroup);
    let needs = a.ty.bytes().saturating_mul(elements).saturating_add(used.shared_bytes(workgroup));
    let has = e.caps.shared_memory_bytes;
    if needs > has {
        return Err(CodegenError::SharedMemory { what: "a gradient of attention".into(), needs, has });
    }
    let common = a.holes(&mut e, "score")?;
    let statements = statements(&mut e, &gradient)?;
    e.uses().add(lib::MAX_OF);
    let grid = gradient.grid(e.caps, 1)?;
    let functions_of =
        |e: &mut Emitter<'_>, x: &str, op| scalar::elementwise(op, a.ty, a.wide, &[x.to_string()], e.uses());
    let [exp_step, exp_score, exp_top] =
        ["top - now", "score - now", "top - most"].map(|x| functions_of(&mut e, x, ElementwiseOp::Exp));
    let weight = functions_of(&mut e, "score - sums", ElementwiseOp::Exp);
    let log = functions_of(&mut e, "all", ElementwiseOp::Log);
    let dtype = e.body.ty(gradient.g).dtype;
    let rounded = |e: &mut Emitter<'_>, x: &str| match dtype {
        DType::F16 | DType::BF16 => scalar::cast(a.wide, dtype, x, e.uses()),
        _ => x.to_string(),
    };
    let [rounded_p, rounded_dx] = ["p", "dx"].map(|x| rounded(&mut e, x));
    let slots = [d, width].map(|n| n.div_ceil(workgroup));
    let holes = context! {
        keys => gradient.side == AttentionSide::Keys, max => functions.0, total => functions.1, slots, workgroup,
        exp_step, exp_score, exp_top, weight, log, rounded_p, rounded_dx, infinity => a.ty.literal(f64::INFINITY),
        one => a.ty.literal(1.0), ..context! { ..statements, ..common }
    };
    let functions = used.render(workgroup, &mut e)?;
    finish(e, schedule, "attention_grad.comp", grid, functions, holes)
}

/// The holes of loads and stores.
fn statements(e: &mut Emitter<'_>, gradient: &Gradient<'_>) -> Result<Hole, CodegenError> {
    let a = &gradient.attention;
    let element = |e: &mut Emitter<'_>, value: Value, row: [(&Dim, &str); 3]| {
        let found = e.scope(|e| {
            let at = row.map(|(extent, name)| e.atom(extent, name));
            a.element(e, value, &at)
        });
        found.map(|(text, lines)| context! { text, lines => lines.join("\n") })
    };
    let q = element(e, a.q, [(a.h, "h"), (a.s, "s"), (a.d, "d")])?;
    let k = element(e, a.k, [(a.g, "g"), (a.t, "t"), (a.d, "d")])?;
    let v = element(e, a.v, [(a.g, "g"), (a.t, "t"), (a.width, "e")])?;
    let g = element(e, gradient.g, [(a.h, "h"), (a.s, "s"), (a.width, "e")])?;
    let (bias, bias_lines) = a.bias_at(e)?;
    let (means, means_lines) = gradient.of_query(e, gradient.means)?;
    let (sums, sums_lines) = match gradient.sums {
        Some(sums) => gradient.of_query(e, sums)?,
        None => (String::new(), vec![]),
    };
    let stores = match gradient.side {
        AttentionSide::Queries => [
            gradient.store(e, 0, &[(a.h, "h"), (a.s, "s"), (a.d, "d")])?,
            gradient.store(e, 1, &[(a.h, "h"), (a.s, "s")])?,
        ],
        AttentionSide::Keys => [
            gradient.store(e, 0, &[(a.g, "g"), (a.t, "t"), (a.d, "d")])?,
            gradient.store(e, 1, &[(a.g, "g"), (a.t, "t"), (a.width, "e")])?,
        ],
    };
    let stores = stores.map(|lines| lines.join("\n"));
    let row_lines = [means_lines, sums_lines].concat().join("\n");
    Ok(
        context! { q, k, v, of_g => g, bias, bias_lines => bias_lines.join("\n"), means, row_lines, of_sums => sums, stores },
    )
}
