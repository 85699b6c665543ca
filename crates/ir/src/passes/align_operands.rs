//! Copies operands of matmuls that tiles cannot read in vectors: those whose rows have an odd length, and transposed left
//! ones of few rows.
//!
//! Tiles of f16 and bf16 read eight elements along K at once, along the columns of the right operand, or along the rows of
//! the left one if the tile is tall. If rows in memory are no multiple of eight elements, they load single elements. Copies
//! are contiguous along K, which is padded to a multiple of eight:
//!
//! `sum over k < K of a[m, k] b[k, n] = sum over k < K' of a'[m, k] b'[k, n]`, where both are zero from K on.
//!
//! The pass does this where the copies cost less than the loads of single elements, on devices that multiply such elements
//! by cooperative matrices.

use crate::access::has_groups_along;
use crate::caps::DeviceCaps;
use crate::cost;
use crate::dim::Dim;
use crate::form::MATVEC_MAX_ROWS;
use crate::graph::{Graph, GraphError, Value};
use crate::matrix;
use crate::op::Op;
use crate::rewrite::rebuild;
use crate::scalar::Scalar;

/// Elements of a vector.
const VECTOR: i64 = 8;

/// Rows from which on tiles read a left operand along its rows: shorter K tiles `[k][row]` would need more padding in shared
/// memory than `[row][k]`.
const TALL: i64 = 64;

/// The pass.
pub fn run(graph: &Graph, caps: &DeviceCaps) -> Result<Graph, GraphError> {
    rebuild(graph, |new, node, operands| match (&node.op, operands) {
        (Op::Matmul, [left, right]) => match Product::of(new, *left, *right, caps) {
            Some(product) if product.copies_cost_less(new, caps) => product.aligned(new).map(Some),
            _ => Ok(None),
        },
        _ => Ok(None),
    })
}

/// A matmul of constant extents by cooperative matrices, not all of whose operands are read in vectors.
struct Product {
    left: Value,
    right: Value,
    rows: i64,
    columns: i64,
    k: i64,
    /// Whether the left operand is read in vectors.
    left_fits: bool,
    right_fits: bool,
    /// Whether the right operand, or its copy, is contiguous along its columns.
    by_columns: bool,
}

impl Product {
    fn of(graph: &Graph, left: Value, right: Value, caps: &DeviceCaps) -> Option<Product> {
        let extent = |v: Value, from_end: usize| {
            let dims = graph.ty(v).shape.dims();
            dims[dims.len() - from_end].as_const()
        };
        let (rows, k, columns) = (extent(left, 2)?, extent(left, 1)?, extent(right, 1)?);
        let able = matrix::multiplies_tensors(graph, caps, [left, right]) && rows > MATVEC_MAX_ROWS && k > 0;
        if !able || has_window(graph, left) || has_window(graph, right) {
            return None;
        }
        let axis = |v: Value, from_end: usize| graph.ty(v).shape.rank() - from_end;
        let by_rows = rows >= TALL && has_groups_along(graph, left, axis(left, 2), VECTOR);
        let left_fits = by_rows || has_groups_along(graph, left, axis(left, 1), VECTOR);
        let by_columns = has_groups_along(graph, right, axis(right, 1), VECTOR);
        let right_fits = by_columns || has_groups_along(graph, right, axis(right, 2), VECTOR);
        let found = Product { left, right, rows, columns, k, left_fits, right_fits, by_columns };
        (!(left_fits && right_fits)).then_some(found)
    }

    /// Whether K is padded. Then both operands are copied, so that both have zeros there.
    fn pads(&self) -> bool {
        self.k % VECTOR != 0
    }

    fn copies_left(&self) -> bool {
        !self.left_fits || self.pads()
    }

    fn copies_right(&self) -> bool {
        !self.right_fits || self.pads()
    }

    fn copies_cost_less(&self, graph: &Graph, caps: &DeviceCaps) -> bool {
        let each = |v: Value, fits: bool, copies: bool, across: i64| {
            let ty = graph.ty(v);
            let loads =
                if fits { 0 } else { ty.shape.max_numel().saturating_mul(cost::matmul_tiles(across)) };
            let single = cost::prologue_us(caps, loads, ty.dtype.size().unwrap_or(1) as u64);
            let copied = if copies { cost::map_us(caps, ty.max_bytes().saturating_mul(2)) } else { 0.0 };
            [single, copied]
        };
        let left = each(self.left, self.left_fits, self.copies_left(), self.columns);
        let right = each(self.right, self.right_fits, self.copies_right(), self.rows);
        left[0] + right[0] > left[1] + right[1]
    }

    fn aligned(&self, graph: &mut Graph) -> Result<Value, GraphError> {
        let left = match self.copies_left() {
            true => self.copied(graph, self.left, 1)?,
            false => self.left,
        };
        let right = match (self.copies_right(), self.by_columns) {
            (false, _) => self.right,
            (true, true) => self.copied(graph, self.right, 2)?,
            (true, false) => {
                let transposed = transposed(graph, self.right)?;
                let copy = self.copied(graph, transposed, 1)?;
                self::transposed(graph, copy)?
            }
        };
        graph.add(Op::Matmul, &[left, right])
    }

    /// A copy in the order of its axes, with K padded, which is so many axes from the end.
    fn copied(&self, graph: &mut Graph, value: Value, from_end: usize) -> Result<Value, GraphError> {
        let ty = graph.ty(value).clone();
        let mut padded = value;
        if self.pads() {
            let (axis, before) = (ty.shape.rank() - from_end, Dim::zero());
            let after = Dim::constant(VECTOR - self.k % VECTOR);
            let zero = Scalar::float(ty.dtype, 0.0);
            padded = graph.add(Op::Pad { axis, before, after, value: zero }, &[value])?;
        }
        graph.add(Op::Cast(ty.dtype), &[padded])
    }
}

/// Whether an operand consists of windows, which a copy would write many times.
fn has_window(graph: &Graph, value: Value) -> bool {
    let mut value = value;
    loop {
        let node = graph.node(value.node);
        match node.op {
            Op::Window { .. } => return true,
            _ if node.op.is_view() => value = node.operands[0],
            _ => return false,
        }
    }
}

/// The last two axes exchanged.
fn transposed(graph: &mut Graph, value: Value) -> Result<Value, GraphError> {
    let rank = graph.ty(value).shape.rank();
    let mut axes: Vec<usize> = (0..rank).collect();
    axes.swap(rank - 2, rank - 1);
    graph.permute(value, &axes)
}
