//! Legality of a fusion body for its kernel kind, and the loop structure that follows.
//!
//! One rule makes a body legal: every read of an anchor (a reduction, a matmul, an attention) must stay within what the
//! same workgroup computes. For reductions this is the same row; for matmuls the same row and column tile; for
//! attention the same head and query. Index maps decide this, not patterns.

mod map;
mod scan;
mod segments;
mod split;
mod states;
mod updates;

pub use self::map::MapForm;
pub use self::scan::{SCAN_ELEMENTS, STRIDED_SCAN_ELEMENTS, ScanExtents, ScanTile};
pub use self::segments::{reductions_fit_shared_memory, spare_bytes};
pub use self::split::passes;
pub(crate) use self::split::{is_shared_row, opposite_reductions};
use crate::access::anchor_reads;
use crate::activations::quantize_node;
use crate::caps::DeviceCaps;
use crate::dim::Dim;
use crate::dtype::DType;
use crate::fusion::FusionKind;
use crate::graph::{Graph, Node, NodeId, Value};
use crate::index::{Atoms, Index};
use crate::op::Op;
use crate::shape::{Shape, TensorType};

/// Storage buffer bindings of a kernel of `body`: the windows of its operands and results, the table of extents, and
/// one buffer for all codebooks. A state that it updates is only written, unless something else reads it.
pub fn bindings(body: &Graph, caps: &DeviceCaps) -> u64 {
    let only_written: Vec<Value> = body
        .nodes()
        .filter(|(_, n)| matches!(n.op, Op::StateUpdate { .. }))
        .map(|(_, n)| n.operands[0])
        .filter(|state| !states::is_read(body, *state))
        .collect();
    let params: Vec<&TensorType> = body
        .nodes()
        .filter(|(id, n)| matches!(n.op, Op::Param { .. }) && !only_written.contains(&(*id).into()))
        .map(|(_, n)| &n.types[0])
        .collect();
    let results = body.outputs().iter().map(|output| body.ty(output.value));
    let windows: u64 = params.iter().copied().chain(results).map(|ty| caps.windows(ty.max_bytes())).sum();
    let refers = |ty: &&TensorType| matches!(ty.dtype, DType::Block(f) if f.codebook().is_some());
    let codebooks = match params.iter().any(refers) {
        true => caps.windows(tallow_quant::codebooks_bytes() as u64),
        false => 0,
    };
    windows + u64::from(body.symbols().next().is_some()) + codebooks
}

/// Why a body does not fit a kernel kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Reason(pub String);

fn no<T>(why: impl Into<String>) -> Result<T, Reason> {
    Err(Reason(why.into()))
}

/// Maximum rows of activations for which a matmul counts as a matvec.
pub const MATVEC_MAX_ROWS: i64 = 8;

/// Whether a matmul of so many rows counts as a matvec, whatever the symbols stand for. A symbolic number of at most one
/// row does not: kernels of one row have no loop that could skip it.
pub fn are_few(rows: &Dim) -> bool {
    let most = rows.max_value();
    most <= MATVEC_MAX_ROWS && (most > 1 || rows.as_const().is_some())
}

/// Widest column tile that an epilogue may require.
pub const MAX_TILE: i64 = 256;

/// The loop structure of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Form {
    /// See [`FusionKind::Map`].
    Map(MapForm),
    /// See [`FusionKind::Row`].
    Row(RowForm),
    /// See [`FusionKind::Matvec`] and [`FusionKind::Matmul`].
    Contraction(ContractionForm),
    /// See [`FusionKind::Attention`].
    Attention(AttentionForm),
    /// See [`FusionKind::Quantize`], [`FusionKind::Scan`], [`FusionKind::Sort`], [`FusionKind::Scatter`],
    /// [`FusionKind::IndexAdd`] and [`FusionKind::Custom`].
    Single(SingleForm),
}

/// Which loop writes an output of a row kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowOutput {
    /// One element for each element of each row.
    Inner,
    /// One element for each row.
    Row,
}

/// The rows of a reduction: the shape of its operand and the reduced axes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rows {
    /// Shape of the reduced operand.
    pub shape: Shape,
    /// Reduced axes.
    pub axes: Vec<usize>,
}

impl Rows {
    /// Coordinates of element `inner` of row `row`.
    pub fn at(&self, row: &Index, inner: &Index, atoms: &mut Atoms) -> Vec<Index> {
        let outer = self.shape.without(&self.axes);
        let outer_axes: Vec<usize> = (0..self.shape.rank()).filter(|i| !self.axes.contains(i)).collect();
        let mut outer = atoms.unflatten(row, &outer).into_iter();
        let mut inner = atoms.unflatten(inner, &self.shape.without(&outer_axes)).into_iter();
        let next = |i: usize| if self.axes.contains(&i) { inner.next() } else { outer.next() };
        (0..self.shape.rank()).map(next).map(Option::unwrap_or_default).collect()
    }

    /// Number of rows.
    pub fn rows(&self) -> Dim {
        self.shape.without(&self.axes).numel()
    }

    /// Elements of a row.
    pub fn inner(&self) -> Dim {
        self.axes.iter().fold(Dim::one(), |n, a| &n * &self.shape.dims()[*a])
    }
}

/// Reductions over the same rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowForm {
    /// Number of rows.
    pub rows: Dim,
    /// Elements of a row.
    pub inner: Dim,
    /// The reductions in the order in which they can be computed, with their rows.
    pub reduces: Vec<(NodeId, Rows)>,
    /// How each output is written.
    pub outputs: Vec<RowOutput>,
    /// The layout by which `Inner` outputs are enumerated.
    pub domain: Rows,
}

/// Reductions of a matvec's results over groups of adjacent columns, for example the norm of a head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ColumnGroups {
    /// Columns per group; divides the columns of the segment.
    pub columns: u32,
    /// The reductions, in an order in which they can be computed. Their rows are numbered by batch, row and column
    /// group.
    pub reduces: Vec<(NodeId, Rows)>,
}

/// Matmuls whose columns the same workgroups compute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The matmul nodes.
    pub anchors: Vec<NodeId>,
    /// Columns.
    pub n: Dim,
    /// Column granularity: a workgroup's tile is a multiple of this.
    pub tile: u32,
    /// True if an output element reads results of another column, so that results are staged.
    pub staged: bool,
    /// Indices of the outputs that it writes.
    pub outputs: Vec<usize>,
    /// Those of them whose elements are in the order of batch, column and row (matvec only). All others are in the order of
    /// batch, row and column.
    pub transposed: Vec<usize>,
    /// Reductions over the columns of a tile (matvec only).
    pub column_groups: Option<ColumnGroups>,
}

impl ContractionForm {
    /// The number of the element of output `output` of `segment` at a batch, row and column.
    pub fn element(&self, segment: &Segment, output: usize, at: [Index; 3], atoms: &mut Atoms) -> Index {
        let extents = [&self.batch.numel(), &self.m, &segment.n];
        segments::linear(atoms, at, extents, segment.transposed.contains(&output))
    }
}

/// Matmuls `[batch.., m, k] x [batch.., k, n]` with the same left operand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContractionForm {
    /// Batch extents of the results.
    pub batch: Shape,
    /// Rows.
    pub m: Dim,
    /// Reduction extent (K).
    pub k: Dim,
    /// The shared left operand.
    pub lhs: Value,
    /// Reductions over rows of the left operand, computed in the prologue (matvec only).
    pub prologue: Vec<(NodeId, Rows)>,
    /// The column segments of the grid.
    pub segments: Vec<Segment>,
}

/// One attention.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttentionForm {
    /// The attention node.
    pub node: NodeId,
}

/// One quantization, scan, sort, scatter, indexed addition or custom kernel; the kernel writes nothing but its results.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SingleForm {
    /// The node.
    pub node: NodeId,
}

/// What an output of a body computes: the value itself, or the source of a state update.
pub fn output_root(body: &Graph, output: usize) -> Value {
    let value = body.outputs()[output].value;
    let node = body.node(value.node);
    if matches!(node.op, Op::StateUpdate { .. }) { node.operands[1] } else { value }
}

/// The axis and the row indices of an output that is a state update with indexed rows.
pub fn index_rows(body: &Graph, output: usize) -> Option<(usize, Value)> {
    let node = body.node(body.outputs()[output].value.node);
    match node.op {
        Op::StateUpdate { rows: Some(axis), .. } => Some((axis, *node.operands.get(2)?)),
        _ => None,
    }
}

/// The value that the kernel quantizes for an output of blocks (perhaps a state update).
pub fn quantized_root(body: &Graph, output: usize) -> Option<Value> {
    let root = output_root(body, output);
    matches!(body.op(root), Op::Quantize(_)).then(|| body.node(root.node).operands[0])
}

/// The loop structure of `body` as a kernel of `kind`, or why it has none.
pub fn form(kind: FusionKind, body: &Graph) -> Result<Form, Reason> {
    if body.outputs().is_empty() {
        return no("the body returns nothing");
    }
    let anchors = |f: fn(&Op) -> bool| -> Vec<NodeId> {
        body.nodes().filter(|(_, n)| f(&n.op)).map(|(id, _)| id).collect()
    };
    let reduces = anchors(|op| matches!(op, Op::Reduce { .. }));
    let matmuls = anchors(|op| matches!(op, Op::Matmul));
    let attentions = anchors(|op| matches!(op, Op::Attention(_)));
    updates::check(kind, body)?;
    // A matvec quantizes its left operand and its results itself.
    let inside = |op: &Op| kind == FusionKind::Matvec && matches!(op, Op::Quantize(_));
    let singles = |(id, n): (NodeId, &Node)| Some((id, single_kind(&n.op).filter(|_| !inside(&n.op))?));
    if let Some((id, needed)) = body.nodes().find_map(singles) {
        return if needed == kind {
            single(body, id).map(Form::Single)
        } else {
            no(format!("{} needs a kernel of its own", body.node_text(id)))
        };
    }
    match (kind, reduces.len(), matmuls.len(), attentions.len()) {
        (FusionKind::Map, 0, 0, 0) => map::map(body).map(Form::Map),
        (FusionKind::Row, 1.., 0, 0) => row(body, &reduces).map(Form::Row),
        (FusionKind::Matvec, _, 1.., 0) => {
            let form = contraction(kind, body, &matmuls, &reduces)?;
            if are_few(&form.m) {
                Ok(Form::Contraction(form))
            } else {
                no(format!("{} rows are too many for a matvec", form.m))
            }
        }
        (FusionKind::Matmul, 0, 1.., 0) => contraction(kind, body, &matmuls, &[]).map(Form::Contraction),
        (FusionKind::Attention, 0, 0, 1) => attention(body, attentions[0]).map(Form::Attention),
        (_, r, m, a) => {
            no(format!("a {} kernel cannot hold {r} reductions, {m} matmuls, {a} attentions", kind.name()))
        }
    }
}

/// Whether the anchors of `body` can share a kernel of `kind`, whatever its outputs.
pub fn anchors_fit(kind: FusionKind, body: &Graph) -> Result<(), Reason> {
    let anchors = |f: fn(&Op) -> bool| -> Vec<NodeId> {
        body.nodes().filter(|(_, n)| f(&n.op)).map(|(id, _)| id).collect()
    };
    let reduces = anchors(|op| matches!(op, Op::Reduce { .. }));
    let matmuls = anchors(|op| matches!(op, Op::Matmul));
    match kind {
        FusionKind::Map
        | FusionKind::Quantize
        | FusionKind::Attention
        | FusionKind::AttentionGrad
        | FusionKind::Scan
        | FusionKind::Sort
        | FusionKind::Scatter
        | FusionKind::IndexAdd
        | FusionKind::Custom => Ok(()),
        FusionKind::Row => {
            let mut atoms = Atoms::default();
            let Some(first) = reduces.first().and_then(|id| rows_of(body, *id)) else {
                return no("no reduction");
            };
            let row = atoms.free(&first.rows());
            reductions(body, &reduces, &row, &mut atoms).map(|_| ())
        }
        FusionKind::Matvec | FusionKind::Matmul => {
            let Some(first) = matmuls.first() else { return no("no matmul") };
            left_operand(body, *first, &matmuls, &by_matmuls(body, &reduces).0).map(|_| ())
        }
    }
}

/// The rows of a reduction node.
pub fn rows_of(body: &Graph, id: NodeId) -> Option<Rows> {
    let node = body.node(id);
    let Op::Reduce { axes, .. } = &node.op else { return None };
    Some(Rows { shape: body.ty(node.operands[0]).shape.clone(), axes: axes.clone() })
}

/// Checks that `root` at `at` reads reductions of row `row` only.
fn reads_row(
    body: &Graph,
    root: Value,
    at: &[Index],
    row: &Index,
    reduces: &[(NodeId, Rows)],
    atoms: &mut Atoms,
) -> Result<(), Reason> {
    for (id, at) in anchor_reads(body, root, at, atoms) {
        if !reduces.iter().any(|(r, _)| *r == id) {
            return no(format!("{} is not computed in this kernel's loop", body.node_text(id)));
        }
        if atoms.flatten(&at, &body.node(id).types[0].shape) != *row {
            return no(format!("{} is read for another row", body.node_text(id)));
        }
    }
    Ok(())
}

/// Checks that the reductions share their rows, and that they depend on each other only within a row.
fn reductions(
    body: &Graph,
    ids: &[NodeId],
    row: &Index,
    atoms: &mut Atoms,
) -> Result<Vec<(NodeId, Rows)>, Reason> {
    let mut done: Vec<(NodeId, Rows)> = vec![];
    for id in ids {
        let Some(rows) = rows_of(body, *id) else { return no("not a reduction") };
        if let Some((_, first)) = done.first()
            && (first.rows() != rows.rows() || first.inner() != rows.inner())
        {
            return no(format!(
                "rows differ: {} of {} and {} of {}",
                first.rows(),
                first.inner(),
                rows.rows(),
                rows.inner()
            ));
        }
        let inner = atoms.free(&rows.inner());
        let at = rows.at(row, &inner, atoms);
        reads_row(body, body.node(*id).operands[0], &at, row, &done, atoms)?;
        done.push((*id, rows));
    }
    Ok(done)
}

fn row(body: &Graph, ids: &[NodeId]) -> Result<RowForm, Reason> {
    let mut atoms = Atoms::default();
    let Some(first) = rows_of(body, ids[0]) else { return no("not a reduction") };
    let (rows, inner) = (first.rows(), first.inner());
    let r = atoms.free(&rows);
    let reduces = reductions(body, ids, &r, &mut atoms)?;
    let mut last = Reason("no layout".into());
    // Outputs are enumerated in the layout of one of the reduced operands: the first legal one.
    let mut layouts: Vec<&Rows> = vec![];
    for (_, rows) in &reduces {
        if !layouts.contains(&rows) {
            layouts.push(rows);
        }
    }
    for domain in layouts {
        let mut outputs = vec![];
        let mut legal = Ok(());
        for o in 0..body.outputs().len() {
            let root = output_root(body, o);
            let shape = &body.ty(root).shape;
            let (output, at) = if shape.numel() == &rows * &inner {
                let i = atoms.free(&inner);
                let at = domain.at(&r, &i, &mut atoms);
                let linear = atoms.flatten(&at, &domain.shape);
                (RowOutput::Inner, atoms.unflatten(&linear, shape))
            } else if shape.numel() == rows {
                (RowOutput::Row, atoms.unflatten(&r, shape))
            } else {
                return no(format!(
                    "an output of shape {shape} is neither one element a row nor one an element"
                ));
            };
            legal = legal.and_then(|()| reads_row(body, root, &at, &r, &reduces, &mut atoms));
            outputs.push(output);
        }
        match legal {
            Ok(()) => {
                let domain = domain.clone();
                return Ok(RowForm { rows, inner, outputs, domain, reduces });
            }
            Err(why) => last = why,
        }
    }
    Err(last)
}

fn contraction(
    kind: FusionKind,
    body: &Graph,
    matmuls: &[NodeId],
    reduces: &[NodeId],
) -> Result<ContractionForm, Reason> {
    let (before, after) = by_matmuls(body, reduces);
    let (batch, m, k, prologue) = left_operand(body, matmuls[0], matmuls, &before)?;
    let lhs = body.node(matmuls[0]).operands[0];
    let after: Vec<(NodeId, Rows)> =
        after.into_iter().filter_map(|id| Some((id, rows_of(body, id)?))).collect();
    let few = kind == FusionKind::Matvec;
    let segments = segments::segments(body, matmuls, [&prologue, &after], (&batch, &m, few))?;
    Ok(ContractionForm { batch, m, k, lhs, prologue, segments })
}

/// Partitions reductions into those that depend on no matmul, and those that do.
fn by_matmuls(body: &Graph, reduces: &[NodeId]) -> (Vec<NodeId>, Vec<NodeId>) {
    let mut depends = vec![false; body.len()];
    for (id, node) in body.nodes() {
        depends[id.index()] =
            matches!(node.op, Op::Matmul) || node.operands.iter().any(|v| depends[v.node.index()]);
    }
    reduces.iter().partition(|id| !depends[id.index()])
}

type Left = (Shape, Dim, Dim, Vec<(NodeId, Rows)>);

/// Checks everything but the outputs: batch, rows, K, and the prologue's reductions.
fn left_operand(body: &Graph, first: NodeId, matmuls: &[NodeId], reduces: &[NodeId]) -> Result<Left, Reason> {
    let result = |id: NodeId| body.node(id).types[0].shape.dims();
    let lhs = body.node(first).operands[0];
    let left = &body.ty(lhs).shape;
    let (rank, k) = (left.rank(), left.dims()[left.rank() - 1].clone());
    let m = left.dims()[rank - 2].clone();
    let batch: Shape = result(first)[..rank - 2].iter().cloned().collect();
    let mut atoms = Atoms::default();
    let row = atoms.free(&m);
    let (b, inner) = (atoms.free(&batch.numel()), atoms.free(&k));
    for id in matmuls {
        let node = body.node(*id);
        if node.operands[0] != lhs {
            return no("matmuls of different left operands");
        }
        if result(*id)[..rank - 2] != *batch.dims() {
            return no("matmuls of different batches");
        }
        let right = &body.ty(node.operands[1]).shape;
        let at: Vec<Index> = right.dims().iter().map(|d| atoms.free(d)).collect();
        if !anchor_reads(body, node.operands[1], &at, &mut atoms).is_empty() {
            return no("the right operand of a matmul depends on a reduction or matmul");
        }
    }
    let prologue = reductions(body, reduces, &row, &mut atoms)?;
    if let Some((id, rows)) = prologue.iter().find(|(_, rows)| rows.rows() != m) {
        let text = body.node_text(*id);
        return no(format!("{text} has {} rows, the matmul {m}", rows.rows()));
    }
    if !prologue.is_empty() && !batch.numel().is(1) {
        return no("a reduction before a batched matmul");
    }
    let mut at: Vec<Index> = vec![Index::default(); rank - 2];
    for (axis, i) in atoms.unflatten(&b, &batch).into_iter().enumerate() {
        at[axis] = if left.dims()[axis].is(1) { Index::default() } else { i };
    }
    at.extend([row.clone(), inner]);
    // Quantizing an element reads its row only.
    let source = quantize_node(body, lhs).map_or(lhs, |id| body.node(id).operands[0]);
    reads_row(body, source, &at, &row, &prologue, &mut atoms)?;
    Ok((batch, m, k, prologue))
}

/// The kind of an op that needs a kernel without an epilogue.
fn single_kind(op: &Op) -> Option<FusionKind> {
    match op {
        Op::Scan { .. } => Some(FusionKind::Scan),
        Op::ArgSort { .. } | Op::MergeRuns { .. } => Some(FusionKind::Sort),
        Op::Scatter(_) => Some(FusionKind::Scatter),
        Op::IndexAdd => Some(FusionKind::IndexAdd),
        Op::AttentionGrad(..) => Some(FusionKind::AttentionGrad),
        Op::Custom(_) => Some(FusionKind::Custom),
        Op::Quantize(_) => Some(FusionKind::Quantize),
        _ => None,
    }
}

fn single(body: &Graph, id: NodeId) -> Result<SingleForm, Reason> {
    let node = body.node(id);
    let mut atoms = Atoms::default();
    for v in &node.operands {
        let at: Vec<Index> = body.ty(*v).shape.dims().iter().map(|d| atoms.free(d)).collect();
        if !anchor_reads(body, *v, &at, &mut atoms).is_empty() {
            return no(format!("an operand of {} depends on another anchor", node.op.name()));
        }
    }
    if matches!(node.op, Op::Scatter(_)) && !matches!(body.op(node.operands[0]), Op::Param { .. }) {
        return no("a scatter into something that is not an operand of the kernel");
    }
    if matches!(node.op, Op::Custom(_))
        && !node.operands.iter().all(|v| param_through_reshapes(body, *v).is_some())
    {
        return no("a custom kernel reads something that is not an operand of the fusion");
    }
    let results = (0..node.types.len() as u32).map(|result| Value { node: id, result });
    // Blocks may be written several times, also to states.
    let quantizes = matches!(node.op, Op::Quantize(_));
    let blocks = || (0..body.outputs().len()).all(|output| output_root(body, output).node == id);
    if (quantizes && blocks()) || body.outputs().iter().map(|o| o.value).eq(results) {
        Ok(SingleForm { node: id })
    } else {
        no(format!("{} is not all that the kernel writes", node.op.name()))
    }
}

/// The param that `v` is, looking through reshapes, which do not change the buffer.
pub fn param_through_reshapes(body: &Graph, mut v: Value) -> Option<u32> {
    loop {
        match body.op(v) {
            Op::Param { index, .. } => return Some(*index),
            Op::Reshape(_) => v = body.node(v.node).operands[0],
            _ => return None,
        }
    }
}

fn attention(body: &Graph, id: NodeId) -> Result<AttentionForm, Reason> {
    let node = body.node(id);
    let mut atoms = Atoms::default();
    for v in &node.operands {
        let shape = &body.ty(*v).shape;
        let at: Vec<Index> = shape.dims().iter().map(|d| atoms.free(d)).collect();
        if !anchor_reads(body, *v, &at, &mut atoms).is_empty() {
            return no("an operand of attention depends on another anchor");
        }
    }
    let shape = &node.types[0].shape;
    let at: Vec<Index> = shape.dims().iter().map(|d| atoms.free(d)).collect();
    let linear = atoms.flatten(&at, shape);
    for output in 0..body.outputs().len() {
        let root = output_root(body, output);
        let to = body.ty(root).shape.clone();
        if to.numel() != shape.numel() {
            return no(format!("an output of shape {to} does not cover the attention"));
        }
        let coords = atoms.unflatten(&linear, &to);
        for (anchor, read) in anchor_reads(body, root, &coords, &mut atoms) {
            if anchor != id || read != at {
                return no("attention is read at other coordinates than its own");
            }
        }
    }
    Ok(AttentionForm { node: id })
}
