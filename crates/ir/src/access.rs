//! Which elements of its operands an op reads for one element of its result: the index maps of all ops
//! whose element needs at most one element of each operand.

use std::collections::HashSet;

use crate::dim::Dim;
use crate::dtype::DType;
use crate::graph::{Graph, Node, NodeId, Value};
use crate::index::{AtomDef, AtomId, Atoms, Index};
use crate::op::Op;

/// The coordinates at which each operand of `node` is read for the element at `at`, in operand order.
///
/// `None` for anchors (reduce, matmul, scan, argsort, scatter, index_add, quantize, attention, custom kernels, fusion),
/// which need many elements. A gathered coordinate is a fresh data atom; `state_update` is read like its source, `at` being
/// coordinates of the written box, and the indices of its rows along their axis.
pub fn operand_indices(
    graph: &Graph,
    node: NodeId,
    at: &[Index],
    atoms: &mut Atoms,
) -> Option<Vec<Vec<Index>>> {
    let n = graph.node(node);
    let operand_shape = |i: usize| &graph.ty(n.operands[i]).shape;
    let set = |axis: usize, index: Index| {
        let mut to = at.to_vec();
        to[axis] = index;
        to
    };
    Some(match &n.op {
        Op::Input { .. }
        | Op::Weight { .. }
        | Op::State { .. }
        | Op::Param { .. }
        | Op::Const(_)
        | Op::Iota { .. }
        | Op::DimValue { .. }
        | Op::Scalar { .. } => vec![],
        Op::Elementwise(_) => vec![at.to_vec(); n.operands.len()],
        Op::Cast(_) | Op::Dequantize(_) => vec![at.to_vec()],
        Op::Reshape(shape) => {
            let linear = atoms.flatten(at, shape);
            vec![atoms.unflatten(&linear, operand_shape(0))]
        }
        Op::Broadcast(shape) => {
            let from = operand_shape(0);
            let skip = shape.rank() - from.rank();
            let pick = |(d, i): (&crate::Dim, &Index)| if d.is(1) { Index::default() } else { i.clone() };
            vec![from.dims().iter().zip(&at[skip..]).map(pick).collect()]
        }
        Op::Permute(axes) => {
            let mut to = vec![Index::default(); at.len()];
            axes.iter().zip(at).for_each(|(axis, i)| to[*axis] = i.clone());
            vec![to]
        }
        Op::Slice { axis, start, .. } => vec![set(*axis, at[*axis].offset(start))],
        Op::Flip { axis } => {
            let last = &operand_shape(0).dims()[*axis] - &1.into();
            vec![set(*axis, at[*axis].scale(&(-1).into()).offset(&last))]
        }
        Op::Window { axis, stride, dilation, .. } => {
            let step = |n: usize| crate::Dim::from(n);
            let read = atoms.add(&at[*axis].scale(&step(*stride)), &at[axis + 1].scale(&step(*dilation)));
            let mut to = at.to_vec();
            to.splice(*axis..axis + 2, [read]);
            vec![to]
        }
        Op::Pad { axis, before, .. } => {
            let window = atoms.window(&at[*axis], before, &operand_shape(0).dims()[*axis]);
            vec![set(*axis, window)]
        }
        Op::Concat { axis } => {
            let mut start = crate::Dim::zero();
            let mut all = vec![];
            for i in 0..n.operands.len() {
                let len = &operand_shape(i).dims()[*axis];
                all.push(set(*axis, atoms.window(&at[*axis], &start, len)));
                start = &start + len;
            }
            all
        }
        Op::Gather { axis } => {
            let rank = operand_shape(1).rank();
            let data = atoms.fresh(&operand_shape(0).dims()[*axis], AtomDef::Data);
            let mut src = at[..*axis].to_vec();
            src.push(atoms.index(data));
            src.extend_from_slice(&at[axis + rank..]);
            vec![src, at[*axis..axis + rank].to_vec()]
        }
        Op::StateUpdate { rows, .. } => {
            let indices = rows.map(|axis| vec![at[axis].clone()]);
            [vec![], at.to_vec()].into_iter().chain(indices).collect()
        }
        Op::Reduce { .. }
        | Op::Matmul
        | Op::Scan { .. }
        | Op::ArgSort { .. }
        | Op::MergeRuns { .. }
        | Op::Quantize(_)
        | Op::Scatter(_)
        | Op::IndexAdd
        | Op::Attention(_)
        | Op::AttentionGrad(..)
        | Op::Custom(_)
        | Op::Fusion(_) => return None,
    })
}

/// The buffer from which a matmul's right operand reads runs of `multiple` neighbours along the inner extent, if it does.
pub fn vectors_along_k(graph: &Graph, rhs: Value, multiple: i64) -> Option<Value> {
    let rank = graph.ty(rhs).shape.rank();
    neighbours_along(graph, rhs, rank - 2, multiple)
}

/// Fewest adjacent columns that a subgroup reads with few wide accesses.
const COALESCED: i64 = 16;

/// Whether adjacent columns of a matmul's right operand are adjacent in memory, at least in runs, and elements of one
/// column are not. Runs are those of a convolution's windows: the columns of one line of the image.
pub fn is_contiguous_along_n(graph: &Graph, rhs: Value) -> bool {
    let rank = graph.ty(rhs).shape.rank();
    let run = |axis| run_along(graph, rhs, axis);
    run(rank - 1).is_some_and(|run| run >= COALESCED) && run(rank - 2).is_some_and(|run| run < COALESCED)
}

/// How many adjacent elements along an axis are adjacent in the buffer that a value reads through views. `None` if it is
/// computed. Padding counts as a buffer: it selects elements, but their order stays.
fn run_along(graph: &Graph, value: Value, axis: usize) -> Option<i64> {
    let (mut atoms, along, mut at) = coordinates_along(graph, value, axis);
    let mut value = value;
    loop {
        let node = graph.node(value.node);
        match &node.op {
            Op::Param { .. } | Op::Input { .. } | Op::Weight { .. } | Op::State { .. } | Op::Pad { .. } => {
                let linear = atoms.flatten(&at, &graph.ty(value).shape);
                return Some(atoms.run(&linear, along));
            }
            Op::Cast(_)
            | Op::Dequantize(_)
            | Op::Reshape(_)
            | Op::Broadcast(_)
            | Op::Permute(_)
            | Op::Window { .. }
            | Op::Slice { .. } => {}
            _ => return None,
        }
        at = operand_indices(graph, value.node, &at, &mut atoms)?.into_iter().next()?;
        value = node.operands[0];
    }
}

/// Coordinates of an element of a value, and the atom of the one along `axis`.
fn coordinates_along(graph: &Graph, value: Value, axis: usize) -> (Atoms, AtomId, Vec<Index>) {
    let dims = graph.ty(value).shape.dims();
    let mut atoms = Atoms::default();
    let along = atoms.fresh(&dims[axis], AtomDef::Free);
    let one = |(i, d): (usize, &Dim)| if i == axis { atoms.index(along) } else { atoms.free(d) };
    let at = dims.iter().enumerate().map(one).collect();
    (atoms, along, at)
}

/// The buffer from which a value reads runs of `multiple` neighbours along an axis, possibly through a gather, if it does.
fn neighbours_along(graph: &Graph, value: Value, axis: usize, multiple: i64) -> Option<Value> {
    let (mut atoms, along, at) = coordinates_along(graph, value, axis);
    gathered_neighbours(graph, value, &at, (along, multiple), &mut atoms).map(|run| run.leaf)
}

/// If element `k` of `value` at `at` is element `base + k` of a leaf (or of a copy, which will be in memory), with `base` a
/// multiple of `multiple`: the leaf and `base`. Then whole groups of neighbours can be loaded (and dequantized) at once.
///
/// Looks through views, dequantization to f32 and casts that widen, by their index maps; not through gathers, see
/// [`gathered_neighbours`].
pub fn neighbours(
    graph: &Graph,
    value: Value,
    at: &[Index],
    k: AtomId,
    multiple: i64,
    atoms: &mut Atoms,
) -> Option<(Value, Index)> {
    let run = padded_neighbours(graph, value, at, (k, multiple), atoms)?;
    run.is_plain().then_some((run.leaf, run.base))
}

/// Like [`neighbours`], also through gathers along other axes than that of `k`: the position of the first is that of
/// elements that indices choose, whose atoms [`Run::gathers`] lists.
pub fn gathered_neighbours(
    graph: &Graph,
    value: Value,
    at: &[Index],
    (k, multiple): (AtomId, i64),
    atoms: &mut Atoms,
) -> Option<Run> {
    run::<true>(graph, value, at, (k, multiple), atoms).filter(Run::is_plain)
}

/// Neighbours in memory, or the zeros of a padding. See [`padded_neighbours`].
pub struct Run {
    /// What they are read from.
    pub leaf: Value,
    /// The position of the first.
    pub base: Index,
    /// They are read if all of these hold; otherwise all are zero.
    pub inside: Vec<Inside>,
    /// Whether they are read through windows.
    pub has_windows: bool,
    /// The gathers on the way to the leaf.
    pub gathers: Vec<Gathered>,
    /// Whether they are read from memory: `leaf` is a leaf or a copy. Other nodes are, too, unless they are computed in the
    /// kernel that reads them.
    pub is_read: bool,
}

impl Run {
    /// Whether they are read from memory, all of them, and not through windows.
    fn is_plain(&self) -> bool {
        self.is_read && self.inside.is_empty() && !self.has_windows
    }
}

/// A coordinate that a gather reads from its indices.
pub struct Gathered {
    /// The coordinate.
    pub atom: AtomId,
    /// The gather.
    pub node: NodeId,
    /// Where its indices are read.
    pub at: Vec<Index>,
}

/// Whether `index - start` is below `len`, as unsigned numbers.
pub struct Inside {
    /// A coordinate along a padded axis.
    pub index: Index,
    /// Elements of the padding in front.
    pub start: Dim,
    /// Elements between the paddings.
    pub len: Dim,
}

/// Like [`neighbours`], through windows as well, and through paddings with zeros if all elements `k` are in the padding or
/// none is.
pub fn padded_neighbours(
    graph: &Graph,
    value: Value,
    at: &[Index],
    (k, multiple): (AtomId, i64),
    atoms: &mut Atoms,
) -> Option<Run> {
    run::<false>(graph, value, at, (k, multiple), atoms)
}

/// [`padded_neighbours`], through gathers or not.
fn run<const THROUGH_GATHERS: bool>(
    graph: &Graph,
    value: Value,
    at: &[Index],
    (k, multiple): (AtomId, i64),
    atoms: &mut Atoms,
) -> Option<Run> {
    let (mut value, mut at, mut inside, mut has_windows) = (value, at.to_vec(), vec![], false);
    let mut gathers = vec![];
    let is_read = loop {
        let node = graph.node(value.node);
        match &node.op {
            Op::Param { .. } | Op::Input { .. } | Op::Weight { .. } | Op::State { .. } => break true,
            Op::Cast(_) if is_copy(graph, node) => break true,
            Op::Cast(DType::F32) if matches!(graph.ty(node.operands[0]).dtype, DType::F16 | DType::BF16) => {}
            Op::Pad { axis, before, value: filler, .. } => {
                let index = at[*axis].clone();
                let zero = filler.as_f64() == 0.0 && filler.as_f64().is_sign_positive();
                if !zero || atoms.roots(&index).contains(&k) {
                    return None;
                }
                let len = graph.ty(node.operands[0]).shape.dims()[*axis].clone();
                inside.push(Inside { index, start: before.clone(), len });
            }
            Op::Dequantize(DType::F32)
            | Op::Reshape(_)
            | Op::Broadcast(_)
            | Op::Permute(_)
            | Op::Slice { .. } => {}
            Op::Window { .. } => has_windows = true,
            Op::Gather { axis } if THROUGH_GATHERS => {
                let [source, indices] = [0, 1].map(|i| &graph.ty(node.operands[i]).shape);
                let chosen = *axis..axis + indices.rank();
                if at[chosen.clone()].iter().any(|index| atoms.roots(index).contains(&k)) {
                    return None;
                }
                let atom = atoms.fresh(&source.dims()[*axis], AtomDef::Data);
                let read = at.splice(chosen, [atoms.index(atom)]).collect();
                gathers.push(Gathered { atom, node: value.node, at: read });
                value = node.operands[0];
                continue;
            }
            Op::Flip { .. } | Op::Concat { .. } => return None,
            _ => break false,
        }
        at = operand_indices(graph, value.node, &at, atoms)?.into_iter().next()?;
        value = node.operands[0];
    };
    let linear = atoms.flatten(&at, &graph.ty(value).shape);
    let base = atoms.base(&linear, k, multiple)?;
    Some(Run { leaf: value, base, inside, has_windows, gathers, is_read })
}

/// Whether a node copies its operand: a cast to the type that it has. Rules fold the casts of callers; passes add this one
/// where elements are to be written in the order of its axes.
pub fn is_copy(graph: &Graph, node: &Node) -> bool {
    match node.op {
        Op::Cast(to) => graph.ty(node.operands[0]).dtype == to,
        _ => false,
    }
}

/// Whether each group of `size` elements along an axis is adjacent in what a value is read from, and starts at a multiple
/// of `size`, or is padding. The groups themselves may be anywhere.
pub fn has_groups_along(graph: &Graph, value: Value, axis: usize, size: i64) -> bool {
    groups_along::<false>(graph, value, axis, size).is_some()
}

/// The buffer from which a matmul's right operand reads whole groups of `size` neighbours along the inner extent, if it does.
/// The groups may be anywhere, possibly behind a gather.
pub fn groups_along_k(graph: &Graph, rhs: Value, size: i64) -> Option<Value> {
    let rank = graph.ty(rhs).shape.rank();
    groups_along::<true>(graph, rhs, rank - 2, size).filter(Run::is_plain).map(|run| run.leaf)
}

/// Any of the groups of `size` neighbours along an axis; see [`has_groups_along`].
fn groups_along<const THROUGH_GATHERS: bool>(
    graph: &Graph,
    value: Value,
    axis: usize,
    size: i64,
) -> Option<Run> {
    let dims = graph.ty(value).shape.dims();
    let by = Dim::constant(size);
    let groups = dims[axis].div_exact(&by)?;
    let mut atoms = Atoms::default();
    let j = atoms.fresh(&by, AtomDef::Free);
    let (group, element) = (atoms.free(&groups), atoms.index(j));
    let along = atoms.add(&group.scale(&by), &element);
    let one = |(i, d): (usize, &Dim)| if i == axis { along.clone() } else { atoms.free(d) };
    let at: Vec<Index> = dims.iter().enumerate().map(one).collect();
    run::<THROUGH_GATHERS>(graph, value, &at, (j, size), &mut atoms)
}

/// The elements that `root` at `at` reads: params with the position of the element in each. Stops at anchors, like
/// [`anchor_reads`].
pub fn param_reads(graph: &Graph, root: Value, at: &[Index], atoms: &mut Atoms) -> Vec<(Value, Index)> {
    let mut seen: HashSet<(Value, Vec<Index>)> = HashSet::new();
    let mut found = vec![];
    let mut todo = vec![(root, at.to_vec())];
    while let Some((value, at)) = todo.pop() {
        if !seen.insert((value, at.clone())) {
            continue;
        }
        let node = graph.node(value.node);
        if matches!(node.op, Op::Param { .. }) {
            let linear = atoms.flatten(&at, &graph.ty(value).shape);
            if !found.contains(&(value, linear.clone())) {
                found.push((value, linear));
            }
        } else if let Some(reads) = operand_indices(graph, value.node, &at, atoms) {
            let skip = usize::from(matches!(node.op, Op::StateUpdate { .. }));
            let all = node.operands.iter().copied().zip(reads);
            match selected_part(graph, node, &at) {
                Some(part) => todo.extend(all.skip(part).take(1)),
                None => todo.extend(all.skip(skip).rev()),
            }
        }
    }
    found
}

/// The operand of a concat that is read at `at`, if the coordinate along its axis is constant. Kernels read no other.
pub fn selected_part(graph: &Graph, node: &Node, at: &[Index]) -> Option<usize> {
    let Op::Concat { axis } = node.op else { return None };
    let along = at.get(axis).filter(|index| index.terms.is_empty())?.constant.as_const()?;
    let mut end = 0;
    for (part, operand) in node.operands.iter().enumerate() {
        end += graph.ty(*operand).shape.dims()[axis].as_const()?;
        if along < end {
            return Some(part);
        }
    }
    None
}

/// The first coordinates at which each anchor among the dependencies of `root` at `at` is read.
///
/// Stops at anchors; each (value, coordinates) pair is visited once.
pub fn anchor_reads(
    graph: &Graph,
    root: Value,
    at: &[Index],
    atoms: &mut Atoms,
) -> Vec<(NodeId, Vec<Index>)> {
    let mut seen: HashSet<(Value, Vec<Index>)> = HashSet::new();
    let mut found = vec![];
    let mut todo = vec![(root, at.to_vec())];
    while let Some((value, at)) = todo.pop() {
        if !seen.insert((value, at.clone())) {
            continue;
        }
        match operand_indices(graph, value.node, &at, atoms) {
            None => found.push((value.node, at)),
            Some(reads) => {
                let node = graph.node(value.node);
                let skip = usize::from(matches!(node.op, Op::StateUpdate { .. }));
                todo.extend(node.operands.iter().copied().zip(reads).skip(skip));
            }
        }
    }
    found
}
