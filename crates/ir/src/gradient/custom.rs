//! Custom kernels on the way back: their rules are those of whoever wrote them.

use super::{GradientError, Walk, has_gradient};
use crate::custom::Custom;
use crate::graph::{Graph, NodeId, Value};
use crate::op::Op;

/// A custom kernel's node, and what is known of it on the way back.
#[derive(Clone, Copy, Debug)]
pub struct CustomNode<'a> {
    /// The kernel with its shapes and push constants.
    pub custom: &'a Custom,
    /// Its operands.
    pub operands: &'a [Value],
    /// Its results.
    pub results: &'a [Value],
    /// The gradient of each result; `None` where nothing depends on it.
    pub gradients: &'a [Option<Value>],
}

/// Appends to the graph the gradients of a custom kernel's operands: one each, of its type, or `None` where it has none.
/// Gives `None` for a kernel without a rule.
pub type CustomRule<'a> =
    dyn FnMut(&mut Graph, &CustomNode<'_>) -> Result<Option<Vec<Option<Value>>>, String> + 'a;

impl Walk<'_> {
    /// Adds to the gradients of a custom kernel's operands what its rule makes of those of its results. `false` where it has
    /// no rule, or the node is another op.
    pub(super) fn pass_back_custom(
        &mut self,
        id: NodeId,
        dependent: &[bool],
        rule: &mut CustomRule<'_>,
    ) -> Result<bool, GradientError> {
        let node = self.graph.node(id);
        let Op::Custom(custom) = &node.op else { return Ok(false) };
        let results: Vec<Value> =
            (0..node.types.len() as u32).map(|result| Value { node: id, result }).collect();
        let gradients: Vec<Option<Value>> =
            results.iter().map(|result| self.gradients.get(result).map(|term| term.value())).collect();
        let is_wanted = |v: &Value| dependent[v.node.index()] && has_gradient(self.graph.ty(*v).dtype);
        let wanted: Vec<bool> = node.operands.iter().map(is_wanted).collect();
        if gradients.iter().all(Option::is_none) || !wanted.contains(&true) {
            return Ok(true);
        }
        let given = CustomNode { custom, operands: &node.operands, results: &results, gradients: &gradients };
        let fail = |why: String| GradientError::Op { op: node.op.name(), why, path: self.path(id) };
        let Some(passed) = self.build.edit(|graph| rule(graph, &given)).map_err(fail)? else {
            return Ok(false);
        };
        if passed.len() != wanted.len() {
            let why = format!("its rule gave {} gradients for {} operands", passed.len(), wanted.len());
            return Err(fail(why));
        }
        for (i, value) in passed.iter().enumerate() {
            let Some(value) = value.filter(|_| wanted[i]) else { continue };
            let (got, want) =
                (self.build.edit(|graph| graph.ty(value).clone()), self.graph.ty(node.operands[i]));
            if got != *want {
                return Err(fail(format!(
                    "its rule gave a gradient of type {got} for operand {i} of type {want}"
                )));
            }
        }
        for (i, value) in passed.into_iter().enumerate() {
            if let Some(value) = value.filter(|_| wanted[i]) {
                self.users.entry(node.operands[i].node).or_insert(id);
                self.accumulate(node.operands[i], self.build.term(value));
            }
        }
        Ok(true)
    }
}
