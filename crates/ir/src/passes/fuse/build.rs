//! Builds fusion nodes from clusters, after preparing the graph.

use std::collections::{BTreeMap, HashMap};

use petgraph::graphmap::DiGraphMap;

use super::cluster::{Class, Clusters};
use crate::dtype::DType;
use crate::fusion::Fusion;
use crate::graph::{Graph, GraphError, Value};
use crate::op::Op;
use crate::rewrite::rebuild;
use crate::verify::depends;

/// Copies outputs that are leaves: the caller cannot own a leaf's buffer.
pub(super) fn copy_leaf_outputs(graph: &Graph) -> Result<Graph, GraphError> {
    let copied = rebuild(graph, |_, _, _| Ok(None))?;
    let mut new = Graph::new(graph.name());
    let mut map: HashMap<Value, Value> = HashMap::new();
    for (id, node) in copied.nodes() {
        let operands: Vec<Value> = node.operands.iter().map(|v| map[v]).collect();
        let to = new.add_node(node.op.clone(), &operands)?;
        for result in 0..node.types.len() as u32 {
            map.insert(Value { node: id, result }, Value { node: to, result });
        }
    }
    for output in copied.outputs() {
        let mut value = map[&output.value];
        let mut below = value;
        while matches!(new.op(below), Op::Reshape(_)) {
            below = new.node(below.node).operands[0];
        }
        if new.op(below).is_leaf() {
            value = fresh_copy(&mut new, value)?;
        }
        new.output(&output.name, value)?;
    }
    Ok(new)
}

/// Copies every scatter's target, because a kernel scatters in place. A narrow type is widened, as there are no atomics
/// below 32 bits; the result is rounded back to it once.
pub(super) fn copy_scatter_targets(graph: &Graph) -> Result<Graph, GraphError> {
    rebuild(graph, |new, node, operands| match &node.op {
        Op::Scatter(kind) => {
            let narrow = new.ty(operands[0]).dtype;
            let Some(wide) = scattered_in(narrow) else {
                let target = fresh_copy(new, operands[0])?;
                return new.add(Op::Scatter(*kind), &[target, operands[1], operands[2]]).map(Some);
            };
            let target = new.add(Op::Cast(wide), &[operands[0]])?;
            let target = fresh_copy(new, target)?;
            let source = new.add(Op::Cast(wide), &[operands[2]])?;
            let all = new.add(Op::Scatter(*kind), &[target, operands[1], source])?;
            new.add(Op::Cast(narrow), &[all]).map(Some)
        }
        _ => Ok(None),
    })
}

/// Duplicates the quantization for an update of a block state whose other operands depend on the same blocks: no single
/// kernel could make the blocks for both.
pub(super) fn copy_awaited_blocks(graph: &Graph) -> Result<Graph, GraphError> {
    rebuild(graph, |new, node, operands| {
        let (Op::StateUpdate { .. }, Some(source)) = (&node.op, operands.get(1).copied()) else {
            return Ok(None);
        };
        let Op::Quantize(format) = *new.op(source) else { return Ok(None) };
        let waits = |v: &Value| v.node > source.node && depends(new, v.node, source.node);
        if !operands.iter().any(waits) {
            return Ok(None);
        }
        let unquantized = fresh_copy(new, new.node(source.node).operands[0])?;
        let mut operands = operands.to_vec();
        operands[1] = new.add(Op::Quantize(format), &[unquantized])?;
        new.add(node.op.clone(), &operands).map(Some)
    })
}

/// The wider type that a narrow type is scattered in. Sums and maxima are the same there up to rounding and wrapping,
/// which the cast back restores.
fn scattered_in(dtype: DType) -> Option<DType> {
    match dtype {
        DType::F8E4M3 | DType::F16 | DType::BF16 => Some(DType::F32),
        DType::U8 => Some(DType::U32),
        DType::I16 => Some(DType::I32),
        DType::U32 | DType::I32 | DType::I64 | DType::F32 | DType::F64 | DType::Block(_) => None,
    }
}

/// A copy of `value` that equals no other node (nodes are deduplicated); it may copy another such copy.
fn fresh_copy(graph: &mut Graph, mut value: Value) -> Result<Value, GraphError> {
    let (dtype, nodes) = (graph.ty(value).dtype, graph.len());
    while graph.len() == nodes {
        value = graph.add(Op::Cast(dtype), &[value])?;
    }
    Ok(value)
}

/// The graph of kernels, in a topological order of the clusters.
pub(super) fn build(c: &Clusters<'_>) -> Result<Graph, GraphError> {
    let live = c.live();
    let mut dag: DiGraphMap<usize, ()> = DiGraphMap::new();
    for id in &live {
        dag.add_node(*id);
        for consumer in c.successors(*id) {
            dag.add_edge(*id, consumer, ());
        }
    }
    let order = petgraph::algo::toposort(&dag, None).expect("invariant: every merge was checked for cycles");
    let mut new = Graph::new(c.graph.name());
    let mut map: BTreeMap<Value, Value> = BTreeMap::new();
    for (id, node) in c.graph.nodes() {
        if c.class[id.index()] == Class::Leaf {
            map.insert(id.into(), new.add(node.op.clone(), &[])?);
        }
    }
    for id in order {
        let cluster = c.get(id);
        let outputs = c.outputs(id);
        let (body, externals) = c.body(&cluster.nodes, &outputs)?;
        let operands: Vec<Value> = externals.iter().map(|v| map[v]).collect();
        let fusion = new.add_node(Op::Fusion(Box::new(Fusion::new(cluster.kind, body))), &operands)?;
        for (result, output) in c.results(&outputs).into_iter().enumerate() {
            map.insert(output, Value { node: fusion, result: result as u32 });
        }
    }
    for output in c.graph.outputs() {
        let mut shapes = vec![];
        let mut v = output.value;
        while let (None, Op::Reshape(to)) = (map.get(&v), c.graph.op(v)) {
            shapes.push(to.clone());
            v = c.graph.node(v.node).operands[0];
        }
        let mut value = map[&v];
        if let Some(shape) = shapes.into_iter().next() {
            value = new.reshape(value, shape)?;
        }
        new.output(&output.name, value)?;
    }
    Ok(new)
}
