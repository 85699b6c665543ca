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
mod custom;
mod indexing;
mod reduce;
mod rules;
mod term;
mod views;

use std::collections::{HashMap, HashSet};

use crate::attention::{Attention, AttentionSide};
use crate::dtype::DType;
use crate::graph::{Graph, GraphError, NodeId, Value};
use crate::op::Op;
use crate::verify::{depends, updates};

pub use custom::{CustomNode, CustomRule};
use term::{Build, Term};

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
    /// The gradient reads a state as it was before an update on whose result it depends.
    #[error(
        "the gradient needs {version} as it was before {update} overwrote it; update the state in another graph"
    )]
    Overwritten {
        /// The old version, as `%0 state "s"`.
        version: String,
        /// The update, as `%9 state_update`.
        update: String,
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
/// When a name is unknown or names no floats, or [`backpropagate`] fails.
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
/// When a value holds no floats, an op on the way has no derivative, or a gradient needs a state that was overwritten.
pub fn backpropagate(
    graph: &mut Graph,
    seeds: &[(Value, Value)],
    wrt: &[Value],
) -> Result<Vec<Option<Value>>, GradientError> {
    backpropagate_with(graph, seeds, wrt, &mut |_, _| Ok(None))
}

/// [`backpropagate`] with rules for custom kernels. Leaves that a rule appends stay leaves.
///
/// # Errors
/// As there, and when a rule fails or gives gradients of other types than its operands'.
pub fn backpropagate_with(
    graph: &mut Graph,
    seeds: &[(Value, Value)],
    wrt: &[Value],
    rule: &mut CustomRule<'_>,
) -> Result<Vec<Option<Value>>, GradientError> {
    for value in seeds.iter().map(|(value, _)| value).chain(wrt) {
        let dtype = graph.ty(*value).dtype;
        if !dtype.is_float() {
            let what = format!("%{} {}", value.node.0, graph.op(*value).name());
            return Err(GradientError::NotFloat { what, dtype: dtype.name().into() });
        }
    }
    let dependent = dependents(graph, wrt);
    let build = Build::new(graph.clone());
    let mut walk = Walk { graph, build: &build, gradients: HashMap::new(), users: HashMap::new() };
    for (value, gradient) in seeds {
        walk.accumulate(*value, build.term(*gradient));
    }
    for (id, node) in graph.nodes().rev().filter(|(id, _)| dependent[id.index()]) {
        if walk.pass_back_custom(id, &dependent, rule)? {
            continue;
        }
        for result in 0..node.types.len() as u32 {
            let value = Value { node: id, result };
            if let Some(gradient) = walk.gradients.get(&value).copied() {
                walk.pass_back(value, gradient, &dependent)?;
            }
        }
    }
    let found: Vec<_> = wrt.iter().map(|v| walk.gradients.get(v).map(|term| term.value())).collect();
    append(graph, &build.finish()?, found)
}

/// Operands of an [`crate::Op::AttentionGrad`], but for the sums.
#[derive(Clone, Copy, Debug)]
pub struct AttentionOperands {
    /// Queries `[H, S, D]`.
    pub q: Value,
    /// Keys `[G, T, D]`.
    pub k: Value,
    /// Values `[G, T, E]`.
    pub v: Value,
    /// Gradient of the result, `[H, S, E]`.
    pub g: Value,
    /// Sums of the result times its gradient, `[H, S]`.
    pub means: Value,
    /// What is added to scores.
    pub bias: Option<Value>,
}

/// Appends to `graph` what an [`crate::Op::AttentionGrad`] computes, as other ops, and returns its results. `sums` are `None` where
/// they are those of these queries and keys.
///
/// # Errors
/// When the operands do not fit each other; the graph is lost then.
pub fn expand_attention(
    graph: &mut Graph,
    attrs: &Attention,
    side: AttentionSide,
    operands: AttentionOperands,
    sums: Option<Value>,
) -> Result<Vec<Value>, GraphError> {
    let build = Build::new(std::mem::replace(graph, Graph::new("")));
    let term = |v: Value| build.term(v);
    let AttentionOperands { q, k, v, g, means, bias } = operands;
    let sides = attention::Sides {
        q: term(q),
        k: term(k),
        v: term(v),
        g: term(g),
        means: term(means),
        bias: bias.map(term),
    };
    let found = attention::expand(attrs, side, &sides, sums.map(term));
    let found = found.into_iter().map(|t| t.value()).collect();
    *graph = build.finish()?;
    Ok(found)
}

/// Which nodes depend on `wrt` through floats or blocks of them, by index.
fn dependents(graph: &Graph, wrt: &[Value]) -> Vec<bool> {
    let wanted: HashSet<NodeId> = wrt.iter().map(|value| value.node).collect();
    let mut dependent = vec![false; graph.len()];
    for (id, node) in graph.nodes() {
        let through = |v: &Value| dependent[v.node.index()] && has_gradient(graph.ty(*v).dtype);
        dependent[id.index()] = wanted.contains(&id) || node.operands.iter().any(through);
    }
    dependent
}

/// Whether gradients pass through values of this type. Those through blocks end in an error, not in zeros: values were
/// rounded to them.
fn has_gradient(dtype: DType) -> bool {
    dtype.is_float() || matches!(dtype, DType::Block(_))
}

/// Adds to `graph`, with which `built` begins, those further nodes of `built` that `wanted` depends on, and gives the values
/// their places. Rules also make what nobody needs: the gradients of operands that are data.
fn append(
    graph: &mut Graph,
    built: &Graph,
    wanted: Vec<Option<Value>>,
) -> Result<Vec<Option<Value>>, GradientError> {
    let mut needed = vec![false; built.len()];
    for value in wanted.iter().flatten() {
        needed[value.node.index()] = true;
    }
    for (id, node) in built.nodes().rev().filter(|(id, _)| id.index() >= graph.len()) {
        if needed[id.index()] {
            node.operands.iter().for_each(|v| needed[v.node.index()] = true);
        }
    }
    let added: Vec<NodeId> = built
        .nodes()
        .map(|(id, _)| id)
        .filter(|id| id.index() >= graph.len() && needed[id.index()])
        .collect();
    check_states(built, &added)?;
    let mut places: HashMap<NodeId, NodeId> = HashMap::new();
    let place = |v: &Value, places: &HashMap<NodeId, NodeId>| Value {
        node: places.get(&v.node).copied().unwrap_or(v.node),
        result: v.result,
    };
    for id in added {
        let node = built.node(id);
        let operands: Vec<Value> = node.operands.iter().map(|v| place(v, &places)).collect();
        places.insert(id, graph.add_node(node.op.clone(), &operands)?);
    }
    Ok(wanted.iter().map(|value| value.map(|v| place(&v, &places))).collect())
}

/// Fails if one of these nodes reads a version of a state after its update, which the verifier would reject.
fn check_states(graph: &Graph, nodes: &[NodeId]) -> Result<(), GradientError> {
    for (version, update) in updates(graph) {
        let reads =
            |id: &&NodeId| graph.node(**id).operands.contains(&version) && depends(graph, **id, update);
        if nodes.iter().any(|id| reads(&id)) {
            let name = match graph.op(version) {
                Op::State { name, .. } => format!(" {name:?}"),
                _ => String::new(),
            };
            let version = format!("%{} {}{name}", version.node.0, graph.op(version).name());
            let update = format!("%{} {}", update.0, graph.node(update).op.name());
            return Err(GradientError::Overwritten { version, update });
        }
    }
    Ok(())
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
    fn pass_back(
        &mut self,
        value: Value,
        gradient: Term<'b>,
        dependent: &[bool],
    ) -> Result<(), GradientError> {
        let node = self.graph.node(value.node);
        let is_wanted = |v: &Value| dependent[v.node.index()] && has_gradient(self.graph.ty(*v).dtype);
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
