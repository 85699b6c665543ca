//! Divides few long rows of a scan into parts, so that the scan fills the device.
//!
//! With `x` as `[rows, parts, len]` and `+` for the combination, a sum or a product:
//!
//! ```text
//! total[r, p]     = x[r, p, 0] + .. + x[r, p, len-1]
//! before[r, p]    = 0 + total[r, 0] + .. + total[r, p-1]
//! scan(x)[r, p, i] = before[r, p] + x[r, p, 0] + .. + x[r, p, i]
//! ```
//!
//! This holds because the combination is associative. The last total is not needed, so only whole parts are reduced; the
//! last part may be shorter. `before` is an inclusive scan, shifted by one: a subtraction would round, and would make NaN
//! of infinities. `x` is read twice and the result written once, in three kernels: a reduction, a scan of the totals, and
//! a scan that starts each part from its element of `before`.
//!
//! Integers are exact modulo a power of two. Sums of floats are added in another order, as in the scan of one workgroup;
//! totals of 16-bit floats are f32. Products of floats stay whole: a part overflows sooner than the
//! slices of a workgroup do, and makes NaN of an earlier zero.
//!
//! A linear scan stays whole too. It combines pairs, `(a1, b1)` and `(a2, b2)` to `(a1 a2, a2 b1 + b2)`, whose first
//! elements are such products. No reduction makes the pair of a part: that would take two more scans of everything.

use crate::caps::DeviceCaps;
use crate::dtype::DType;
use crate::form::ScanExtents;
use crate::graph::{Graph, GraphError, Value};
use crate::op::{Op, ReduceKind, ScanKind};
use crate::rewrite::rebuild;
use crate::scalar::Scalar;
use crate::shape::Shape;

/// The pass.
pub fn run(graph: &Graph, caps: &DeviceCaps) -> Result<Graph, GraphError> {
    rebuild(graph, |new, node, operands| match (&node.op, operands) {
        (Op::Scan { kind, axis, part: None }, [x]) => {
            match (totals(*kind), part(new, *kind, *axis, *x, caps)) {
                (Some(totals), Some(part)) => split(new, *kind, totals, *axis, *x, part).map(Some),
                (None, _) | (_, None) => Ok(None),
            }
        }
        _ => Ok(None),
    })
}

/// How the total of a part is made.
struct Totals {
    reduce: ReduceKind,
    /// The total of no elements.
    identity: f64,
}

/// How the totals of a scan are made; `None` if no reduction makes them.
fn totals(kind: ScanKind) -> Option<Totals> {
    match kind {
        ScanKind::Sum => Some(Totals { reduce: ReduceKind::Sum, identity: 0.0 }),
        ScanKind::Prod => Some(Totals { reduce: ReduceKind::Prod, identity: 1.0 }),
        ScanKind::Linear => None,
    }
}

/// Elements of a part, if the scan of `x` is better divided.
fn part(graph: &Graph, kind: ScanKind, axis: usize, x: Value, caps: &DeviceCaps) -> Option<i64> {
    let ty = graph.ty(x);
    let reorders = match (kind, ty.dtype) {
        (_, DType::U8 | DType::U32 | DType::I16 | DType::I32 | DType::I64) => true,
        (ScanKind::Sum, DType::F16 | DType::BF16 | DType::F32 | DType::F64) => true,
        (ScanKind::Prod | ScanKind::Linear, DType::F16 | DType::BF16 | DType::F32 | DType::F64) => false,
        // Rounded at each node, so totals would be too.
        (_, DType::F8E4M3) | (_, DType::Block(_)) => false,
    };
    let dims = ty.shape.dims();
    // Parts of a symbolic extent would be a symbolic number, rounded up, which no extent can express.
    dims[axis].as_const().filter(|_| reorders)?;
    let part = ScanExtents::of(dims, axis).part(caps)?;
    // The last kernel binds the operand, the result, what precedes each part, and perhaps a table of symbols.
    let before = ty.max_bytes().div_ceil(part).saturating_mul(2);
    let bindings = 2 * caps.windows(ty.max_bytes()) + caps.windows(before) + 1;
    i64::try_from(part).ok().filter(|_| bindings <= u64::from(caps.max_storage_buffers))
}

/// The scan of `x` in parts of `part` elements, whose totals the reduction makes.
fn split(
    graph: &mut Graph,
    kind: ScanKind,
    totals: Totals,
    axis: usize,
    x: Value,
    part: i64,
) -> Result<Value, GraphError> {
    let ty = graph.ty(x).clone();
    let len = ty.shape.dims()[axis].max_value();
    let whole = (len + part - 1) / part - 1;
    let all = graph.add(Op::Slice { axis, start: 0.into(), len: (whole * part).into() }, &[x])?;
    let mut dims = ty.shape.dims().to_vec();
    dims.splice(axis..=axis, [whole.into(), part.into()]);
    let mut all = graph.reshape(all, Shape::new(dims))?;
    let wide = if matches!(ty.dtype, DType::F16 | DType::BF16) { DType::F32 } else { ty.dtype };
    if wide != ty.dtype {
        all = graph.add(Op::Cast(wide), &[all])?;
    }
    let sums = graph.add(Op::Reduce { kind: totals.reduce, axes: vec![axis + 1] }, &[all])?;
    let sums = graph.add(Op::Scan { kind, axis, part: None }, &[sums])?;
    let value = Scalar::of(wide, totals.identity);
    let before = graph.add(Op::Pad { axis, before: 1.into(), after: 0.into(), value }, &[sums])?;
    graph.add(Op::Scan { kind, axis, part: usize::try_from(part).ok() }, &[x, before])
}
