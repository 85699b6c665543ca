//! The verifier: what every graph must satisfy, between all passes.
//!
//! Checked here:
//! - operands exist and point backwards; result types are what inference gives;
//! - `param` occurs only in fusion bodies, and
//!   the params of a body are numbered 0, 1, .. without gaps;
//! - fusion bodies hold no fusions, inputs, weights or states, and are verified like any graph;
//! - a fusion's kind accepts its body ([`crate::form`]);
//! - a state version is updated at most once, and no node that depends on the update reads the old version;
//! - what is returned without a name is the new version of a state;
//! - only states (and their versions) are updated, and those of blocks only by what `quantize` makes;
//! - an update reads the state that it updates neither as its source nor as its indices.
//!
//! Hold by construction ([`Graph::add_node`], [`Graph::output`]): no two nodes are equal, names of leaves and
//! outputs are unique, outputs exist.
//!
//! Not checked: numeric ranges, and bounds that depend on symbol values ([`Graph::constraints`]).

use std::collections::{HashMap, HashSet};

use foldhash::fast::RandomState;

use crate::dtype::DType;
use crate::fusion::Fusion;
use crate::graph::{Graph, Node, NodeId, Value};
use crate::infer::infer;
use crate::op::Op;

/// One violated invariant.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{location}: {message}\n    {context}")]
pub struct Diagnostic {
    /// `%N`, or `%N body %M`.
    pub location: String,
    /// The printed node.
    pub context: String,
    /// What is wrong.
    pub message: String,
}

/// A graph that the verifier accepted; code generation takes nothing else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified(Graph);

impl Verified {
    /// The graph.
    pub fn graph(&self) -> &Graph {
        &self.0
    }

    /// A graph that a pass made from a verified one; release builds check only the last.
    pub(crate) fn trusted(graph: Graph) -> Self {
        Verified(graph)
    }

    /// The graph, no longer known to be verified.
    pub fn into_graph(self) -> Graph {
        self.0
    }
}

/// Checks every invariant; all violations are reported.
pub fn verify(graph: Graph) -> Result<Verified, Vec<Diagnostic>> {
    let mut found = vec![];
    check(&graph, false, "", &mut found);
    if found.is_empty() { Ok(Verified(graph)) } else { Err(found) }
}

fn check(graph: &Graph, is_body: bool, prefix: &str, found: &mut Vec<Diagnostic>) {
    let mut report = |id: NodeId, message: String| {
        let context = graph.node_text(id);
        found.push(Diagnostic { location: format!("{prefix}%{}", id.0), context, message });
    };
    let mut bodies: Vec<(NodeId, &Fusion)> = vec![];
    for (id, node) in graph.nodes() {
        if let Some(v) = node.operands.iter().find(|v| v.node >= id) {
            report(id, format!("operand %{} does not point backwards", v.node.0));
            continue;
        }
        let operands: Vec<_> = node.operands.iter().map(|v| graph.ty(*v)).collect();
        match infer(&node.op, &operands) {
            Ok(types) if types == node.types => {}
            Ok(_) => report(id, "stated types are not the inferred ones".into()),
            Err(e) => report(id, e.to_string()),
        }
        match &node.op {
            Op::Param { .. } if !is_body => report(id, "param outside a fusion body".into()),
            Op::Input { .. } | Op::Weight { .. } | Op::State { .. } | Op::Fusion(_) if is_body => {
                report(id, format!("{} inside a fusion body", node.op.name()));
            }
            Op::Fusion(fusion) => bodies.push((id, fusion)),
            Op::StateUpdate { .. } if copies_blocks(graph, node) => {
                report(id, "writes blocks that are not quantized here".into());
            }
            Op::StateUpdate { .. } if !is_state(graph, node.operands[0]) => {
                report(id, "updates something that is not a state".into());
            }
            Op::StateUpdate { .. } if node.operands[1..].contains(&node.operands[0]) => {
                report(id, "reads the state that it updates".into());
            }
            _ => {}
        }
    }
    let mut indices: Vec<u32> = graph
        .nodes()
        .filter_map(|(_, n)| if let Op::Param { index, .. } = n.op { Some(index) } else { None })
        .collect();
    indices.sort_unstable();
    if indices.iter().enumerate().any(|(i, p)| i as u32 != *p) {
        report(NodeId(0), format!("params are numbered {indices:?}"));
    }
    let nameless = graph.outputs().iter().filter(|o| o.name.is_empty() && !is_body);
    for output in nameless.filter(|o| !is_updated(graph, o.value)) {
        report(output.value.node, "is returned without a name and no new version of a state".into());
    }
    states(graph, &mut report);
    // Layers repeat: a body that was found to be right is right elsewhere.
    let mut right: HashSet<&Fusion, RandomState> = HashSet::default();
    for (id, fusion) in bodies {
        if right.contains(fusion) {
            continue;
        }
        let before = found.len();
        check(&fusion.body, true, &format!("{prefix}%{} body ", id.0), found);
        if let Err(why) = crate::form::form(fusion.kind, &fusion.body) {
            let context = graph.node_text(id);
            found.push(Diagnostic {
                location: format!("{prefix}%{}", id.0),
                context,
                message: why.to_string(),
            });
        }
        if found.len() == before {
            right.insert(fusion);
        }
    }
}

/// True for an update of a state of blocks from anything but the op that makes them: no kernel copies blocks.
fn copies_blocks(graph: &Graph, update: &Node) -> bool {
    let source = update.operands[1];
    matches!(graph.ty(source).dtype, DType::Block(_)) && !matches!(graph.op(source), Op::Quantize(_))
}

/// True for a state leaf, a version of one, or a param (whose operand the outer graph checks).
fn is_state(graph: &Graph, v: Value) -> bool {
    match graph.op(v) {
        Op::State { .. } | Op::Param { .. } | Op::StateUpdate { .. } => true,
        Op::Fusion(f) => updated_param(f, v.result).is_some(),
        _ => false,
    }
}

/// True for what an update made of a state.
fn is_updated(graph: &Graph, v: Value) -> bool {
    let update = |op: &Op| matches!(op, Op::StateUpdate { .. });
    match graph.op(v) {
        Op::Fusion(f) => f.body.outputs().get(v.result as usize).is_some_and(|o| update(f.body.op(o.value))),
        op => update(op),
    }
}

/// If result `result` of a fusion is written in place of one of its operands (a state's new version, or what a
/// scatter fills), which operand.
pub fn updated_param(fusion: &Fusion, result: u32) -> Option<u32> {
    updated_operand(&fusion.body, fusion.body.outputs().get(result as usize)?.value)
}

/// As [`updated_param`], of a value of a fusion's body.
pub fn updated_operand(body: &Graph, value: Value) -> Option<u32> {
    let node = body.node(value.node);
    match (&node.op, node.operands.first().map(|operand| body.op(*operand))) {
        (Op::StateUpdate { .. } | Op::Scatter(_), Some(Op::Param { index, .. })) => Some(*index),
        _ => None,
    }
}

/// The updates of each state version: `(old version, updating node)`.
pub fn updates(graph: &Graph) -> Vec<(Value, NodeId)> {
    let mut found = vec![];
    for (id, node) in graph.nodes() {
        match &node.op {
            Op::StateUpdate { .. } => found.push((node.operands[0], id)),
            Op::Fusion(f) => {
                let params = (0..node.types.len() as u32).filter_map(|r| updated_param(f, r));
                found.extend(params.map(|p| (node.operands[p as usize], id)));
            }
            _ => {}
        }
    }
    found
}

/// At most one update per version, and no read of a version after its update.
fn states(graph: &Graph, report: &mut impl FnMut(NodeId, String)) {
    let updates = updates(graph);
    if updates.is_empty() {
        return;
    }
    let mut readers: HashMap<Value, Vec<NodeId>> = updates.iter().map(|(v, _)| (*v, vec![])).collect();
    for (id, node) in graph.nodes() {
        for v in node.operands.iter().enumerate().filter(|(i, v)| !node.operands[..*i].contains(v)) {
            readers.get_mut(v.1).into_iter().for_each(|all| all.push(id));
        }
    }
    let mut updated: HashSet<Value> = HashSet::new();
    for (version, id) in &updates {
        if !updated.insert(*version) {
            report(*id, format!("updates %{}, which another node updates too", version.node.0));
        }
        for reader in readers[version].iter().filter(|reader| **reader > *id && depends(graph, **reader, *id))
        {
            report(*reader, format!("reads %{} after %{} overwrote it", version.node.0, id.0));
        }
    }
}

/// Whether `node` needs `on`, a node before it: searched backwards, and not beyond `on`, since operands point there.
pub(crate) fn depends(graph: &Graph, node: NodeId, on: NodeId) -> bool {
    let (mut seen, mut todo) = (HashSet::new(), vec![node]);
    while let Some(id) = todo.pop() {
        for v in &graph.node(id).operands {
            if v.node == on {
                return true;
            }
            if v.node > on && seen.insert(v.node) {
                todo.push(v.node);
            }
        }
    }
    false
}
