//! A timeline as a fused graph.

use std::collections::BTreeMap;

use tallow_ir::{Fusion, Graph, GraphError, NodeId, Op, Value};

use super::timeline::{SlotId, Step, Timeline};
use crate::donation::through_reshapes;

/// The graph of all steps of a timeline, in the order of their levels.
pub(super) fn rebuild(timeline: &Timeline<'_>) -> Result<Graph, GraphError> {
    let old = timeline.graph;
    let mut new = Graph::new(old.name());
    // The values in the new graph: of leaves and of results by their number, and of slots that were added.
    let (mut originals, mut added): (BTreeMap<Value, Value>, BTreeMap<SlotId, Value>) = Default::default();
    for (id, node) in old.nodes().filter(|(_, node)| node.op.is_leaf()) {
        originals.insert(Value::from(id), new.add(node.op.clone(), &[])?);
    }
    let mut steps: Vec<&Step> = timeline.steps.iter().filter(|step| !step.results.is_empty()).collect();
    // Stable: added steps come after the others of their level, which wait for nothing of it.
    steps.sort_by_key(|step| step.level);
    for step in steps {
        let node = old.node(step.node);
        let mut operands = vec![];
        let sources: Vec<Value> = match &step.slice {
            None => node.operands.clone(),
            Some(slice) => slice.params.iter().map(|source| timeline.given(step.node, *source)).collect(),
        };
        for (source, slot) in sources.iter().zip(&step.reads) {
            let value = match added.get(slot) {
                Some(value) => *value,
                None => originals[&through_reshapes(old, *source)],
            };
            operands.push(reshaped(&mut new, value, old, *source)?);
        }
        let made = match &step.slice {
            None => new.add_node(node.op.clone(), &operands)?,
            Some(slice) => another(&mut new, &slice.fusion, &operands)?,
        };
        for (at, (result, slot)) in step.results.iter().zip(&step.writes).enumerate() {
            let value = Value { node: made, result: at as u32 };
            match step.is_added {
                true => added.insert(*slot, value),
                // By its value: another value may be written over it in the same slot.
                false => originals.insert(Value { node: step.node, result: *result }, value),
            };
        }
    }
    for output in old.outputs() {
        let value = originals[&through_reshapes(old, output.value)];
        let value = reshaped(&mut new, value, old, output.value)?;
        new.output(&output.name, value)?;
    }
    Ok(new)
}

/// A node for `fusion` that is not there yet.
fn another(graph: &mut Graph, fusion: &Fusion, operands: &[Value]) -> Result<NodeId, GraphError> {
    let mut fusion = fusion.clone();
    loop {
        let nodes = graph.len();
        let node = graph.add_node(Op::Fusion(Box::new(fusion.clone())), operands)?;
        if graph.len() > nodes {
            return Ok(node);
        }
        fusion.run += 1;
    }
}

/// `value` with the shape of `source`, which has as many elements.
fn reshaped(graph: &mut Graph, value: Value, old: &Graph, source: Value) -> Result<Value, GraphError> {
    let shape = &old.ty(source).shape;
    match &graph.ty(value).shape == shape {
        true => Ok(value),
        false => graph.reshape(value, shape.clone()),
    }
}
