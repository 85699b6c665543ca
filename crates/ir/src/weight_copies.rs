//! Copies of weights, which a device makes once when weights are bound, instead of in each run.
//!
//! Passes copy weights to the order that tiles read. A weight never changes, so a kernel that computes nothing but such a
//! copy has the same result in every run. [`split`] takes these kernels out of a fused graph: what they computed is a
//! weight of the graph then, and a small graph for each says how to make it.

use crate::fusion::{Fusion, FusionKind};
use crate::graph::{Graph, GraphError, Node, NodeId, Value};
use crate::op::Op;
use crate::passes::PassError;
use crate::rewrite::rebuild;
use crate::shape::TensorType;
use crate::verify::{Verified, updated_param, verify};

/// A weight that is made of another one.
#[derive(Clone, Debug, PartialEq)]
pub struct WeightCopy {
    /// The name of the copy, which no other weight of the graph has.
    pub name: String,
    /// Its type.
    pub ty: TensorType,
    /// The weight, or an earlier copy, that it is made of.
    pub source: String,
    /// The source's type.
    pub source_ty: TensorType,
    /// What the copy is: a function of the weight [`SOURCE`], which has as many elements as the source. The same for all
    /// copies in the same order of weights of the same extents.
    pub graph: Graph,
}

/// The weight of [`WeightCopy::graph`].
pub const SOURCE: &str = "source";

/// The name of the stage in errors.
const STAGE: &str = "weight_copies";

/// The graph without the kernels that copy weights, and the copies in an order in which they can be made.
///
/// A kernel is taken out if it is a map of one weight through views of constant extents and offsets, and if its result is neither an
/// output nor overwritten by another kernel.
///
/// # Errors
/// When the result is not valid, which is a bug.
pub fn split(fused: Verified) -> Result<(Verified, Vec<WeightCopy>), PassError> {
    let (graph, copies) =
        without_copies(fused.graph()).map_err(|source| PassError::Build { pass: STAGE, source })?;
    if copies.is_empty() {
        return Ok((fused, copies));
    }
    let graph = verify(graph).map_err(|diagnostics| PassError::Verify { pass: STAGE, diagnostics })?;
    Ok((graph, copies))
}

fn without_copies(fused: &Graph) -> Result<(Graph, Vec<WeightCopy>), GraphError> {
    let changing = changing(fused);
    let changes = |node: &Node| changing.iter().any(|id| std::ptr::eq(fused.node(*id), node));
    let is_leaf_name = |name: &str| fused.nodes().any(|(_, node)| name_of(&node.op) == Some(name));
    let mut copies: Vec<WeightCopy> = vec![];
    let graph = rebuild(fused, |new, node, operands| {
        let (Op::Fusion(fusion), [operand]) = (&node.op, operands) else { return Ok(None) };
        let Op::Weight { name: source, ty: source_ty } = new.op(unshaped(new, *operand)).clone() else {
            return Ok(None);
        };
        if changes(node) || !is_copy(fusion) {
            return Ok(None);
        }
        let mut name = format!("{source}, copy {}", copies.len());
        while is_leaf_name(&name) {
            name.push('\'');
        }
        let ty = node.types[0].clone();
        let leaf = new.add(Op::Weight { name: name.clone(), ty: ty.clone() }, &[])?;
        copies.push(WeightCopy { name, ty, source, source_ty, graph: graph_of(fusion)? });
        Ok(Some(leaf))
    })?;
    // Without the weights that only copies read.
    let graph = rebuild(&graph, |_, _, _| Ok(None))?;
    Ok((graph, copies))
}

/// The nodes whose results are memory of a run: they are returned, or a kernel updates them in place.
fn changing(fused: &Graph) -> Vec<NodeId> {
    let mut values: Vec<Value> = fused.outputs().iter().map(|output| output.value).collect();
    for (_, node) in fused.nodes() {
        let Op::Fusion(fusion) = &node.op else { continue };
        let updated = (0..node.types.len() as u32).filter_map(|result| updated_param(fusion, result));
        values.extend(updated.map(|param| node.operands[param as usize]));
    }
    values.into_iter().map(|value| unshaped(fused, value).node).collect()
}

/// What a value is a reshape of. It has the same elements in memory.
fn unshaped(graph: &Graph, value: Value) -> Value {
    let mut value = value;
    while matches!(graph.op(value), Op::Reshape(_)) {
        value = graph.node(value.node).operands[0];
    }
    value
}

/// The name of a leaf.
fn name_of(op: &Op) -> Option<&str> {
    match op {
        Op::Input { name, .. } | Op::Weight { name, .. } | Op::State { name, .. } => Some(name),
        _ => None,
    }
}

/// Whether a kernel computes one value, whose elements are those of its operand and of paddings, in another order. Views
/// that repeat elements are left to each run: their results may be much larger than the weight.
fn is_copy(fusion: &Fusion) -> bool {
    let body = &fusion.body;
    let moves = |node: &Node| match &node.op {
        Op::Param { .. } | Op::Reshape(_) | Op::Permute(_) | Op::Slice { .. } | Op::Flip { .. } => true,
        Op::Pad { before, after, .. } => before.as_const().is_some() && after.as_const().is_some(),
        Op::Cast(to) => body.ty(node.operands[0]).dtype == *to,
        _ => false,
    };
    // Offsets of slices and paddings, too.
    let is_constant = |node: &Node| {
        node.op.symbols().is_empty() && node.types[0].shape.dims().iter().all(|dim| dim.as_const().is_some())
    };
    let is_single = body.params().len() == 1 && body.outputs().len() == 1;
    fusion.kind == FusionKind::Map && is_single && body.nodes().all(|(_, n)| moves(n) && is_constant(n))
}

/// The body of a copy as a graph of the weight [`SOURCE`].
fn graph_of(fusion: &Fusion) -> Result<Graph, GraphError> {
    let mut graph = Graph::new("copy of a weight");
    let mut values: Vec<Value> = vec![];
    for (_, node) in fusion.body.nodes() {
        let value = match &node.op {
            Op::Param { ty, .. } => graph.weight(SOURCE, ty.dtype, ty.shape.clone())?,
            op => {
                let operands: Vec<Value> = node.operands.iter().map(|v| values[v.node.index()]).collect();
                graph.add(op.clone(), &operands)?
            }
        };
        values.push(value);
    }
    if let Some(output) = fusion.body.outputs().first() {
        graph.output("copy", values[output.value.node.index()])?;
    }
    Ok(graph)
}
