//! Rebuilding: a pass walks the old graph in order and builds a new one; ids of the old graph never leave.

use std::collections::HashSet;

use crate::graph::{Graph, GraphError, Node, Value};
use crate::op::Op;

/// Builds a new graph by calling `rule` on each node that the outputs need, with its operands already
/// mapped. `rule` returns the replacement, or `None` to copy the node. Inputs are kept even if unused.
///
/// A node is also copied where its replacement would be a version of a state that is overwritten: a user of the node
/// may wait for the update, but must not read the old version then.
pub fn rebuild(
    graph: &Graph,
    mut rule: impl FnMut(&mut Graph, &Node, &[Value]) -> Result<Option<Value>, GraphError>,
) -> Result<Graph, GraphError> {
    rebuild_results(graph, |new, node, operands| Ok(rule(new, node, operands)?.map(|value| vec![value])))
}

/// As [`rebuild`], for nodes with several results, too: `rule` returns a replacement for each.
pub fn rebuild_results(
    graph: &Graph,
    mut rule: impl FnMut(&mut Graph, &Node, &[Value]) -> Result<Option<Vec<Value>>, GraphError>,
) -> Result<Graph, GraphError> {
    let needed = reachable(graph);
    let mut new = Graph::new(graph.name());
    let mut map: Vec<Option<Vec<Value>>> = vec![None; graph.len()];
    let updates = graph.nodes().filter(|(_, n)| matches!(n.op, Op::StateUpdate { .. }));
    let overwritten: HashSet<Value> = updates.map(|(_, n)| n.operands[0]).collect();
    // The same in the new graph, as far as it is built.
    let mut overwritten_there: HashSet<Value> = HashSet::new();
    for (id, node) in graph.nodes() {
        if !needed[id.index()] {
            continue;
        }
        let operands: Vec<Value> = node.operands.iter().map(|v| mapped(&map, *v)).collect();
        let to: Vec<Value> = match rule(&mut new, node, &operands)? {
            Some(values) if !values.iter().any(|value| overwritten_there.contains(value)) => values,
            Some(_) | None => {
                let copy = new.add_node(node.op.clone(), &operands)?;
                (0..node.types.len() as u32).map(|result| Value { node: copy, result }).collect()
            }
        };
        for (result, value) in to.iter().enumerate() {
            if overwritten.contains(&Value { node: id, result: result as u32 }) {
                overwritten_there.insert(*value);
            }
        }
        map[id.index()] = Some(to);
    }
    for output in graph.outputs() {
        new.output(&output.name, mapped(&map, output.value))?;
    }
    Ok(new)
}

fn mapped(map: &[Option<Vec<Value>>], v: Value) -> Value {
    map[v.node.index()].as_ref().expect("invariant: operands come before their users")[v.result as usize]
}

/// Which nodes the outputs depend on; inputs count as needed, since callers will supply them.
pub fn reachable(graph: &Graph) -> Vec<bool> {
    let mut needed = vec![false; graph.len()];
    for output in graph.outputs() {
        needed[output.value.node.index()] = true;
    }
    for (id, node) in graph.nodes().rev() {
        needed[id.index()] |= matches!(node.op, Op::Input { .. } | Op::Param { .. });
        if needed[id.index()] {
            node.operands.iter().for_each(|v| needed[v.node.index()] = true);
        }
    }
    needed
}
