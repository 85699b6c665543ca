//! The structure of a graph: all of it but the integers that say how large things are.
//!
//! Those are the extents of inputs and states, and the extents, bounds and offsets that ops state. Graphs of one structure
//! compute the same of tensors of other sizes, so one plan may serve them all: [`crate::generalize()`] puts symbols where
//! they differ. Part of the structure remain: extents of weights and of blocks, axes, the sizes and strides of windows,
//! the number of elements that a sort keeps, and what a user's kernel states.

use std::hash::{Hash, Hasher};
use std::mem::discriminant;

use crate::dim::{Bindings, Dim};
use crate::dtype::DType;
use crate::graph::Graph;
use crate::op::Op;
use crate::scalar::Scalar;
use crate::shape::{Shape, TensorType};

/// A graph, equal to others of its structure.
#[derive(Clone, Debug)]
pub struct Structure(pub Graph);

impl Hash for Structure {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.name().hash(state);
        self.0.outputs().hash(state);
        for (_, node) in self.0.nodes() {
            hash(&node.op, state);
            node.operands.hash(state);
        }
    }
}

impl PartialEq for Structure {
    fn eq(&self, other: &Self) -> bool {
        let (a, b) = (&self.0, &other.0);
        let mut nodes = a.nodes().zip(b.nodes());
        a.name() == b.name()
            && a.outputs() == b.outputs()
            && a.len() == b.len()
            && nodes.all(|((_, a), (_, b))| a.operands == b.operands && is_alike(&a.op, &b.op))
    }
}

impl Eq for Structure {}

/// Hashes what of an op is part of its structure.
pub fn hash(op: &Op, state: &mut impl Hasher) {
    discriminant(op).hash(state);
    fixed(op).hash(state);
    sizes(op).flat_map(Dim::names).for_each(|name| name.hash(state));
}

/// Whether two ops are equal but for extents, bounds and offsets that are numbers.
pub fn is_alike(a: &Op, b: &Op) -> bool {
    is_alike_without_sizes(a, b) && sizes(a).zip(sizes(b)).all(|(a, b)| a.names().eq(b.names()))
}

/// Whether two ops are equal but for extents, bounds and offsets.
pub fn is_alike_without_sizes(a: &Op, b: &Op) -> bool {
    discriminant(a) == discriminant(b) && fixed(a) == fixed(b)
}

/// The integers of a graph that are not part of its structure, in the order of its nodes.
pub fn integers(graph: &Graph) -> impl Iterator<Item = i64> {
    graph.nodes().flat_map(|(_, node)| sizes(&node.op).filter_map(Dim::as_const))
}

/// The extents, bounds and offsets of an op that are not part of its structure, unless they are symbolic: of those, the
/// names of their symbols are.
pub fn sizes(op: &Op) -> impl Iterator<Item = &Dim> {
    let (several, one, another): (&[Dim], Option<&Dim>, Option<&Dim>) = match op {
        Op::Input { ty, .. } | Op::State { ty, .. } if has_sizes(ty) => (ty.shape.dims(), None, None),
        Op::Iota { len: dim, .. } | Op::DimValue { dim, .. } => (&[], Some(dim), None),
        Op::Reshape(shape) | Op::Broadcast(shape) => (shape.dims(), None, None),
        Op::Slice { start: a, len: b, .. } | Op::Pad { before: a, after: b, .. } => (&[], Some(a), Some(b)),
        Op::StateUpdate { offsets, .. } => (offsets, None, None),
        Op::Input { .. }
        | Op::State { .. }
        | Op::Weight { .. }
        | Op::Param { .. }
        | Op::Const(_)
        | Op::Scalar { .. }
        | Op::Elementwise(_)
        | Op::Cast(_)
        | Op::Permute(_)
        | Op::Flip { .. }
        | Op::Window { .. }
        | Op::Concat { .. }
        | Op::Reduce { .. }
        | Op::Matmul
        | Op::Gather { .. }
        | Op::Scan { .. }
        | Op::ArgSort { .. }
        | Op::MergeRuns { .. }
        | Op::Scatter(_)
        | Op::IndexAdd
        | Op::Dequantize(_)
        | Op::Quantize(_)
        | Op::Attention(_)
        | Op::AttentionGrad(..)
        | Op::Custom(_)
        | Op::Fusion(_) => (&[], None, None),
    };
    several.iter().chain(one).chain(another)
}

/// The op with other extents, bounds and offsets: `others` are in the order of [`sizes`], one for each.
pub fn with_sizes(op: &Op, others: Vec<Dim>) -> Op {
    let mut all = others.iter().cloned();
    let mut next = || all.next().unwrap_or_default();
    let ty = |ty: &TensorType| TensorType { dtype: ty.dtype, shape: Shape::new(others.clone()) };
    match op {
        Op::Input { name, ty: of } if has_sizes(of) => Op::Input { name: name.clone(), ty: ty(of) },
        Op::State { name, ty: of } if has_sizes(of) => Op::State { name: name.clone(), ty: ty(of) },
        Op::Iota { dtype, .. } => Op::Iota { len: next(), dtype: *dtype },
        Op::DimValue { dtype, .. } => Op::DimValue { dim: next(), dtype: *dtype },
        Op::Reshape(_) => Op::Reshape(Shape::new(others)),
        Op::Broadcast(_) => Op::Broadcast(Shape::new(others)),
        Op::Slice { axis, .. } => Op::Slice { axis: *axis, start: next(), len: next() },
        Op::Pad { axis, value, .. } => Op::Pad { axis: *axis, before: next(), after: next(), value: *value },
        Op::StateUpdate { rows, .. } => Op::StateUpdate { offsets: others, rows: *rows },
        without => without.clone(),
    }
}

/// Rows of blocks are whole blocks, and lie as their number says: their extents stay.
fn has_sizes(ty: &TensorType) -> bool {
    !matches!(ty.dtype, DType::Block(_))
}

/// What of an op is part of its structure, besides which op it is.
#[derive(PartialEq, Eq, Hash)]
enum Fixed<'a> {
    Leaf(&'a str, DType, usize),
    Typed(DType),
    Rank(usize),
    Axis(usize),
    Pad(usize, Scalar),
    Update(usize, Option<usize>),
    All(&'a Op),
}

fn fixed(op: &Op) -> Fixed<'_> {
    match op {
        Op::Input { name, ty } | Op::State { name, ty } if has_sizes(ty) => {
            Fixed::Leaf(name, ty.dtype, ty.shape.rank())
        }
        Op::Iota { dtype, .. } | Op::DimValue { dtype, .. } => Fixed::Typed(*dtype),
        Op::Reshape(shape) | Op::Broadcast(shape) => Fixed::Rank(shape.rank()),
        Op::Slice { axis, .. } => Fixed::Axis(*axis),
        Op::Pad { axis, value, .. } => Fixed::Pad(*axis, *value),
        Op::StateUpdate { offsets, rows } => Fixed::Update(offsets.len(), *rows),
        other => Fixed::All(other),
    }
}

/// The op with numbers for the symbols of its extents, bounds and offsets; `None` if one has no value.
pub fn with_values(op: &Op, bindings: &Bindings) -> Option<Op> {
    let numbers = sizes(op).map(|dim| dim.eval(bindings).map(Dim::constant)).collect::<Option<Vec<_>>>()?;
    Some(with_sizes(op, numbers))
}
