//! Reverse-mode differentiation as a function from graphs to graphs.
//!
//! [`gradient`] appends, to the nodes that compute some outputs, the nodes that compute the derivatives of their sum. The
//! result is a graph like any other: it prints, is verified and interpreted, and forward and backward part are fused and
//! planned together. Rules lie beside the kind of op that they are about; that of an elementwise op is in its row of the
//! [table](crate::elementwise).
//!
//! Conventions are PyTorch's: equal operands of `maximum` share the gradient, so do equal largest elements of a row;
//! what jumps (rounding, comparisons, positions) passes nothing back. There is one difference: an element whose
//! gradient is 0 passes back 0, though the slope there be infinite or NaN, where PyTorch gives NaN.

mod attention;
mod contraction;
mod indexing;
mod reduce;
mod rules;
mod term;
mod views;

use std::collections::{HashMap, HashSet};

use crate::graph::{Graph, GraphError, NodeId, Value};
use crate::op::Op;

pub use term::{Build, Term};

/// Why there is no gradient.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GradientError {
    /// An op on the way has no derivative.
    #[error("no gradient through {op}: {why} ({path})")]
    Op {
        /// The op's name.
        op: &'static str,
        /// What is missing.
        why: String,
        /// The ops from the output to it, as `output <- %9 add <- %7 custom`.
        path: String,
    },
    /// What is to be differentiated is no float.
    #[error("no gradient of {what}: its elements are {dtype}, not floats")]
    NotFloat {
        /// The output or leaf.
        what: String,
        /// Its element type.
        dtype: String,
    },
    /// No such output or leaf.
    #[error("there is no {what} '{name}'")]
    Unknown {
        /// "output" or "leaf".
        what: &'static str,
        /// The name.
        name: String,
    },
    /// A rule made a node that does not fit its operands, as where a product of extents leaves 63 bits.
    #[error(transparent)]
    Graph(#[from] GraphError),
}

/// `graph` with one more output `grad.NAME` for each leaf of `wrt` (an input, weight or state): the derivative of the sum of
/// all elements of `outputs` with respect to each of its elements, of its type and shape. It is 0 where no output depends
/// on the leaf.
///
/// # Errors
/// When a name is unknown or names no floats, or an op on the way has no derivative.
pub fn gradient(graph: &Graph, outputs: &[&str], wrt: &[&str]) -> Result<Graph, GradientError> {
    let leaf = |name: &str| {
        let is_it = |op: &Op| match op {
            Op::Input { name: n, .. } | Op::Weight { name: n, .. } | Op::State { name: n, .. } => n == name,
            _ => false,
        };
        let found = graph.nodes().find(|(_, node)| is_it(&node.op));
        found
            .map(|(id, _)| Value::from(id))
            .ok_or_else(|| GradientError::Unknown { what: "leaf", name: name.into() })
    };
    let output = |name: &&str| {
        let found = graph.outputs().iter().find(|output| output.name == **name);
        let unknown = || GradientError::Unknown { what: "output", name: name.to_string() };
        found.map(|output| output.value).ok_or_else(unknown)
    };
    let leaves = wrt.iter().map(|name| leaf(name)).collect::<Result<Vec<_>, _>>()?;
    let outputs = outputs.iter().map(output).collect::<Result<Vec<_>, _>>()?;
    let mut extended = graph.clone();
    let mut seeds = vec![];
    for output in outputs {
        seeds.push((output, extended.full_like(output, 1.0)?));
    }
    let gradients = backpropagate(&mut extended, &seeds, &leaves)?;
    for ((name, leaf), value) in wrt.iter().zip(leaves).zip(gradients) {
        let value = match value {
            Some(value) => value,
            None => extended.full_like(leaf, 0.0)?,
        };
        extended.output(&format!("grad.{name}"), value)?;
    }
    Ok(extended)
}

/// Appends to `graph` the gradients of `wrt`, given those of some values: `seeds` are pairs of a value and its gradient, of
/// the same type. `None` for what none of the seeds depends on. On an error the graph is as it was.
///
/// # Errors
/// When a value holds no floats, or an op on the way has no derivative.
pub fn backpropagate(
    graph: &mut Graph,
    seeds: &[(Value, Value)],
    wrt: &[Value],
) -> Result<Vec<Option<Value>>, GradientError> {
    for value in seeds.iter().map(|(value, _)| value).chain(wrt) {
        let dtype = graph.ty(*value).dtype;
        if !dtype.is_float() {
            let what = format!("%{} {}", value.node.0, graph.op(*value).name());
            return Err(GradientError::NotFloat { what, dtype: dtype.name().into() });
        }
    }
    let depends = dependents(graph, wrt);
    let build = Build::new(graph.clone());
    let mut walk = Walk { graph, build: &build, gradients: HashMap::new(), users: HashMap::new() };
    for (value, gradient) in seeds {
        walk.accumulate(*value, build.term(*gradient));
    }
    for (id, node) in graph.nodes().rev().filter(|(id, _)| depends[id.index()]) {
        for result in 0..node.types.len() as u32 {
            let value = Value { node: id, result };
            if let Some(gradient) = walk.gradients.get(&value).copied() {
                walk.pass_back(value, gradient, &depends)?;
            }
        }
    }
    let found = wrt.iter().map(|value| walk.gradients.get(value).map(|term| term.value())).collect();
    *graph = build.finish()?;
    Ok(found)
}

/// Which nodes depend on `wrt` through floats, by index.
fn dependents(graph: &Graph, wrt: &[Value]) -> Vec<bool> {
    let wanted: HashSet<NodeId> = wrt.iter().map(|value| value.node).collect();
    let mut depends = vec![false; graph.len()];
    for (id, node) in graph.nodes() {
        let through = |v: &Value| depends[v.node.index()] && graph.ty(*v).dtype.is_float();
        depends[id.index()] = wanted.contains(&id) || node.operands.iter().any(through);
    }
    depends
}

/// The gradients found so far, from the outputs backwards.
struct Walk<'b> {
    graph: &'b Graph,
    build: &'b Build,
    /// Of each value the sum of what its users passed back.
    gradients: HashMap<Value, Term<'b>>,
    /// The user that passed a gradient back first, for messages.
    users: HashMap<NodeId, NodeId>,
}

impl<'b> Walk<'b> {
    fn accumulate(&mut self, value: Value, gradient: Term<'b>) {
        let sum = match self.gradients.get(&value) {
            Some(known) => *known + gradient,
            None => gradient,
        };
        self.gradients.insert(value, sum);
    }

    /// Adds to the gradients of the operands of the node of `value` what its result passes back.
    fn pass_back(&mut self, value: Value, gradient: Term<'b>, depends: &[bool]) -> Result<(), GradientError> {
        let node = self.graph.node(value.node);
        let is_wanted = |v: &Value| depends[v.node.index()] && self.graph.ty(*v).dtype.is_float();
        if !node.operands.iter().any(is_wanted) {
            return Ok(());
        }
        let operands: Vec<Term<'b>> = node.operands.iter().map(|v| self.build.term(*v)).collect();
        let passed = rules::pass_back(&node.op, gradient, &operands, self.build.term(value))
            .map_err(|why| GradientError::Op { op: node.op.name(), why, path: self.path(value.node) })?;
        for (operand, gradient) in node.operands.iter().zip(passed) {
            if let Some(gradient) = gradient.filter(|_| is_wanted(operand)) {
                self.users.entry(operand.node).or_insert(value.node);
                self.accumulate(*operand, gradient);
            }
        }
        Ok(())
    }

    /// The ops from an output to the node.
    fn path(&self, node: NodeId) -> String {
        let mut ops = vec![];
        let mut at = Some(node);
        while let Some(id) = at {
            ops.push(format!("%{} {}", id.0, self.graph.node(id).op.name()));
            at = self.users.get(&id).copied();
        }
        ops.push("output".into());
        ops.reverse();
        ops.join(" <- ")
    }
}
