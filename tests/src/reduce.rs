//! Makes a failing graph small: what remains is what the failure needs.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;

use tallow_ir::{DType, Graph, Node, NodeId, Op, Value};

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// The error of `check`, or its panic as an error, without printing it.
pub fn caught(check: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let print = take_hook();
        set_hook(Box::new(move |info| {
            if !QUIET.get() {
                print(info);
            }
        }));
    });
    let before = QUIET.replace(true);
    let result = catch_unwind(AssertUnwindSafe(check));
    QUIET.set(before);
    result.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        Err(format!("panicked: {}", text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("")))
    })
}

/// A small graph for which `fails` still holds, if it holds for `graph`.
///
/// Tries to keep only one output, to return an earlier value instead, and to replace nodes by inputs, until
/// nothing of that helps.
pub fn reduce(graph: &Graph, fails: impl Fn(&Graph) -> bool) -> Graph {
    let size = |g: &Graph| (g.nodes().filter(|(_, n)| !n.op.is_leaf()).count(), g.len());
    let mut best = graph.clone();
    loop {
        let smaller = candidates(&best).find(|c| size(c) < size(&best) && fails(c));
        match smaller {
            Some(smaller) => best = smaller,
            None => return best,
        }
    }
}

/// Graphs with less in them, the smallest first.
fn candidates(graph: &Graph) -> impl Iterator<Item = Graph> {
    let outputs: Vec<Value> = graph.outputs().iter().map(|o| o.value).collect();
    let computed: Vec<NodeId> = graph.nodes().filter(|(_, n)| !n.op.is_leaf()).map(|(id, _)| id).collect();
    let alone = computed.clone().into_iter().map(|id| rebuilt(graph, &[id.into()], None));
    let without = (0..outputs.len()).map({
        let outputs = outputs.clone();
        move |i| rebuilt(graph, &[&outputs[..i], &outputs[i + 1..]].concat(), None)
    });
    let cut = computed.into_iter().rev().map(move |id| rebuilt(graph, &outputs, Some(id)));
    alone.chain(without).chain(cut).flatten()
}

/// What `outputs` need of `graph`, with the results of node `cut` as inputs; `None` if that is no graph.
fn rebuilt(graph: &Graph, outputs: &[Value], cut: Option<NodeId>) -> Option<Graph> {
    let mut needed = vec![false; graph.len()];
    for v in outputs {
        *needed.get_mut(v.node.index())? = true;
    }
    for (id, node) in graph.nodes().rev() {
        if needed[id.index()] && cut != Some(id) {
            node.operands.iter().for_each(|v| needed[v.node.index()] = true);
        }
    }
    let mut new = Graph::new(graph.name());
    let mut values: Vec<Vec<Value>> = vec![vec![]; graph.len()];
    for (id, node) in graph.nodes().filter(|(id, _)| needed[id.index()]) {
        values[id.index()] =
            if cut == Some(id) { as_inputs(&mut new, id, node)? } else { copied(&mut new, node, &values)? };
    }
    for (i, v) in outputs.iter().enumerate() {
        let value = *values[v.node.index()].get(v.result as usize)?;
        let survives = graph.outputs().iter().any(|o| o.name.is_empty() && o.value == *v);
        if !survives || new.keep(value).is_err() {
            new.output(&format!("y{i}"), value).ok()?;
        }
    }
    tallow_ir::verify(new).ok().map(|g| g.into_graph())
}

fn copied(new: &mut Graph, node: &Node, values: &[Vec<Value>]) -> Option<Vec<Value>> {
    let operands: Option<Vec<Value>> =
        node.operands.iter().map(|v| values[v.node.index()].get(v.result as usize).copied()).collect();
    let id = new.add_node(node.op.clone(), &operands?).ok()?;
    Some((0..node.types.len() as u32).map(|result| Value { node: id, result }).collect())
}

fn as_inputs(new: &mut Graph, id: NodeId, node: &Node) -> Option<Vec<Value>> {
    if matches!(node.op, Op::Input { .. }) || node.types.iter().any(|t| matches!(t.dtype, DType::Block(_))) {
        return None;
    }
    let input = |(i, ty): (usize, &tallow_ir::TensorType)| {
        new.input(&format!("cut{}_{i}", id.0), ty.dtype, ty.shape.clone()).ok()
    };
    node.types.iter().enumerate().map(input).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tallow_ir::{Dim, ElementwiseOp};

    use crate::{Options, random_graph};

    #[test]
    fn what_remains_is_what_the_failure_needs() {
        let is_matmul = |op: &Op| matches!(op, Op::Matmul);
        let has = |g: &Graph| g.nodes().any(|(_, n)| is_matmul(&n.op));
        let mut reduced = 0;
        for seed in 0..40 {
            let graph = random_graph(seed, 12, &Options::default());
            let needed = |g: &Graph| {
                // A matmul that an output depends on: the reducer drops others.
                rebuilt(g, &g.outputs().iter().map(|o| o.value).collect::<Vec<_>>(), None)
                    .is_some_and(|g| has(&g))
            };
            if needed(&graph) {
                let small = reduce(&graph, needed);
                assert!(has(&small) && small.len() <= 3, "seed {seed}:\n{small}");
                reduced += 1;
            }
        }
        assert!(reduced > 0);
    }

    /// What a failure needs of a state that is only kept stays in the state.
    #[test]
    fn nameless_outputs_survive() {
        let mut graph = Graph::new("kept");
        let x = graph.input("x", DType::F32, [4]).expect("a new name");
        let state = graph.state("s", DType::F32, [4]).expect("a new name");
        let y = graph.elementwise(ElementwiseOp::Neg, &[x]).expect("of a float");
        let next = Op::StateUpdate { offsets: vec![Dim::zero()], rows: None };
        let next = graph.add(next, &[state, y]).expect("of one type");
        graph.keep(next).expect("a new version");
        graph.output("y", y).expect("a new name");
        let survives = |g: &Graph| g.outputs().iter().any(|o| o.name.is_empty());
        let small = reduce(&graph, survives);
        assert!(survives(&small) && small.len() < graph.len(), "{small}");
    }

    #[test]
    fn panics_become_errors() {
        assert_eq!(caught(|| panic!("of {}", 1)), Err("panicked: of 1".into()));
        assert_eq!(caught(|| Err("e".into())), Err("e".into()));
        assert_eq!(caught(|| Ok(())), Ok(()));
    }
}
